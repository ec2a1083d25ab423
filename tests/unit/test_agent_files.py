"""Files of tasks on a worker: what is opened, how trees are removed, how files are replaced."""

import asyncio
import os
import stat
import threading
from pathlib import Path

import pytest
from tests.integration.server.waiting import PATIENCE_S, eventually

from phalanx.agent import trash as trash_module
from phalanx.agent.state_dir import CHECKPOINT_OUT, StateDir
from phalanx.agent.task_files import UnusableFile
from phalanx.agent.trash import Trash
from phalanx.host.file_replacement import replace_file

KEY = ("j-1.0", 3)


@pytest.fixture
def state_dir(tmp_path: Path) -> StateDir:
    state_dir = StateDir(tmp_path / "state")
    state_dir.create()
    state_dir.create_attempt(KEY)
    return state_dir


def test_a_regular_file_is_read_to_a_limit(state_dir: StateDir) -> None:
    Path(state_dir.task_file(KEY, CHECKPOINT_OUT)).write_bytes(b"0123456789")
    file = state_dir.open_task_file(KEY, CHECKPOINT_OUT)
    assert (file.size_bytes, file.read(2, 3), file.read(8, 100)) == (10, b"234", b"89")
    file.close()
    with pytest.raises(FileNotFoundError):
        state_dir.open_task_file(KEY, "nothing")


def test_no_symbolic_link_is_followed_in_any_folder_that_a_task_can_replace(
    state_dir: StateDir, tmp_path: Path
) -> None:
    secret = tmp_path / "attempts" / state_dir.attempt(KEY).name / CHECKPOINT_OUT
    secret.parent.mkdir(parents=True)
    secret.write_text("secret")
    for replaced, target in (
        (Path(state_dir.task_file(KEY, CHECKPOINT_OUT)), secret),
        (state_dir.attempt(KEY), secret.parent),
        (state_dir.attempts, secret.parent.parent),
    ):
        state_dir.create_attempt(KEY)
        if replaced.exists():
            state_dir.discard(replaced)
        replaced.symlink_to(target)
        assert Path(state_dir.task_file(KEY, CHECKPOINT_OUT)).read_text() == "secret"
        with pytest.raises(UnusableFile):
            state_dir.open_task_file(KEY, CHECKPOINT_OUT)
        state_dir.discard(replaced)
    assert secret.read_text() == "secret"


@pytest.mark.parametrize(("for_users", "mode"), [(False, 0o700), (True, 0o711)])
def test_missing_parents_are_created_with_the_mode_of_the_directory(
    tmp_path: Path, *, for_users: bool, mode: int
) -> None:
    tmp_path.chmod(0o755)
    StateDir(tmp_path / "workers" / "rack" / "w-1").create(for_users=for_users)
    created = (tmp_path / "workers", tmp_path / "workers" / "rack")
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in created] == [mode, mode]
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


@pytest.mark.parametrize(("for_users", "mode"), [(False, 0o700), (True, 0o711)])
def test_folders_that_were_removed_or_closed_get_their_mode_again(
    state_dir: StateDir, *, for_users: bool, mode: int
) -> None:
    def modes() -> list[int]:
        folders = (state_dir.path, state_dir.attempts, state_dir.output)
        return [stat.S_IMODE(folder.stat().st_mode) for folder in folders]

    right = [mode, mode, 0o700]
    state_dir.path.chmod(0o755)
    state_dir.output.chmod(0o755)
    state_dir.create(for_users=for_users)
    assert modes() == right
    for folder in (state_dir.attempts, state_dir.output):
        state_dir.discard(folder)
    state_dir.path.chmod(0o755)
    state_dir.create_attempt(KEY)
    os.close(state_dir.create_output_file(KEY, 0)[1])
    assert modes() == right
    state_dir.attempts.chmod(0o755)
    state_dir.create_attempt(KEY)
    assert modes() == right


def emptied(trash: Trash) -> None:
    while trash.remove_some(limit=7):
        pass


def test_a_tree_of_any_depth_is_removed_and_what_its_links_point_to_is_kept(
    state_dir: StateDir, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    folder = os.open(state_dir.attempt(KEY), os.O_RDONLY)
    for _ in range(300):  # deeper than a path can name
        os.mkdir("d" * 100, dir_fd=folder)
        os.symlink(outside, "link", dir_fd=folder)
        inner = os.open("d" * 100, os.O_RDONLY, dir_fd=folder)
        os.fchmod(inner, stat.S_IRWXU)
        os.close(folder)
        folder = inner
    os.close(folder)
    trash = Trash(state_dir)
    trash.put_attempt(KEY, output=True)
    emptied(trash)
    assert list(state_dir.trash.iterdir()) == []
    assert [path.name for path in outside.iterdir()] == ["file"]


def test_what_cannot_be_removed_is_tried_once_and_the_rest_is_removed(
    state_dir: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "kept", "b"):
        Path(state_dir.task_file(KEY, name)).touch()
    unlink = os.unlink

    def refuse(name: str, *, dir_fd: int | None = None) -> None:
        if name == "kept":
            raise PermissionError(1, "Operation not permitted")
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)
    trash = Trash(state_dir)
    trash.put_attempt(KEY, output=False)
    emptied(trash)
    [left] = state_dir.trash.iterdir()
    assert [path.name for path in left.iterdir()] == ["kept"]


async def test_the_removal_of_many_files_does_not_hold_up_the_loop(
    state_dir: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trash_module, "_COLLECT_S", 0.0)
    for number in range(20_000):
        os.close(os.open(state_dir.task_file(KEY, str(number)), os.O_CREAT))
    trash = Trash(state_dir)
    trash.put_attempt(KEY, output=False)
    remove_some, threads = trash.remove_some, []

    def noted() -> bool:
        threads.append(threading.get_ident())
        return remove_some()

    monkeypatch.setattr(trash, "remove_some", noted)
    running = asyncio.create_task(trash.run())

    async def is_empty() -> bool:
        return not any(state_dir.trash.iterdir())

    await eventually(is_empty, PATIENCE_S)
    running.cancel()
    assert len(threads) > 10, "other work in threads gets its turn between two parts of the removal"
    assert threading.get_ident() not in threads


def test_a_file_that_cannot_be_replaced_is_kept_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old", durable=True)
    path.parent.joinpath("folder").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "folder", b"new", durable=True)
    assert path.read_bytes() == b"old"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]
