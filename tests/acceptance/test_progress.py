"""Progress that people see: while a job is followed, in lists, and as a table and a plot."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.client import Client
from tests.acceptance.fleet import Fleet
from tests.acceptance.terminal import Screen

#: Rank 0 makes ten steps in the time in which rank 1 makes one.
TRAIN = r"""
n=0; until [ -e {end} ]; do n=$((n+1))
echo '{{"step": '$((n*(10-9*RANK)))', "total": 10000, "values": {{"loss": '$((9*n%7+1))'}}}}'
sleep 0.1; done >>"$PHALANX_PROGRESS"
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as fleet:
        fleet.work("w-1")
        yield fleet


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_the_progress_of_a_job_is_shown_while_it_runs_and_after_it_ended(
    fleet: Fleet, tmp_path: Path
) -> None:
    command = ("sh", "-c", TRAIN.format(end=tmp_path / "end"))
    words = ("submit", "--name=train", "--gang=2", "--follow", "--", *command)
    narrow = {"COLUMNS": "80"}
    with Screen(fleet.terminal, *words) as screen:
        screen.until(" left, loss ")
        screen.until("rank 1 on w-1 lags by")
        assert re.search(r"running [█░]+ step \d+ of 10000 .* left, loss", plain(screen.seen))

        job = fleet.terminal.type("job", "train", **narrow).out
        assert re.search(
            r"^progress +.*step \d+ of 10000 \(\d+%\), .*, rank 1 on w-1 lags", job, re.MULTILINE
        )
        assert re.search(r"^values +loss [1-7]$", job, re.MULTILINE)

        listed = fleet.terminal.type("jobs", **narrow).out
        assert re.search(r"AGE +PROGRESS\n.* \d+%, .* left$", listed, re.MULTILINE)
        assert "░" in fleet.terminal.type("top", "--once", COLUMNS="120").out
        assert max(map(len, listed.splitlines())) <= 80

        shown = fleet.terminal.type("progress", "train", "loss", **narrow).out
        assert re.search(r"^RANK +WORKER +STEP +RATE +REPORTED +loss$", shown, re.MULTILINE)
        assert re.search(r"^ +1 +w-1 +\d+ ", shown, re.MULTILINE)
        assert re.search(r"^loss of rank 0, by step\n *\d ┤", shown, re.MULTILINE)
        assert max(map(len, shown.splitlines())) <= 80

        (tmp_path / "end").touch()
        screen.until(" after ")
        assert "job done after" in plain(screen.seen)
    ended = fleet.terminal.type("job", "train", **narrow).out
    assert re.search(r"^progress +[█░]+ step \d+ of 10000 \(\d+%\)$", ended, re.MULTILINE)


def test_displays_say_that_no_server_answers_instead_of_showing_old_progress(
    fleet: Fleet, tmp_path: Path
) -> None:
    command = ("sh", "-c", TRAIN.format(end=tmp_path / "end"))
    with Screen(fleet.terminal, "submit", "--name=train", "--follow", "--", *command) as following:
        following.until(" of 10000 ")
        with Screen(fleet.terminal, "wait", "train") as waiting:
            waiting.until(" of 10000 ")
            fleet.server.kill()
            for screen in (following, waiting):
                screen.until("no server answers; waiting up to 60 s")
                assert re.search(r"(\n|\x1b\[2K)no server answers", screen.seen)
                screen.until("waiting for a server for ")
                assert " of 10000 " not in screen.seen.rpartition("waiting for a server for")[2]


def test_a_value_that_was_not_reported_is_an_error_that_lists_the_others(fleet: Fleet) -> None:
    line = '{"step": 1, "total": 2, "values": {"loss": 1, "lr": 2}}'
    submitted = fleet.terminal.type(
        "submit", "--name=short", "--wait", "--", "sh", "-c", f"echo '{line}' >>$PHALANX_PROGRESS"
    )
    assert submitted.status == 0
    said = fleet.terminal.type("progress", "short", "accuracy")
    assert said.status == 2
    assert "has not reported a value accuracy; reported are: loss, lr" in said.err
    with Client(fleet.terminal.variables["PHALANX_SERVER"]) as client:
        progress = client.progress(client.find("short")).progress
    assert progress is not None
    assert (progress.step, progress.total, progress.values) == (1, 2, {"loss": 1.0, "lr": 2.0})
