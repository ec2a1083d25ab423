"""The parts of the spawner: journal, output, stop schedule, process trees and control groups."""

import errno
import os
import resource
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from phalanx.agent.messages import AttemptStatus, RunAttempt, TaskLimits
from phalanx.agent.spawner import cgroups, process_tree
from phalanx.agent.spawner import journal as journal_module
from phalanx.agent.spawner import output as output_module
from phalanx.agent.spawner.attempt_errors import AttemptErrors
from phalanx.agent.spawner.cgroup_hierarchies import hierarchies
from phalanx.agent.spawner.finished_attempts import FinishedAttempts
from phalanx.agent.spawner.journal import EndEntry, ForgetEntry, Journal, StartEntry
from phalanx.agent.spawner.output import OutputWriter
from phalanx.agent.spawner.running_attempt import RunningAttempt
from phalanx.agent.spawner.stop_schedule import LeaseEnd, StopSchedule
from phalanx.agent.state_dir import StateDir
from phalanx.core.time_units import SECOND

KEY = ("j-1.0", 3)


# The journal


def reloaded(path: Path) -> tuple[dict[tuple[str, int], int], list[AttemptStatus]]:
    journal = Journal(path)
    journal.load()
    tags = {key: start.process_tag for key, start in journal.open_starts().items()}
    return tags, journal.ended()


