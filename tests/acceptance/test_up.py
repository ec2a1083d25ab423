"""`phalanx up`: a server and workers in one terminal, with tasks that are real processes."""

import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from phalanx.cli.local_cluster import short_log_line
from tests.acceptance.terminal import PATIENCE_S, Following, Terminal, until
from tests.ports import free_port

NOWHERE = Terminal("")


@pytest.fixture
def port() -> int:
    return free_port()


@contextmanager
def up(port: int, folder: Path, *words: str, **variables: str) -> Iterator[Following]:
    """Ended as a user ends it, if it has not ended by itself."""
    process = NOWHERE.start("up", f"--port={port}", f"--data={folder}", *words, **variables)
    with Following(process) as running:
        try:
            yield running
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_S)


def test_a_gang_runs_on_two_workers_and_ctrl_c_stops_everything(port: int, tmp_path: Path) -> None:
    at = Terminal(f"http://127.0.0.1:{port}")
    with up(port, tmp_path, "--workers", "2", "--gpus", "2") as running:
        assert running.line_with("Ctrl-C stops everything.", PATIENCE_S), running.seen
        told = "".join(running.seen)
        assert f"export PHALANX_SERVER=http://127.0.0.1:{port}\n" in told
        assert "with 2 workers, each with 2 simulated GPUs." in told
        said = at.type(
            *("submit", "--gang", "4", "--gpu", "1", "--name", "hello", "--follow", "--"),
            *("sh", "-c", "echo rank $RANK of $WORLD_SIZE"),
        )
        assert said.status == 0, said
        _, *printed = said.out.splitlines()
        assert sorted(printed) == [f"worker/{n} | rank {n} of 4" for n in range(4)]
        assert at.type("logs", "hello", "--task", "3").out == "rank 3 of 4\n"
        assert {task["worker"] for task in at.type("tasks", "hello", "--json").json} == {
            "w-1",
            "w-2",
        }
        at.type("submit", "--name", "endless", "--", "sleep", "1000")
        until(lambda: at.type("job", "endless", "--json").json["phase"] == "running")
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(PATIENCE_S) == 0
        lines = running.to_end()
    assert any("stopped" in line for line in lines)
    leaving = [
        n for n, line in enumerate(lines) if line.startswith("w-") and "shutting down" in line
    ]
    [stopping] = [n for n, line in enumerate(lines) if re.match(r"server .* stopping ", line)]
    assert len(leaving) == 2
    assert max(leaving) < stopping
    # The state is kept: another time, the job is tried again.
    with up(port, tmp_path, "--workers", "0") as again:
        assert again.line_with("Ctrl-C stops everything.", PATIENCE_S), again.seen
        until(lambda: at.type("job", "endless", "--json").json["phase"] == "pending")


def test_a_port_in_use_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = NOWHERE.type("up", f"--port={port}", f"--data={tmp_path}")
    assert said.status == 2
    assert (
        f"port {port} is in use; stop the process that listens there, or choose another" in said.err
    )


def test_a_second_cluster_does_not_touch_the_workers_of_the_first(
    port: int, tmp_path: Path
) -> None:
    at = Terminal(f"http://127.0.0.1:{port}")
    with up(port, tmp_path / "first") as running:
        assert running.line_with("Ctrl-C stops everything.", PATIENCE_S), running.seen
        [before] = at.type("workers", "--json").json
        assert NOWHERE.type("up", f"--port={port}", f"--data={tmp_path / 'second'}").status == 2
        assert at.type("workers", "--json").json == [before]


def test_a_second_run_greets_when_its_own_workers_are_there(port: int, tmp_path: Path) -> None:
    at, registered = Terminal(f"http://127.0.0.1:{port}"), []
    for _ in range(2):
        with up(port, tmp_path) as running:
            assert running.line_with("Ctrl-C stops everything.", PATIENCE_S), running.seen
            [worker] = at.type("workers", "--json").json
            assert worker["status"] == "active"
            registered.append(worker["registered_at"])
    assert registered[0] != registered[1]


