"""`restart: task`: only failed tasks are requeued if the match policy allows it; else the gang is
placed again as a whole."""

from typing import Any

import pytest
from tests.driver import Driver, spec

from phalanx.core.causes import CauseKind
from phalanx.core.errors import Conflict
from phalanx.core.events import (
    Accepted,
    Evicted,
    Placed,
    Placement,
    Started,
    StartTimedOut,
    WorkerLost,
)
from phalanx.core.model import Assignment, Phase
from phalanx.core.spec.validation import job_spec
from phalanx.core.states import State
from phalanx.core.time_units import SECOND

B, R, RUN = State.BLOCKED, State.RESERVED, State.RUNNING
STOPPING, STOPPED, DONE, FAILED = State.PREEMPTING, State.PREEMPTED, State.DONE, State.FAILED

ALONE = ["waiting-and-running", "waiting-running-succeed", "once-satisfied"]


def a_running_gang(match: str = "waiting-and-running", **fields: Any) -> tuple[Driver, str]:
    driver = Driver()
    driver.fleet("a", "b", "c", "d")
    job = driver.submit(spec(3, restart="task", match=match, **fields))
    driver.run(job, "a", "b", "c")
    return driver, job


@pytest.mark.parametrize("match", ALONE)
def test_only_the_failed_task_is_requeued(match: str) -> None:
    driver, job = a_running_gang(match)
    driver.fail(job, 1)
    assert driver.states(job) == [RUN, B, RUN]
    assert driver.phase(job) is Phase.RUNNING
    assert driver.job(job).stopping is None


@pytest.mark.parametrize("match", ALONE)
def test_it_is_placed_alone_under_a_new_epoch_of_its_own(match: str) -> None:
    driver, job = a_running_gang(match)
    driver.fail(job, 1)
    assert driver.run(job, "d") == 2
    assert driver.states(job) == [RUN, RUN, RUN]
    assert [task.epoch for task in driver.gang(job).tasks] == [1, 2, 1]


def test_such_a_failure_counts() -> None:
    driver, job = a_running_gang(max_retries=3)
    for failures in (1, 2):
        driver.fail(job, 1)
        assert driver.job(job).failures == failures
        driver.advance(400)
        driver.run(job, "b")
    driver.fail(job, 1)
    assert driver.states(job) == [STOPPING, STOPPED, STOPPING]
    driver.stop(job)
    assert driver.phase(job) is Phase.FAILED


def test_tasks_that_failed_together_count_once_and_are_requeued_together() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(3, restart="task", match="waiting-and-running"))
    driver.run(job, "a", "a", "b")
    driver.apply(WorkerLost("a"))
    assert driver.states(job) == [B, B, RUN]
    assert driver.job(job).failures == 1


def test_later_repairs_wait_for_their_backoff() -> None:
    driver, job = a_running_gang()
    driver.fail(job, 1)
    driver.run(job, "b")
    driver.fail(job, 1)
    assert driver.pending(job).not_before == driver.now + 10 * SECOND


def test_with_only_waiting_a_gang_is_placed_as_a_whole_again() -> None:
    driver, job = a_running_gang("only-waiting")
    driver.fail(job, 1)
    assert driver.states(job) == [STOPPING, STOPPED, STOPPING]
    driver.stop(job)
    assert driver.states(job) == [B, B, B]
    assert driver.job(job).failures == 1
    assert driver.run(job, "a", "b", "c") == 2


def test_placing_it_whole_waits_for_the_same_backoff() -> None:
    driver, job = a_running_gang("only-waiting")
    driver.fail(job, 1)
    driver.stop(job)
    driver.run(job, "a", "b", "c")
    driver.fail(job, 1)
    driver.stop(job)
    assert driver.pending(job).not_before == driver.now + 10 * SECOND


def test_done_tasks_count_only_if_the_match_policy_says_so() -> None:
    driver, job = a_running_gang("waiting-and-running")
    driver.exit(job, 0)
    driver.fail(job, 1)
    assert driver.states(job) == [DONE, STOPPED, STOPPING]
    driver.stop(job)
    assert driver.states(job) == [DONE, FAILED, FAILED]
    driver, job = a_running_gang("waiting-running-succeed")
    driver.exit(job, 0)
    driver.fail(job, 1)
    assert driver.states(job) == [DONE, B, RUN]
    driver.run(job, "b")
    driver.exit(job, 1)
    driver.exit(job, 2)
    assert driver.phase(job) is Phase.DONE


