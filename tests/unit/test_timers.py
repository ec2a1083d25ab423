"""Every rule about time survives a change of leader, and late timers change nothing."""

from collections.abc import Callable

import pytest
from tests.driver import Driver, spec

from phalanx.core.events import (
    Accepted,
    BackoffEnded,
    Event,
    Evicted,
    LongRunDue,
    RegroupDue,
    ReservationExpired,
    ScheduleTimedOut,
    Shrunk,
    StallDue,
    Started,
    StartTimedOut,
    StopTimedOut,
    TimeLimitReached,
)
from phalanx.core.model import Phase
from phalanx.core.reasons import own_reason
from phalanx.core.states import State

B, R, RUN = State.BLOCKED, State.RESERVED, State.RUNNING
STOPPING, STOPPED, FAILED = State.PREEMPTING, State.PREEMPTED, State.FAILED


def a_fleet() -> Driver:
    driver = Driver()
    driver.fleet("a", "b")
    return driver


def accepting() -> tuple[Driver, str]:
    driver = a_fleet()
    job = driver.submit(spec(2))
    driver.place(job, "a", "b")
    return driver, job


def starting() -> tuple[Driver, str]:
    driver, job = accepting()
    driver.accept(job)
    driver.apply(Started(f"{job}.0", 1))
    return driver, job


def running(**fields: str) -> tuple[Driver, str]:
    driver = a_fleet()
    job = driver.submit(spec(2, role=None, **fields))
    driver.run(job, "a", "b")
    return driver, job


def stopping() -> tuple[Driver, str]:
    driver, job = running()
    driver.apply(Evicted(job, by="j-9", why="a test"))
    return driver, job


def shrinking() -> tuple[Driver, str]:
    driver = a_fleet()
    job = driver.submit(spec(2, role={"min": 1}))
    driver.run(job, "a", "b")
    driver.apply(Shrunk(job, (1,), by="j-9"))
    return driver, job


def limited() -> tuple[Driver, str]:
    return running(time_limit="45s")


def stalling() -> tuple[Driver, str]:
    return running(stall_after="45s")


def pending() -> tuple[Driver, str]:
    driver = a_fleet()
    return driver, driver.submit(spec(2, schedule_timeout="45s"))


def short() -> tuple[Driver, str]:
    driver, job = running(restart="task", match="waiting-and-running")
    driver.fail(job, 0)
    return driver, job


#: How to get there, how many seconds it takes, and the states before and after.
Situation = tuple[Callable[[], tuple[Driver, str]], int, list[State], list[State]]