def test_a_smaller_second_run_removes_the_workers_of_the_first(port: int, tmp_path: Path) -> None:
    at = Terminal(f"http://127.0.0.1:{port}")
    for count in (2, 1, 2):
        with up(port, tmp_path, f"--workers={count}", PHALANX_LOOPBACK_OPEN="false") as running:
            assert running.line_with("Ctrl-C stops everything.", PATIENCE_S), running.seen
            token = (tmp_path / "admin.token").read_text().strip()
            listed = at.type("workers", "--json", PHALANX_TOKEN=token).json
        assert [each["id"] for each in listed] == [f"w-{n + 1}" for n in range(count)]


def test_a_worker_that_exits_is_restarted(port: int, tmp_path: Path) -> None:
    at = Terminal(f"http://127.0.0.1:{port}")
    with up(port, tmp_path, "--workers", "1") as running:
        assert running.line_with("Ctrl-C stops everything.", PATIENCE_S), running.seen
        _kill_worker(tmp_path)
        assert running.line_with("restarting", PATIENCE_S), running.seen
        assert running.line_with("registered", PATIENCE_S), running.seen
        assert at.type("submit", "--wait", "--", "true").status == 0


def test_no_process_survives_when_up_is_killed(port: int, tmp_path: Path) -> None:
    at = Terminal(f"http://127.0.0.1:{port}")
    with up(port, tmp_path) as running:
        assert running.line_with("Ctrl-C stops everything.", PATIENCE_S), running.seen
        at.type("submit", "--name", "endless", "--", "sleep", "1000")
        until(lambda: at.type("job", "endless", "--json").json["phase"] == "running")
        running.process.kill()
        until(lambda: not _with(str(tmp_path)))


def _with(word: str) -> list[int]:
    """The processes that were started with it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if word.encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


def _kill_worker(folder: Path) -> None:
    """The process that was started with the state directory of the worker."""
    [worker] = _with(f"--state-dir={folder / 'workers' / 'w-1'}")
    os.kill(worker, signal.SIGKILL)


def test_a_cluster_that_requires_tokens_needs_no_further_steps(port: int, tmp_path: Path) -> None:
    foreign = {"PHALANX_LOOPBACK_OPEN": "false", "PHALANX_TOKEN": "of another cluster"}
    at = Terminal(f"http://127.0.0.1:{port}")
    for _ in range(2):  # the second time with the tokens and credentials of the first
        with up(port, tmp_path, **foreign) as running:
            assert running.line_with("Ctrl-C stops everything.", PATIENCE_S), running.seen
            assert f"export PHALANX_TOKEN=$(cat {tmp_path}/admin.token)" in "".join(running.seen)
            assert at.type("jobs").status != 0
            token = (tmp_path / "admin.token").read_text().strip()
            said = at.type("submit", "--follow", "--", "echo", "hello", PHALANX_TOKEN=token)
            assert said.status == 0, said
    for file in ("admin.token", "join.token"):
        assert (tmp_path / file).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("logged", "short"),
    [
        ("[info     ] leading                        term=1", "leading term=1"),
        ("[warning  ] no answer  why='a  b'", "warning: no answer why='a  b'"),
        ("[info     ] stopped", "stopped"),
    ],
)
def test_log_lines_are_short_on_a_terminal(logged: str, short: str) -> None:
    line = short_log_line(f"2026-01-02T03:04:05.678901Z {logged}")
    assert re.fullmatch(r"\d\d:\d\d:\d\d " + re.escape(short), line)
    assert short_log_line("phalanx: no such file") == "phalanx: no such file"


def test_a_second_server_in_the_same_directory_is_named(port: int, tmp_path: Path) -> None:
    with up(port, tmp_path, "--workers=0") as running:
        assert running.line_with("Ctrl-C stops everything.", PATIENCE_S), running.seen
        said = NOWHERE.type("up", "--workers=0", f"--port={free_port()}", f"--data={tmp_path}")
    assert said.status == 1
    message = f"another server, http://127.0.0.1:{port}, uses {tmp_path}; stop that server"
    assert message in said.out + said.err
