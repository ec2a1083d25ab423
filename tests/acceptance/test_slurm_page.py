"""The commands on the page for users of Slurm, and those of the recipes, all typed."""

import re
import shlex
from pathlib import Path

import pytest

from tests.acceptance.pages import HOW_TO, blocks, commands
from tests.acceptance.terminal import Server, Terminal, Worker, until

PAGE = (HOW_TO / "slurm.md").read_text("utf-8")
COMMAND = re.compile(r"^\| `(?!phalanx)[^|]* \| .*$", re.MULTILINE)
#: It is on the page as the form of all others; and one that goes on until it is stopped.
_OTHERS = ("phalanx submit", "phalanx top")


def typed_on_the_page() -> list[list[str]]:
    found = [
        command
        for row in COMMAND.findall(PAGE)
        for command in re.findall(r"`(phalanx [^`]+|phalanx submit)`", row)
    ]
    return [shlex.split(each)[1:] for each in found if each not in _OTHERS]


@pytest.fixture
def at(own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.chdir(tmp_path)
    [script] = [block for block in blocks("slurm", "text") if "#PHALANX" in block]
    (tmp_path / "train.sh").write_text(script.replace("--name train ", ""))
    return Terminal(own_server.url)


def test_every_counterpart_of_a_command_of_slurm_works(own_server: Server, at: Terminal) -> None:
    lines = typed_on_the_page()
    assert len(lines) > 25
    at.type("queue", "set", "lab")
    at.type("submit", "--name", "sweep", "--array", "0-9", "--gpu", "9", "--", "x")
    with Worker(own_server.url, "w-1", gpu=1) as worker:
        for words in lines:
            if words[0] == "requeue":
                requeue_running(at, worker, words)
                continue
            if at.type("job", "train").status or _is_over(at):
                assert at.type("submit", "--name", "train", "--gpu", "9", "--", "x").status == 0
            # The job of this test never starts, so nothing waits for it.
            said = at.type(*(word for word in words if word not in ("--wait", "--follow", "-f")))
            assert said.status == 0, (words, said)


def requeue_running(at: Terminal, worker: Worker, words: list[str]) -> None:
    """Only a job that runs can be requeued."""
    assert at.type("cancel", "--name", "train", "--yes").status == 0
    assert at.type("submit", "--name", "train", "--gpu", "1", "--", "x").status == 0
    claim = worker.claim()
    assert at.type(*words).status == 0
    worker.preempted(claim)
    until(lambda: at.type("job", "train", "--json").json["phase"] == "pending")
    assert at.type("cancel", "--name", "train", "--yes").status == 0


def _is_over(at: Terminal) -> bool:
    return at.type("job", "train", "--json").json["phase"] not in ("pending", "starting", "running")


def test_the_recipes_are_accepted(at: Terminal, tmp_path: Path) -> None:
    [script] = blocks("recipes", "text")
    (tmp_path / "train.sh").write_text(script)
    for words in commands("recipes"):
        said = at.type(*words)
        assert said.status == 0, (words, said.err)
    for job in blocks("recipes", "yaml"):
        assert at.type("submit", "-f", "-", stdin=job).status == 0


def test_the_program_that_resumes_runs_on_its_own(tmp_path: Path) -> None:
    [program] = blocks("recipes", "python")
    exec(compile(program, "recipe", "exec"), {})  # noqa: S102
