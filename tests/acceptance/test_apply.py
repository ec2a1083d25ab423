"""`phalanx apply`, with the commands of docs/how-to/queues.md."""

import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.pages import blocks, commands
from tests.acceptance.terminal import PATIENCE_S, SCRIPT, Server, Terminal, environment


@pytest.fixture
def own(own_server: Server) -> Terminal:
    return Terminal(own_server.url)


def names(terminal: Terminal) -> list[str]:
    return [queue["name"] for queue in terminal.type("queues", "--json").json]


def test_the_page_works_as_written(own: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    queues, restricted = blocks("queues", "text")
    file.write_text(queues)
    look, apply, listed, training, moving = (
        own.type(*(str(file) if word == file.name else word for word in words))
        for words in commands("queues")
    )
    assert look.status == apply.status == listed.status == 0
    assert "queue vision (new)" in look.out
    assert "  + limit: gpu 8" in look.out
    assert look.out == apply.out
    assert names(own) == ["batch", "default", "experiments", "ml-training", "research", "vision"]
    assert moving.status == 0
    [experiments] = (q for q in own.type("queues", "--json").json if q["name"] == "experiments")
    assert experiments["consolidation"] is True
    assert "  vision" in listed.out
    again = own.type("apply", "-f", str(file), "--yes")
    assert (again.status, again.out) == (0, "")
    assert training.status == 0
    changed = own.type("apply", "-f", "-", "--yes", stdin=restricted)
    assert changed.out == "queue ml-training\n  - quota: -\n  + quota: gpu 16\n"
    refused = own.type("submit", "--queue", "ml-training", "--namespace", "web", "--", "x")
    assert refused.status != 0
    assert "namespace web may not use queue ml-training" in refused.err


def test_a_change_is_shown_as_a_difference(own: Terminal) -> None:
    own.type("queue", "set", "research", "--quota", "gpu=16")
    text = "{kind: Queue, name: research, weight: 2, quota: {gpu: 16}}"
    said = own.type("apply", "-f", "-", "--yes", stdin=text)
    assert said.out == "queue research\n  - weight: 1\n  + weight: 2\n"


def test_one_invalid_queue_refuses_the_file_and_is_named(own: Terminal) -> None:
    text = "{kind: Queue, name: good}\n---\n{kind: Queue, name: bad, parent: nowhere}\n"
    said = own.type("apply", "-f", "-", "--yes", stdin=text)
    assert said.status == 2
    assert "bad.parent is nowhere, which does not exist" in said.err
    assert names(own) == ["default"]


def test_a_script_without_yes_changes_nothing(own: Terminal) -> None:
    said = own.type("apply", "-f", "-", stdin="{kind: Queue, name: research}")
    assert said.status == 2
    assert "--yes" in said.err
    assert names(own) == ["default"]


@pytest.mark.parametrize(("answer", "there"), [("y", ["default", "lab"]), ("n", ["default"])])
def test_on_a_terminal_the_changes_are_confirmed(
    own: Terminal, tmp_path: Path, answer: str, there: list[str]
) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text("{kind: Queue, name: lab}")
    ours, theirs = pty.openpty()
    with subprocess.Popen(  # noqa: S603
        [SCRIPT, "apply", "-f", str(file)],
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(**own.variables),
    ) as process:
        os.write(ours, f"{answer}\n".encode())
        assert process.wait(PATIENCE_S) == (0 if answer == "y" else 1)
    os.close(ours)
    os.close(theirs)
    assert names(own) == there


def test_a_job_among_the_queues_is_refused(own: Terminal) -> None:
    text = "{kind: Queue, name: lab}\n---\n{roles: {a: {command: x}}}\n"
    said = own.type("apply", "-f", "-", "--yes", stdin=text)
    assert said.status == 2
    assert "the file has a job among the queues; submit the job on its own" in said.err
    assert names(own) == ["default"]