def test_a_gang_above_its_minimum_loses_a_task_without_a_deadline() -> None:
    driver, job = a_running_gang("only-waiting", role={"min": 2})
    driver.fail(job, 1)
    assert driver.states(job) == [RUN, B, RUN]
    assert driver.attempt_of(job).short_since is None
    driver.advance(3600)
    assert driver.states(job) == [RUN, B, RUN]


def test_a_gang_below_its_minimum_for_ten_minutes_is_placed_again_as_one() -> None:
    driver, job = a_running_gang()
    driver.fail(job, 1)
    driver.advance(599)
    assert driver.states(job) == [RUN, B, RUN]
    driver.advance(1)
    assert driver.states(job) == [STOPPING, B, STOPPING]
    stopping = driver.job(job).stopping
    assert stopping is not None
    assert (stopping.cause.kind, str(stopping.cause)) == (
        CauseKind.REGROUP,
        "below its minimum for 10 minutes",
    )
    driver.stop(job)
    assert driver.states(job) == [B, B, B]
    assert driver.job(job).failures == 1
    assert driver.pending(job).not_before <= driver.now


def test_a_repair_in_time_stops_that_clock() -> None:
    driver, job = a_running_gang()
    driver.fail(job, 1)
    driver.advance(500)
    driver.run(job, "b")
    assert driver.attempt_of(job).short_since is None
    driver.advance(500)
    assert driver.states(job) == [RUN, RUN, RUN]


def test_a_repair_that_runs_and_ends_in_one_step_stops_that_clock() -> None:
    driver, job = a_running_gang("waiting-running-succeed")
    driver.fail(job, 1)
    driver.place(job, "b")
    driver.exit(job, 1)
    driver.advance(700)
    assert driver.states(job) == [RUN, DONE, RUN]


def test_a_repair_that_is_just_starting_is_not_cut_off() -> None:
    driver, job = a_running_gang()
    driver.fail(job, 1)
    driver.advance(590)
    driver.place(job, "b")
    driver.advance(15)
    driver.start(job)
    assert driver.states(job) == [RUN, RUN, RUN]


def test_if_that_start_fails_the_clock_begins_again() -> None:
    driver, job = a_running_gang()
    driver.fail(job, 1)
    driver.advance(590)
    driver.place(job, "b")
    driver.advance(31)
    assert driver.states(job) == [RUN, B, RUN]
    driver.advance(610)
    assert driver.states(job) == [STOPPING, B, STOPPING]


def test_each_later_failure_does_not_put_the_clock_off() -> None:
    driver, job = a_running_gang(max_retries=9)
    driver.fail(job, 1)
    driver.advance(400)
    driver.place(job, "b")
    driver.apply(StartTimedOut(job, 2))
    driver.advance(210)
    assert driver.phase(job) is Phase.STOPPING


def test_a_gang_that_was_once_satisfied_may_stay_below_its_minimum() -> None:
    driver, job = a_running_gang("once-satisfied")
    driver.fail(job, 0)
    driver.fail(job, 1)
    driver.advance(3600)
    assert driver.states(job) == [B, B, RUN]


def test_once_satisfied_members_are_placed_one_by_one() -> None:
    driver, job = a_running_gang("once-satisfied")
    driver.fail(job, 0)
    driver.fail(job, 1)
    driver.advance(60)
    driver.place(job, "b", tasks=[1])
    assert driver.states(job) == [B, R, RUN]


def test_before_the_first_start_once_satisfied_binds_like_any_other() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(3, restart="task", match="once-satisfied"))
    part = Placement(job, 0, (Assignment(0, "a"), Assignment(1, "b")))
    driver.refuse(Placed((part,)), Conflict)


def test_a_lost_reservation_of_a_repair_leaves_the_running_ones_alone() -> None:
    driver, job = a_running_gang()
    driver.fail(job, 0)
    driver.fail(job, 1)
    driver.advance(30)
    driver.place(job, "a", "b")
    driver.apply(Accepted(f"{job}.0", 2))
    driver.advance(31)
    assert driver.states(job) == [B, B, RUN]
    assert driver.job(job).failures == 2
    assert driver.pending(job).lost_reservations == 1


