"""The commands of the tutorial, and the blocks of the Python reference."""

import contextlib
import io
import os
import re
import shlex
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from phalanx import Client
from tests.acceptance.terminal import (
    PATIENCE_S,
    SCRIPT,
    Following,
    Server,
    Terminal,
    Worker,
    until,
)
from tests.ports import free_port

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = DOCS / "tutorial.md"
#: The pause of the tutorial's program in each step. Here it is longer until the test goes on, so
#: that the job does not end before the test requeues it.
PAUSE = "time.sleep(0.1)"
HELD = "time.sleep(1 if __import__('os').path.exists('held') else 0.1)"
REFERENCE = DOCS / "reference" / "python.md"


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def at(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A user in an empty folder, with the package's programs on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(SCRIPT).parent}{os.pathsep}{os.environ['PATH']}")
    return Terminal(f"http://127.0.0.1:{port}")


def wait_for_an_attempt(at: Terminal, job: str) -> None:
    until(lambda: at.type("job", job, "--json").json["attempt"] > 0)


def test_the_tutorial_works_as_written(at: Terminal, port: int, tmp_path: Path) -> None:
    [program] = blocks(TUTORIAL, "python")
    assert PAUSE in program
    (tmp_path / "train.py").write_text(program.replace(PAUSE, HELD))
    first, *lines = "".join(blocks(TUTORIAL, "sh")).splitlines()
    begun, *words = shlex.split(first)
    assert (begun, words[0]) == ("phalanx", "up")
    process = at.start(*words, f"--port={port}", f"--data={tmp_path / 'data'}")
    with Following(process) as running:
        assert running.line_with("Ctrl-C stops everything.", PATIENCE_S), running.seen
        said: dict[str, str] = {}
        for line in lines:
            assert line.startswith("phalanx ")
            if "requeue" in line:  # a user is never so quick
                wait_for_an_attempt(at, line.split()[-1])
            else:
                (tmp_path / "held").unlink(missing_ok=True)
            if "--name moved" in line:
                (tmp_path / "held").touch()
            answer = at.type(*shlex.split(line)[1:])
            assert answer.status == 0, (line, answer)
            said[line] = answer.out
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    output, reason, *_ = [
        block for block in blocks(TUTORIAL, "text") if "rank" in block or "never fits" in block
    ]
    assert set(output.splitlines()) <= set(said["phalanx logs -f first"].splitlines())
    assert reason.strip() in said["phalanx why large"]
    moved = said["phalanx logs -f moved"].splitlines()
    assert {f"worker/{n} | rank {n} stops at step 50" for n in range(2)} <= set(moved)


def test_the_blocks_of_the_python_reference_run_in_order(tmp_path: Path) -> None:
    printed = io.StringIO()
    names: dict[str, Any] = {}
    before = signal.getsignal(signal.SIGTERM)
    try:
        with Server(tmp_path) as server, Worker(server.url, "w-1", gpu=4) as worker:
            for block in blocks(REFERENCE, "python"):
                running = threading.Thread(target=run_later, args=(worker, names.get("client")))
                if "asyncio.run(" in block:
                    running.start()
                elif "client.wait(" in block:
                    run_whole(worker, names["job"].id)
                code = compile(block.replace("http://127.0.0.1:8080", server.url), "page", "exec")
                with contextlib.redirect_stdout(printed):
                    exec(code, names)  # noqa: S102
                if running.ident is not None:  # it uses the client a moment longer than the block
                    running.join()
            names["client"].close()
    finally:
        signal.signal(signal.SIGTERM, before)  # the page asks whether it should stop
    told = printed.getvalue()
    assert "3 1 roles.worker.command" in told
    assert "done 4\n" in told
    assert "'roles.worker.replicas'" in told
    assert "not_found there is no job j-nosuch" in told
    assert "0 1 0 0\n" in told


def run_later(worker: Worker, client: Client) -> None:
    """Run whatever comes until the job `later` is done."""
    name = ""
    while name != "later":
        claim = worker.claim()
        worker.end(claim)
        name = client.get(claim["gang_id"]).name


def run_whole(worker: Worker, job: str) -> None:
    """Run whatever comes until all four tasks of the job are done."""
    left = 4
    while left:
        claim = worker.claim()
        worker.end(claim)
        left -= claim["gang_id"] == job
