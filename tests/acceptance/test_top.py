"""`phalanx top` on a terminal: its keys, and what it shows at 80 columns."""

from typing import Any

import pytest

from phalanx.cli.top_screen import ClusterOverview, TopScreen
from phalanx.core.model import Phase
from phalanx.wire.jobs import JobView
from tests.acceptance.terminal import Screen, Server, Terminal, Worker


def job(name: str, phase: Phase, **fields: object) -> JobView:
    given: dict[str, Any] = {
        "id": f"j-{name}",
        "name": name,
        "namespace": "default",
        "queue": "default",
        "phase": phase,
        "size": 1,
        "priority": 0,
        "created_at": "2026-11-16T08:00:00Z",
        "attempt": 0,
        "failures": 0,
    }
    return JobView(**given | fields)


@pytest.fixture
def screen() -> TopScreen:
    jobs = [
        job("old", Phase.PENDING, priority=5, queue="lab"),
        job("new", Phase.RUNNING, created_at="2026-11-16T09:00:00Z"),
        job("mid", Phase.PENDING, created_at="2026-11-16T08:30:00Z"),
    ]
    return TopScreen(ClusterOverview([], [], jobs))


def names(screen: TopScreen) -> list[str]:
    return [each.name for each in screen.jobs()]


def test_s_changes_the_order(screen: TopScreen) -> None:
    orders = []
    for _ in range(5):
        orders.append(names(screen))
        screen.press("s")
    assert orders == [
        ["new", "old", "mid"],  # phase
        ["new", "mid", "old"],  # newest first
        ["old", "new", "mid"],  # priority
        ["new", "mid", "old"],  # queue
        ["mid", "new", "old"],  # name
    ]
    assert names(screen) == orders[0]


def test_the_filter_takes_all_keys_until_enter_or_escape(screen: TopScreen) -> None:
    for key in ("/", "q", "backspace", "l", "a", "b", "enter"):
        screen.press(key)
    assert (names(screen), screen.is_over) == (["old"], False)
    screen.press("escape")
    assert len(names(screen)) == 3


def test_the_selection_stays_within_the_list_and_opens_the_logs(screen: TopScreen) -> None:
    screen.press("enter")
    assert screen.logs_of is None, "no job is selected"
    for key in ("down", "down", "j", "j", "up"):
        screen.press(key)
    assert screen.selected == "j-old"
    screen.press("enter")
    assert screen.logs_of == "j-old"
    screen.press("q")
    assert (screen.logs_of, screen.is_over) == (None, False)
    screen.press("q")
    assert screen.is_over


def test_top_has_keys_on_a_terminal(own_server: Server) -> None:
    at = Terminal(own_server.url)
    with Worker(own_server.url, "w-1", gpu=1) as worker:
        running = at.type("submit", "--name", "first", "--gpu", "1", "--", "x").out.strip()
        claim = worker.claim()
        worker.write(claim, "hello from the task\n")
        waiting = at.type("submit", "--name", "second", "--gpu", "1", "--", "x").out.strip()
        array = at.type("submit", "--name", "many", "--array", "0-2", "--", "x").out.strip()
        with Screen(at, "top", "-i", "0.2") as screen:
            for shown in (running, waiting, "RUNNING", "PENDING", "FAIR SHARE", "q quit"):
                screen.until(shown)
            screen.press("/second\n")
            screen.until("filter second")
            screen.press("\x1b[B\r")
            screen.until(f"output of {waiting}")
            screen.until("no output yet")
            screen.press("q/first\n\x1b[Bl")
            screen.until("hello from the task")
            screen.press("q/many\n\x1b[B\r")
            screen.until(f"elements of {array}")
            screen.until(f"{array}[2]  pending")
            screen.press("qq")
            assert screen.ended() == 0