def test_running_tasks_do_not_wait_forever_for_a_lost_repair() -> None:
    driver, job = a_running_gang()
    driver.fail(job, 0)
    driver.fail(job, 1)
    driver.advance(30)
    driver.place(job, "a", "b")
    driver.advance(600)
    assert driver.states(job) == [B, B, STOPPING]


def test_a_lost_worker_takes_its_repair_and_its_running_task() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(4, restart="task", match="waiting-and-running", max_retries=9))
    driver.run(job, "a", "a", "b", "b")
    driver.fail(job, 0)
    driver.fail(job, 2)
    driver.advance(30)
    driver.place(job, "a", "b")
    driver.apply(WorkerLost("a"))
    assert driver.states(job) == [B, B, B, RUN]
    assert (driver.job(job).failures, driver.pending(job).lost_reservations) == (3, 1)


def test_an_eviction_takes_the_whole_gang() -> None:
    driver, job = a_running_gang()
    driver.apply(Evicted(job, by="j-9", why="a test"))
    assert driver.states(job) == [STOPPING] * 3
    driver.stop(job)
    assert driver.states(job) == [B, B, B]


def test_a_task_that_succeeded_while_stopping_stays_done_if_the_rest_can_continue() -> None:
    driver, job = a_running_gang("waiting-running-succeed")
    driver.apply(Evicted(job, by="j-9", why="a test"))
    driver.exit(job, 0)
    driver.stop(job)
    assert driver.states(job) == [DONE, B, B]
    driver.run(job, "b", "c")
    assert driver.states(job) == [DONE, RUN, RUN]


@pytest.mark.parametrize("match", ["only-waiting", "waiting-and-running"])
def test_it_runs_again_if_the_rest_could_never_start_without_it(match: str) -> None:
    driver, job = a_running_gang(match)
    driver.apply(Evicted(job, by="j-9", why="a test"))
    driver.exit(job, 0)
    driver.stop(job)
    assert driver.states(job) == [B, B, B]
    driver.run(job, "a", "b", "c")
    assert driver.states(job) == [RUN, RUN, RUN]


def test_a_repair_does_not_begin_while_another_is_open() -> None:
    driver, job = a_running_gang("once-satisfied")
    driver.fail(job, 0)
    driver.fail(job, 1)
    driver.advance(30)
    driver.fleet("e")
    driver.plain("p")
    driver.place(job, "p", tasks=[0])
    second = Placement(job, driver.job(job).version, (Assignment(1, "e"),))
    assert "it already has a reservation" in driver.refuse(Placed((second,)), Conflict)


def test_a_gang_whose_tasks_fail_one_by_one_is_pending() -> None:
    driver, job = a_running_gang(max_retries=9)
    for index in range(3):
        driver.fail(job, index)
    assert driver.states(job) == [B, B, B]
    assert driver.phase(job) is Phase.PENDING
    assert driver.attempt_of(job).short_since is None
    driver.advance(700)
    driver.run(job, "a", "b", "c")
    assert driver.phase(job) is Phase.RUNNING


def test_a_role_is_repaired_within_its_own_minimum() -> None:
    driver = Driver()
    driver.fleet("a", "b", "c")
    roles = {"ps": {"command": "serve"}, "worker": {"command": "train", "replicas": 2, "min": 1}}
    job = driver.submit(job_spec({"roles": roles, "restart": "task", "match": "only-waiting"}))
    driver.run(job, "a", "b", "c")
    driver.fail(job, 2)
    assert driver.states(job) == [RUN, RUN, B]
    driver.run(job, "c")
    driver.fail(job, 0)
    assert driver.states(job) == [STOPPED, STOPPING, STOPPING]


def test_a_repaired_task_is_healthy_from_its_own_start() -> None:
    driver, job = a_running_gang()
    driver.fail(job, 1)
    assert driver.attempt_of(job).healthy_since is None
    driver.place(job, "b")
    driver.apply(Started(f"{job}.1", 2))
    assert driver.attempt_of(job).healthy_since == driver.now
