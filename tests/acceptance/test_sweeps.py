"""Sweeps, as the page about them types them: one failing element, retries, parameters, cancels."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.fleet import Fleet
from tests.acceptance.pages import HOW_TO, blocks
from tests.acceptance.terminal import Said, Screen, Terminal, until

NARROW = {"COLUMNS": "80"}
PAGE = (HOW_TO / "sweeps.md").read_text("utf-8")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("sweeps")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with Fleet(folder) as fleet:
            fleet.work("w-1")
            yield fleet


def section(title: str) -> list[list[str]]:
    """The words after `phalanx` of the commands in a section of the page."""
    text = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^phalanx .*$", text, re.MULTILINE)
    return [shlex.split(line)[1:] for line in lines]


def shown(title: str, number: int) -> str:
    """A block of output in a section of the page."""
    text = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    found: str = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[number]
    return masked(found)


def masked(text: str) -> str:
    """Output without ids and times, and with single spaces."""
    text = re.sub(r"j-[0-9a-z]{8}", "ID", text)
    text = re.sub(r"\b\d+[smh]( \d+[smh])?\b", "TIME", text)
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def typed(at: Terminal, words: list[str]) -> Said:
    return at.type(*words, **NARROW)


def test_a_sweep_with_a_failing_element_is_shown_and_retried(fleet: Fleet) -> None:
    at = fleet.terminal
    submit, jobs, job, failed, element, logs, events = section("By index")
    ended = typed(at, submit)
    assert ended.status == 1
    assert "job failed after" in ended.err
    assert "run those that failed again with `phalanx retry sweep --failed`" in ended.err
    listed = typed(at, jobs).out
    assert masked(listed) == shown("By index", 0)
    assert max(map(len, listed.splitlines())) <= 80
    assert masked(typed(at, job).out) == shown("By index", 1)
    assert re.fullmatch(r"ELEMENT .*\nj-\w+\[7\] +failed .*\n", typed(at, failed).out)
    assert "phase        failed: task 0 exited with code 1 on w-1" in typed(at, element).out
    assert typed(at, logs).out == "seed 0\n"
    assert "element 7 failed: task 0 exited with code 1 on w-1" in typed(at, events).out

    Path("fixed").touch()
    retry, report, jobs_again = section("Run the failed elements again")
    array = typed(at, retry).out.strip()
    assert typed(at, report).status == 0
    assert masked(typed(at, jobs_again).out) == shown("Run the failed elements again", 0)
    assert typed(at, ["logs", f"{array}[7]"]).out == "── attempt 2 ──\nseed 7\n"
    assert typed(at, ["jobs", "--json"]).json[-1]["elements"]["done"] == 20


def test_a_grid_of_parameters_has_an_element_for_each_point(fleet: Fleet) -> None:
    submit, jobs = section("By parameters")
    assert typed(fleet.terminal, submit).status == 0
    assert masked(typed(fleet.terminal, jobs).out) == shown("By parameters", 0)
    assert typed(fleet.terminal, ["logs", "grid[4]"]).out == "1e-4 1\n"
    [text] = blocks("sweeps", "yaml")
    planned = fleet.terminal.type("plan", "-f", "-", stdin=text)
    assert "each of 6 elements" in planned.out


def test_elements_are_cancelled_and_explained(fleet: Fleet) -> None:
    submit, cancel, why, cancel_all = section("Stop elements")
    assert typed(fleet.terminal, submit).status == 0
    until(lambda: "2 running" in typed(fleet.terminal, ["jobs", "--name=long"]).out)
    assert "0 of 100 done, 40 never ran, 2 running, 58 pending" in typed(fleet.terminal, cancel).out
    assert "the array runs 2 elements at the same time (parallel)" in typed(fleet.terminal, why).out
    assert typed(fleet.terminal, ["cancel", "long[10]"]).status != 0
    assert typed(fleet.terminal, cancel_all).status == 0
    ended = "2 cancelled, 98 never ran"
    until(lambda: ended in typed(fleet.terminal, ["job", "long"]).out)


def test_a_sweep_is_followed_on_a_terminal(fleet: Fleet) -> None:
    command = ("sh", "-c", "test {index} != 1")
    words = ("submit", "--array=0-3", "--max-retries=1", "--follow", "--", *command)
    with Screen(fleet.terminal, *words) as screen:
        screen.until("element 1 failed: task 0 exited with code 1")
        screen.until("1 of 4 elements failed")


def test_a_sweep_is_run_from_python(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in fleet.terminal.variables.items():
        monkeypatch.setenv(name, value)
    [text] = blocks("sweeps", "python")
    exec(text, {})  # noqa: S102
    assert capsys.readouterr().out == "2 task 0 exited with code 1 on w-1\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--array", "5-3"), "--array has the range 5-3; write the lower index first"),
        (("--array", "0-10000"), "an array has at most 10000"),
        (("--param", "lr"), "--param lr has no values; write NAME=VALUE,VALUE"),
        (("--param", "a-b=1"), "--param is not the name of a parameter"),
        (("--parallel", "2"), "--parallel is for an array; add --array or --param"),
    ],
)
def test_what_is_no_array_is_refused(fleet: Fleet, words: tuple[str, ...], error: str) -> None:
    said = fleet.terminal.type("submit", *words, "--", "true")
    assert (said.status, error in said.err) == (2, True), said