SITUATIONS: dict[str, Situation] = {
    "acceptance": (accepting, 30, [R, R], [B, B]),
    "start": (starting, 30, [RUN, R], [STOPPING, STOPPED]),
    "stop": (stopping, 45, [STOPPING, STOPPING], [B, B]),
    "shrink": (shrinking, 45, [RUN, STOPPING], [RUN, B]),
    "time limit": (limited, 45, [RUN, RUN], [STOPPING, STOPPING]),
    "stall": (stalling, 45, [RUN, RUN], [STOPPED, STOPPING]),
    "schedule time-out": (pending, 45, [B, B], [State.CANCELLED, State.CANCELLED]),
    "regroup": (short, 600, [B, RUN], [B, STOPPING]),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_it_happens_in_its_time(name: str) -> None:
    situation, seconds, before, after = SITUATIONS[name]
    driver, job = situation()
    driver.advance(seconds - 1)
    assert driver.states(job) == before
    driver.advance(1)
    assert driver.states(job) == after


@pytest.mark.parametrize("name", SITUATIONS)
def test_it_happens_after_a_change_of_leader(name: str) -> None:
    situation, seconds, before, after = SITUATIONS[name]
    driver, job = situation()
    driver.restart()
    assert driver.states(job) == before
    driver.advance(seconds)
    assert driver.states(job) == after


@pytest.mark.parametrize("name", SITUATIONS)
def test_it_happens_after_many_changes_of_leader_and_a_long_outage(name: str) -> None:
    situation, seconds, before, after = SITUATIONS[name]
    driver, job = situation()
    driver.restart()
    driver.now += 3600 * 1_000_000
    driver.restart()
    driver.restart()
    assert driver.states(job) == before
    for _ in range(seconds + 1):
        if driver.states(job) == before:
            driver.advance(1)
    assert driver.states(job) == after


@pytest.mark.parametrize("name", ["acceptance", "start", "stop", "shrink", "stall"])
def test_workers_have_their_whole_time_again_after_an_outage(name: str) -> None:
    situation, seconds, before, _ = SITUATIONS[name]
    driver, job = situation()
    driver.now += 3600 * 1_000_000
    driver.restart()
    driver.advance(seconds - 1)
    assert driver.states(job) == before


@pytest.mark.parametrize("name", ["time limit", "schedule time-out", "regroup"])
def test_the_time_of_a_job_goes_on_without_a_leader(name: str) -> None:
    situation, seconds, before, after = SITUATIONS[name]
    driver, job = situation()
    driver.now += (seconds - 10) * 1_000_000
    driver.restart()
    driver.advance(9)
    assert driver.states(job) == before
    driver.advance(1)
    assert driver.states(job) == after


def test_a_backoff_ends_after_a_change_of_leader() -> None:
    driver, job = running()
    driver.fail(job, 0)
    driver.stop(job)
    driver.run(job, "a", "b")
    driver.fail(job, 0)
    driver.stop(job)
    driver.restart()
    assert own_reason(driver.job(job), driver.now) is not None
    [timer] = driver.cluster.timers()
    assert timer.event == BackoffEnded(job)
    assert timer.at == driver.pending(job).not_before
    driver.now = timer.at
    assert driver.apply(timer.event).replan
    assert own_reason(driver.job(job), driver.now) is None


def test_a_time_limit_replaces_the_cause_of_a_stop_after_a_change_of_leader() -> None:
    driver, job = running(time_limit="40s")
    driver.advance(20)
    driver.apply(Evicted(job, by="j-9", why="a test"))
    driver.restart()
    driver.advance(21)
    driver.stop(job)
    assert driver.phase(job) is Phase.TIMED_OUT


def test_a_task_that_ran_through_the_outage_is_heard_and_not_failed() -> None:
    driver, job = starting()
    driver.now += 3600 * 1_000_000
    driver.restart()
    driver.apply(Started(f"{job}.1", 1))
    driver.advance(100)
    assert driver.states(job) == [RUN, RUN]


def test_a_quiet_job_needs_no_timers() -> None:
    driver, _ = running(checkpoint="each")
    assert list(driver.cluster.timers()) == []
    driver, job = running()
    assert [timer.event for timer in driver.cluster.timers()] == [LongRunDue(job, 1)]


# Late timers are harmless

LATE: list[Callable[[str], Event]] = [
    BackoffEnded,
    StopTimedOut,
    lambda job: ReservationExpired(job, 1),
    lambda job: StartTimedOut(job, 1),
    lambda job: TimeLimitReached(job, 1),
    lambda job: StallDue(job, 1),
    lambda job: LongRunDue(job, 1),
    lambda job: RegroupDue(job, 5),
    lambda job: ScheduleTimedOut(job, 5),
]


def begun_anew() -> tuple[Driver, str]:
    """A second attempt, with every rule of time declared."""
    driver = a_fleet()
    job = driver.submit(spec(2, time_limit="1h", stall_after="1h", schedule_timeout="1h"))
    driver.run(job, "a", "b")
    driver.fail(job, 0)
    driver.stop(job)
    driver.place(job, "a", "b")
    return driver, job


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("stage", ["reserved", "running", "ended", "unknown"])
def test_a_timer_of_an_earlier_attempt_changes_nothing(
    late: Callable[[str], Event], stage: str
) -> None:
    driver, job = begun_anew()
    if stage != "reserved":
        driver.accept(job)
        driver.start(job)
    if stage == "ended":
        driver.exit(job, 0)
        driver.exit(job, 1)
    changes = driver.apply(late("j-none" if stage == "unknown" else job))
    assert not changes.has_rows


def test_an_acceptance_timer_does_not_touch_a_released_gang() -> None:
    driver, job = accepting()
    driver.accept(job)
    assert not driver.apply(ReservationExpired(job, 1)).has_rows


def test_an_early_stop_timer_leaves_the_stop_its_time() -> None:
    driver, job = stopping()
    assert not driver.apply(StopTimedOut(job)).has_rows


def test_an_early_time_limit_leaves_the_attempt_its_time() -> None:
    driver, job = running(time_limit="45s")
    driver.advance(44)
    assert not driver.apply(TimeLimitReached(job, 1)).has_rows
    assert driver.states(job) == [RUN, RUN]


def test_a_time_limit_counts_from_the_release_and_not_from_the_submission() -> None:
    driver = a_fleet()
    job = driver.submit(spec(2, time_limit="45s"))
    driver.advance(3600)
    driver.run(job, "a", "b")
    driver.advance(44)
    assert not driver.apply(TimeLimitReached(job, 1)).has_rows
    assert driver.states(job) == [RUN, RUN]


def test_timers_set_while_running_are_those_of_a_new_leader() -> None:
    driver, job = accepting()
    driver.apply(Accepted(f"{job}.0", 1))
    changes = driver.apply(Accepted(f"{job}.1", 1))
    driver.restart()
    assert [t.event for t in driver.cluster.timers()] == [t.event for t in changes.timers]