def test_a_journal_keeps_which_attempts_started_and_ended(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.load()
    status = AttemptStatus("j-1.1", 1, exit_code=4)
    for entry in (
        StartEntry(*KEY, 77),
        StartEntry("j-1.1", 1, 78),
        EndEntry(status),
        StartEntry("j-1.2", 1, 79),
        EndEntry(AttemptStatus("j-1.2", 1, gone=True)),
        ForgetEntry("j-1.2", 1),
    ):
        journal.add(entry)
        journal.write()
    assert reloaded(tmp_path / "journal") == ({KEY: 77}, [status])


def test_a_line_that_a_crash_has_cut_off_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.add(StartEntry(*KEY, 77))
    journal.write()
    with path.open("ab") as file:
        file.write(b'{"type":"EndEntry","status":{"id":"j-1.0"')
    assert reloaded(path) == ({KEY: 77}, [])


def test_a_journal_that_could_not_be_written_is_written_whole_later(tmp_path: Path) -> None:
    path = tmp_path / "there" / "journal"
    journal = Journal(path)
    journal.add(StartEntry(*KEY, 77))
    with pytest.raises(OSError, match="No such file"):
        journal.write()
    path.parent.mkdir()
    journal.write()
    assert reloaded(path) == ({KEY: 77}, [])


@contextmanager
def files_limited_to(size_bytes: int) -> Iterator[None]:
    """No file may grow beyond this: the write that reaches it is short, and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_journal_that_does_not_fit_on_the_disk_keeps_every_entry(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    for number in range(600):
        journal.add(StartEntry(f"j-{number}.0", 1, number))
    journal.write()
    before = path.read_bytes()
    for limit in (len(before) // 2, len(before) + 10):
        following = Journal(path)
        following.load()
        assert len(following.open_starts()) == 600
        following.add(StartEntry("j-600.0", 1, 600))
        with files_limited_to(limit), pytest.raises(OSError, match="too large"):
            following.write()
        assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["journal"]
    journal.add(StartEntry("j-600.0", 1, 600))
    journal.write()
    assert len(reloaded(path)[0]) == 601


def test_an_entry_of_which_a_part_was_written_is_written_whole_later(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.add(StartEntry(*KEY, 77))
    journal.write()
    before = path.read_bytes()
    journal.add(StartEntry("j-2.0", 1, 78))
    with files_limited_to(len(before) + 10), pytest.raises(OSError, match="too large"):
        journal.write()
    assert path.read_bytes() == before
    journal.add(StartEntry("j-3.0", 1, 79))
    journal.write()
    assert reloaded(path)[0] == {KEY: 77, ("j-2.0", 1): 78, ("j-3.0", 1): 79}


def test_a_journal_that_cannot_be_rewritten_grows_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    monkeypatch.setattr(journal_module, "_REWRITE_BYTES", 100)
    journal = Journal(path)
    for number in range(5):
        journal.add(EndEntry(AttemptStatus(f"j-{number}.0", 1, exit_code=0)))
        journal.write()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space for a second file")

    monkeypatch.setattr(journal_module, "replace_file", fail)
    for number in range(5, 10):
        journal.add(EndEntry(AttemptStatus(f"j-{number}.0", 1, exit_code=0)))
        journal.write()
    assert len(reloaded(path)[1]) == 10


# Finished attempts


def test_an_acknowledged_attempt_is_removed_and_cannot_run_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    finished = FinishedAttempts(journal, [])
    finished.add(AttemptStatus(*KEY, exit_code=0), now=0)
    assert not finished.was_forgotten(KEY)
    finished.forget(KEY)
    assert list(finished) == []
    assert finished.was_forgotten(KEY)
    assert finished.was_forgotten((KEY[0], KEY[1] - 1)), "earlier attempts are over as well"
    assert not finished.was_forgotten((KEY[0], KEY[1] + 1))
    journal.write()
    assert reloaded(tmp_path / "journal") == ({}, [])


def test_an_end_is_flushed_to_disk_a_second_later(tmp_path: Path) -> None:
    finished = FinishedAttempts(Journal(tmp_path / "journal"), [])
    assert finished.flush_at is None
    finished.add(AttemptStatus(*KEY, exit_code=0), now=5.0)
    finished.add(AttemptStatus("j-2.0", 1, exit_code=0), now=5.5)
    assert finished.flush_at == 6.0
    finished.flush_if_due(6.0)
    assert finished.flush_at is None


# The stop schedule


def schedule(*, time_limit_s: int | None = None, fence: bool = False) -> StopSchedule:
    """The schedule of an attempt with a grace of 10 s that starts at 100 s."""
    time_limit = None if time_limit_s is None else time_limit_s * SECOND
    run = RunAttempt(*KEY, "true", {}, 10 * SECOND, time_limit=time_limit, fence=fence)
    return StopSchedule(run, now=100.0)


def lease(ends_at: float) -> LeaseEnd:
    return lambda: ends_at


def test_an_attempt_without_limits_is_never_stopped() -> None:
    assert schedule().due_at(lease(130.0)) is None
    assert schedule().has_lease(lease(0.0), now=100.0)


def test_a_time_limit_is_enforced_five_seconds_after_the_server_should_have() -> None:
    assert schedule(time_limit_s=60).due_at(lease(130.0)) == 165.0


def test_a_fenced_attempt_is_stopped_so_that_its_grace_ends_before_its_lease() -> None:
    fenced = schedule(fence=True)
    assert fenced.due_at(lease(130.0)) == 118.0
    assert fenced.due_at(lease(140.0)) == 128.0


def test_a_fenced_attempt_that_is_stopped_late_has_a_shorter_grace() -> None:
    fenced = schedule(fence=True)
    fenced.stopped(now=125.0)
    assert fenced.due_at(lease(130.0)) == 128.0
    fenced.killed(now=128.0)
    assert fenced.due_at(lease(130.0)) == pytest.approx(128.1)


def test_a_fenced_attempt_is_not_started_when_its_lease_is_about_to_end() -> None:
    assert schedule(fence=True).has_lease(lease(130.0), now=117.0)
    assert not schedule(fence=True).has_lease(lease(130.0), now=118.0)


def test_a_lease_does_not_extend_the_time_limit() -> None:
    assert schedule(time_limit_s=10, fence=True).due_at(lease(140.0)) == 115.0


def test_a_stopped_attempt_is_killed_after_its_grace_and_then_again_and_again() -> None:
    stopping = schedule(fence=True)
    stopping.stopped(now=200.0)
    assert stopping.is_stopping
    assert stopping.due_at(lease(239.0)) == 210.0, "a lease does not end the stop"
    stopping.killed(now=210.0)
    assert stopping.due_at(lease(239.0)) == pytest.approx(210.1)


# Output


@pytest.fixture
def state_dir(tmp_path: Path) -> StateDir:
    state_dir = StateDir(tmp_path / "state")
    state_dir.create()
    return state_dir


class Attempt:
    """An attempt's end of the pipe, and the spawner's."""

    def __init__(self, state_dir: StateDir) -> None:
        read, self._write = os.pipe()
        os.set_blocking(read, False)
        self.output = OutputWriter(state_dir, KEY, read, os.open(os.devnull, os.O_WRONLY))

    def write(self, data: bytes, now: float = 0.0) -> None:
        os.write(self._write, data)
        while select.select([self.output.pipe], [], [], 0)[0]:
            assert self.output.move_some(now)

    def close(self) -> None:
        os.close(self._write)
        self.output.close(0.0)


def written(state_dir: StateDir) -> dict[int, bytes]:
    return {file.offset: file.path.read_bytes() for file in state_dir.output_files(KEY)}


def test_output_is_kept_in_files_of_limited_size(
    state_dir: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_module, "_FILE_BYTES", 4)
    attempt = Attempt(state_dir)
    for piece in (b"abcd", b"ef", b"gh", b"ij"):
        attempt.write(piece)
    attempt.close()
    assert written(state_dir) == {4: b"efgh", 8: b"ij"}
    assert attempt.output.total_bytes == 10


def test_no_file_is_created_for_a_task_that_writes_nothing(state_dir: StateDir) -> None:
    attempt = Attempt(state_dir)
    attempt.close()
    assert written(state_dir) == {}


def test_output_that_a_full_disk_cannot_take_is_counted_in_a_note(
    state_dir: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_module, "_FILE_BYTES", 5)
    attempt = Attempt(state_dir)
    attempt.write(b"first")
    state_dir.output.rename(state_dir.path / "gone")
    state_dir.output.touch()
    attempt.write(b"lost", now=10.0)
    state_dir.output.unlink()
    (state_dir.path / "gone").rename(state_dir.output)
    attempt.write(b"lost too", now=10.5)
    monkeypatch.undo()
    attempt.write(b"last", now=11.5)
    attempt.close()
    note = b"[phalanx: lost 12 bytes of output: Not a directory]\n"
    assert written(state_dir) == {0: b"first", 17: note + b"last"}


def test_output_that_another_process_writes_without_end_does_not_hold_up_the_end(
    state_dir: StateDir,
) -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    output = OutputWriter(state_dir, KEY, read, os.open(os.devnull, os.O_WRONLY))
    with subprocess.Popen(["/bin/cat", "/dev/zero"], stdout=write) as flood:
        os.close(write)
        select.select([read], [], [])
        output.close(0.0)
        flood.kill()
    assert 0 < output.total_bytes <= 2 * 1024**2


def test_an_error_with_one_attempt_is_contained_and_becomes_a_problem_of_it(
    state_dir: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunAttempt(*KEY, "true", {}, SECOND)
    tree = process_tree.ProcessTree(process_tree.new_tag(), None)
    attempt = RunningAttempt(run, tree, 0, Attempt(state_dir).output, StopSchedule(run, 0.0))
    with AttemptErrors().contained(attempt):
        raise MemoryError
    assert attempt.status.problem == "error of the worker: MemoryError()"
    assert "MemoryError" in capsys.readouterr().err


# Process trees


_TAGGED = """
import subprocess, sys
from phalanx.agent.spawner.process_tree import tagged
with tagged(int(sys.argv[1])):
    family = ["sh", "-c", "env -i setsid sleep 1000 & echo $! $$; wait"]
    first = subprocess.Popen(family, stdout=subprocess.PIPE, text=True)
print(first.stdout.readline(), flush=True)
sys.stdin.read()
"""


def test_a_tag_is_found_on_all_descendants_of_a_process() -> None:
    tag = process_tree.new_tag()
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", _TAGGED, str(tag)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        family = set(map(int, process.stdout.readline().split()))
        assert len(family) == 2
        assert set(process_tree.tagged_pids(tag)) == family
        assert process_tree.tagged_pids(process_tree.new_tag()) == []
        process_tree.kill_all([process_tree.ProcessTree(tag)])
        assert process_tree.tagged_pids(tag) == []
        process.stdin.close()


def test_a_tag_limits_nothing() -> None:
    assert process_tree.new_tag() > 1 << 61
    assert resource.getrlimit(resource.RLIMIT_RSS)[1] == resource.RLIM_INFINITY


# Control groups


_HYBRID = """\
1 0 0:28 / /sys rw - tmpfs none rw
41 31 0:38 / /sys/u rw - cgroup2 none rw
42 31 0:39 / /sys/m rw - cgroup cgroup rw,memory
43 31 0:40 / /sys/c rw - cgroup cgroup rw,cpu,cpuacct"""
_BOX = r"1 0 0:1 /box/a /my\040groups rw shared:4 - cgroup2 none rw"


@pytest.mark.parametrize(
    ("own", "mounts", "folders"),
    [
        ("9:blkio:/b\n4:memory:/m\n0::/", _HYBRID, ["/sys/u", "/sys/m/m"]),
        ("5:cpu,cpuacct:/\n3:pids:/", _HYBRID, ["/sys/c"]),
        ("0::/system.slice/w.service", _HYBRID, ["/sys/u/system.slice/w.service"]),
        ("0::/box/a/b", _BOX, ["/my groups/b"]),
        ("0::/box/another", _BOX, []),
        ("0::/../outside", _HYBRID, []),
        ("0::/", "1 0 0:28 / /sys rw - tmpfs none rw", []),
    ],
)
def test_the_control_groups_of_the_spawner_are_found_wherever_they_are_mounted(
    own: str, mounts: str, folders: list[str], tmp_path: Path
) -> None:
    (tmp_path / "cgroup").write_text(own + "\n")
    (tmp_path / "mountinfo").write_text(mounts + "\n")
    assert [each.own_group for each in hierarchies(tmp_path)] == list(map(Path, folders))


def test_nothing_is_left_behind_where_no_control_group_can_be_created(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "mountinfo").write_text(f"1 0 0:1 / {tmp_path}/no rw - cgroup2 none rw\n")
    for exists in (False, True):  # the second time it is a folder, but not of control groups
        if exists:
            (tmp_path / "no").mkdir()
        groups = cgroups.ControlGroups(tmp_path / "path", tmp_path)
        assert groups.create(KEY, TaskLimits()) is None
        assert cgroups.leftover_group(tmp_path / "path") is None
    assert list((tmp_path / "no").iterdir()) == []


#: The files that the kernel creates with a group of version 2.
_FILES = (
    *("cgroup.procs", "cgroup.subtree_control", "cgroup.events", "memory.max", "memory.peak"),
    *("memory.swap.max", "memory.oom.group", "memory.events", "cpu.weight", "cpu.max", "pids.max"),
    *("pids.events", "cgroup.kill"),
)


@pytest.fixture
def version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like a machine with version 2 only, and its proc folder."""
    make_folder = os.mkdir

    def make_group(path: Path | str, *_: object) -> None:
        make_folder(path)
        for name in _FILES:
            Path(path, name).touch()

    (tmp_path / "cgroup").write_text("0::/w.service/phalanx-agent\n")
    (tmp_path / "mountinfo").write_text(f"1 0 0:1 / {tmp_path}/groups rw - cgroup2 none rw\n")
    for folder in ("groups", "groups/w.service", "groups/w.service/phalanx-agent"):
        make_group(tmp_path / folder)
    (tmp_path / "groups/w.service/cgroup.controllers").write_text("cpu io memory pids\n")
    monkeypatch.setattr(os, "mkdir", make_group)
    return tmp_path


def test_version_2_limits_the_group_of_a_task_beside_the_group_of_the_agent(
    version_2: Path,
) -> None:
    groups = cgroups.ControlGroups(version_2 / "path", version_2)
    assert groups.unenforced == {}
    limits = TaskLimits(memory=1 << 30, cpu=1500, cpu_quota=True, processes=64)
    group = groups.create(KEY, limits)
    assert group is not None
    folder = Path(group.folders[0].path)
    assert folder.parent.parent == version_2 / "groups/w.service"
    with group.joined():
        assert (folder / "cgroup.procs").read_text() == "0"
    written = {name: (folder / name).read_text() for name in _FILES}
    assert written["memory.max"] == str(1 << 30)
    assert (written["memory.swap.max"], written["memory.oom.group"]) == ("0", "1")
    assert (written["cpu.weight"], written["cpu.max"]) == ("150", "150000 100000")
    assert written["pids.max"] == "64"
    (folder / "memory.events").write_text("max 9\noom 2\noom_kill 3\n")
    (folder / "memory.peak").write_text("1073741824\n")
    (folder / "pids.events").write_text("max 5\n")
    assert group.limits_reached() == (3, 1 << 30, 5)


def test_a_start_opens_only_the_files_whose_values_it_changes(
    version_2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = cgroups.ControlGroups(version_2 / "path", version_2)
    opened: list[str] = []
    open_file = os.open

    def note_and_open(path: str, flags: int, *mode: int) -> int:
        if not flags & os.O_CREAT:  # with which the fixture creates the files of the kernel
            opened.append(Path(path).name)
        return open_file(path, flags, *mode)

    monkeypatch.setattr(os, "open", note_and_open)
    for index in range(2):
        opened.clear()
        group = groups.create((f"j-1.{index}", 1), TaskLimits(cpu=1000, processes=64))
        assert group is not None
        with group.joined():
            pass
    # Not the weight of one CPU, which is the kernel's default, and not the spawner's own group.
    assert opened == ["pids.max", "cgroup.procs"]


def test_limits_that_cannot_be_enforced_are_named_with_the_reason(version_2: Path) -> None:
    (version_2 / "groups/w.service/cgroup.subtree_control").unlink()
    groups = cgroups.ControlGroups(version_2 / "path", version_2)
    assert set(groups.unenforced) == {"memory", "cpu", "processes"}
    assert "a control group named phalanx-agent" in groups.unenforced["memory"]
    assert groups.create(KEY, TaskLimits(memory=1 << 30)) is not None, "tasks are killed as before"
