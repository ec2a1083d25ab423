"""`phalanx.task`: rank, checkpoint, progress, and a request to stop."""

import base64
import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from phalanx import task

GIVEN = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GANG_PEERS"),
    *("CHECKPOINT_DATA", "CHECKPOINT_URL"),
)


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without any variable of Phalanx."""
    for name in list(os.environ):
        if name in GIVEN or name.startswith("PHALANX_"):
            monkeypatch.delenv(name)


def test_outside_of_phalanx_a_program_is_rank_0_of_1_and_saves_nothing() -> None:
    assert (task.rank(), task.world_size(), task.local_rank(), task.node_rank()) == (0, 1, 0, 0)
    assert (task.job(), task.role(), task.attempt()) == (None, None, 1)
    assert task.peers() == ["localhost"]
    assert task.checkpoint.load() is None
    task.checkpoint.save(b"discarded")
    task.progress(1, checkpoint=True)


def test_rank_and_attempt_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "NODE_RANK": "1"}
    given |= {"GANG_PEERS": "a,b", "PHALANX_JOB": "j-1", "PHALANX_ROLE": "ps"}
    for name, value in (given | {"PHALANX_ATTEMPT": "2"}).items():
        monkeypatch.setenv(name, value)
    assert (task.rank(), task.world_size(), task.local_rank(), task.node_rank()) == (3, 8, 1, 1)
    assert (task.job(), task.role(), task.attempt()) == ("j-1", "ps", 2)
    assert task.peers() == ["a", "b"]


def test_a_gang_without_a_list_of_hosts_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_JOB", "j-1")
    monkeypatch.setenv("WORLD_SIZE", "4000")
    with pytest.raises(LookupError, match="a gang of 4000 tasks has no list of hosts"):
        task.peers()


def test_a_checkpoint_that_is_too_large_for_a_variable_is_downloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Saved(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/saved" else 401)
            self.end_headers()
            self.wfile.write(b"x" * 200_000)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Saved) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            monkeypatch.setenv("CHECKPOINT_URL", f"{url}/saved")
            assert task.checkpoint.load() == b"x" * 200_000
            monkeypatch.setenv("CHECKPOINT_URL", f"{url}/refused")
            with pytest.raises(OSError, match="401"):
                task.checkpoint.load()
        finally:
            server.shutdown()
            thread.join()


def test_a_saved_checkpoint_is_loaded_by_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_CHECKPOINT_OUT", str(tmp_path / "out"))
    task.checkpoint.save(b"one")
    task.checkpoint.save(b"\x00two")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    monkeypatch.setenv("PHALANX_CHECKPOINT_IN", str(tmp_path / "out"))
    assert task.checkpoint.load() == b"\x00two"


def test_a_failed_save_keeps_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_CHECKPOINT_OUT", str(tmp_path / "out"))
    task.checkpoint.save(b"good")
    with pytest.raises(TypeError):
        task.checkpoint.save("not bytes")  # type: ignore[arg-type]
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("out", b"good")]


def test_a_checkpoint_larger_than_the_limit_is_refused_and_the_previous_one_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert task.checkpoint.limit is None
    monkeypatch.setenv("PHALANX_CHECKPOINT_OUT", str(tmp_path / "out"))
    monkeypatch.setenv("PHALANX_CHECKPOINT_LIMIT", "1000")
    task.checkpoint.save(b"x" * 1000)
    with pytest.raises(task.CheckpointTooLarge, match="has 1001 bytes, the limit is 1000 bytes"):
        task.checkpoint.save(b"y" * 1001)
    assert (tmp_path / "out").read_bytes() == b"x" * 1000


def test_without_a_file_the_checkpoint_is_read_from_a_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PHALANX_CHECKPOINT_IN", "/nowhere/at/all")
    monkeypatch.setenv("CHECKPOINT_DATA", base64.b64encode(b"state").decode())
    assert task.checkpoint.load() == b"state"


def test_every_progress_report_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_PROGRESS", str(tmp_path / "progress"))
    task.progress(1)
    task.progress(2, checkpoint=True)
    lines = (tmp_path / "progress").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": 1}, {"step": 2, "checkpoint": True}]


def run(program: str, signals: int = 1) -> tuple[int, list[str]]:
    """Run a program until it prints `ready`, send SIGTERM, and return its status and output."""
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as lines:
        assert lines.readline() == "ready\n"
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
        words = lines.read().split()
    return process.wait(timeout=30), words


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
task.on_stop(lambda: print("asked"), leave=False)
print("ready", flush=True)
while not task.should_stop():
    signal.pause()
print("left")
"""


def test_on_stop_runs_once_and_then_the_program_exits() -> None:
    status, words = run(CALLBACK, signals=3)
    assert (status, words) == (143, ["saved"])


def test_a_program_can_exit_by_itself_when_it_is_asked_to_stop() -> None:
    assert run(LOOP) == (0, ["asked", "left"])


def test_importing_it_loads_only_the_standard_library() -> None:
    program = "import sys, phalanx.task; print({'msgspec', 'httpx', 'typer'} & set(sys.modules))"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
