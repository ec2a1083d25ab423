"""What a task's own program is given: its place, its checkpoint, its progress, its end."""

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx import task

GIVEN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GANG_PEERS", "CHECKPOINT_DATA")


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing of Phalanx had started us."""
    for name in list(os.environ):
        if name in GIVEN or name.startswith("PHALANX_"):
            monkeypatch.delenv(name)


def test_outside_of_phalanx_it_is_rank_0_of_1_and_nothing_is_kept() -> None:
    assert (task.rank(), task.world_size(), task.local_rank(), task.node_rank()) == (0, 1, 0, 0)
    assert (task.job(), task.role(), task.attempt()) == (None, None, 1)
    assert task.peers() == ["localhost"]
    assert task.checkpoint.load() is None
    task.checkpoint.save(b"nobody wants this")
    task.progress(1, checkpoint=True)


def test_its_place_is_what_the_server_said(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "NODE_RANK": "1"}
    given |= {"GANG_PEERS": "a,b", "PHALANX_JOB": "j-1", "PHALANX_ROLE": "ps"}
    for name, value in (given | {"PHALANX_ATTEMPT": "2"}).items():
        monkeypatch.setenv(name, value)
    assert (task.rank(), task.world_size(), task.local_rank(), task.node_rank()) == (3, 8, 1, 1)
    assert (task.job(), task.role(), task.attempt()) == ("j-1", "ps", 2)
    assert task.peers() == ["a", "b"]


def test_what_is_saved_is_what_the_next_attempt_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_CHECKPOINT_OUT", str(tmp_path / "out"))
    task.checkpoint.save(b"one")
    task.checkpoint.save(b"\x00two")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    monkeypatch.setenv("PHALANX_CHECKPOINT_IN", str(tmp_path / "out"))
    assert task.checkpoint.load() == b"\x00two"


def test_a_save_that_fails_leaves_what_was_saved_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_CHECKPOINT_OUT", str(tmp_path / "out"))
    task.checkpoint.save(b"good")
    with pytest.raises(TypeError):
        task.checkpoint.save("not bytes")  # type: ignore[arg-type]
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("out", b"good")]


def test_a_checkpoint_comes_in_a_variable_where_there_is_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PHALANX_CHECKPOINT_IN", "/nowhere/at/all")
    monkeypatch.setenv("CHECKPOINT_DATA", base64.b64encode(b"state").decode())
    assert task.checkpoint.load() == b"state"


def test_progress_is_a_line_for_every_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_PROGRESS", str(tmp_path / "progress"))
    task.progress(1)
    task.progress(2, checkpoint=True)
    lines = (tmp_path / "progress").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": 1}, {"step": 2, "checkpoint": True}]


def run(program: str, signals: int = 1) -> tuple[int, list[str]]:
    """A program that says `ready` and is then told to stop, so many times."""
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as lines:
        assert lines.readline() == "ready\n"
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
        told = lines.read().split()
    return process.wait(timeout=30), told


CALLBACK = """
import signal
from phalanx import task
task.on_stop(lambda: print("saved"))
print("ready", flush=True)
while True:
    signal.pause()
"""

LOOP = """
import signal
from phalanx import task
task.on_stop(lambda: print("told"), leave=False)
print("ready", flush=True)
while not task.should_stop():
    signal.pause()
print("left")
"""


def test_on_stop_runs_once_and_then_the_program_leaves() -> None:
    status, told = run(CALLBACK, signals=3)
    assert (status, told) == (143, ["saved"])


def test_a_program_may_leave_by_itself_when_it_was_told_to_stop() -> None:
    assert run(LOOP) == (0, ["told", "left"])


def test_importing_it_loads_nothing_but_python() -> None:
    program = "import sys, phalanx.task; print({'msgspec', 'httpx', 'typer'} & set(sys.modules))"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
