"""Submissions: names, keys, queues, holds, priorities, and schedule timeouts."""

import pytest
from tests.driver import Driver, spec

from phalanx.core.errors import Conflict, Invalid, Unknown
from phalanx.core.events import (
    CancelRequested,
    Claimed,
    Event,
    Evicted,
    HoldChanged,
    PriorityChanged,
    QueueSet,
    ScheduleTimedOut,
    Submitted,
)
from phalanx.core.model import Phase, Queue
from phalanx.core.records import JobPriorityChanged
from phalanx.core.spec.validation import job_spec
from phalanx.core.states import State
from phalanx.core.time_units import SECOND


def test_a_job_is_kept_as_it_was_submitted() -> None:
    driver = Driver()
    wanted = spec(2, name="train", priority=7, role={"min": 1})
    job = driver.submit(wanted, owner="eve")
    row = driver.job(job)
    assert (row.name, row.spec, row.priority, row.owner) == ("train", wanted, 7, "eve")
    assert (row.phase, row.created_at, row.epoch) == (Phase.PENDING, driver.now, 0)


def test_a_job_without_a_name_is_called_by_its_id() -> None:
    driver = Driver()
    job = driver.submit(spec())
    assert driver.job(job).name == job


def test_tasks_are_numbered_role_by_role() -> None:
    driver = Driver()
    roles = {"ps": {"command": "serve"}, "worker": {"command": "train", "replicas": 2}}
    job = driver.submit(job_spec({"roles": roles}))
    assert [task.role for task in driver.gang(job).tasks] == ["ps", "worker", "worker"]


def test_an_id_is_given_once() -> None:
    driver = Driver()
    driver.submit(spec(), "j-1")
    driver.refuse(Submitted("j-1", spec()), Conflict)


def test_a_name_is_unique_among_the_unfinished_jobs_of_a_namespace() -> None:
    driver = Driver()
    first = driver.submit(spec(name="train"))
    refusal = driver.refuse(Submitted("j-2", spec(name="train")), Invalid)
    assert refusal == (
        f"name is train, the name of the unfinished job {first} in namespace default; "
        "choose another name or cancel that job"
    )
    driver.submit(spec(name="train", namespace="other"))
    driver.apply(CancelRequested(first))
    driver.submit(spec(name="train"))


def test_a_queue_that_does_not_exist_is_refused_with_those_that_do() -> None:
    driver = Driver()
    driver.apply(QueueSet(Queue("research")))
    refusal = driver.refuse(Submitted("j-1", spec(queue="reserch")), Invalid)
    assert refusal == "queue is reserch, which does not exist; the queues are: default, research"


def test_every_problem_of_a_submission_is_named_at_once() -> None:
    driver = Driver()
    driver.submit(spec(name="train"))
    bad = Submitted("j-2", spec(name="train", queue="nowhere", after=["j-8", "j-9"]))
    with pytest.raises(Invalid) as refusal:
        driver.apply(bad)
    assert [problem.path for problem in refusal.value.problems] == [
        "queue",
        "name",
        "after[0]",
        "after[1]",
    ]


def test_a_submission_wakes_the_planner() -> None:
    assert Driver().apply(Submitted("j-1", spec())).replan


# Holds and priorities


def test_a_hold_and_its_end() -> None:
    driver = Driver()
    job = driver.submit(spec())
    driver.apply(HoldChanged(job, on_hold=True, by="eve"))
    assert driver.job(job).on_hold
    assert not driver.apply(HoldChanged(job, on_hold=True)).has_rows
    assert driver.apply(HoldChanged(job, on_hold=False)).replan
    assert not driver.job(job).on_hold


def test_a_change_of_priority_is_on_record() -> None:
    driver = Driver()
    job = driver.submit(spec(priority=1))
    assert driver.apply(PriorityChanged(job, 5, by="eve")).replan
    assert driver.job(job).priority == 5
    record = driver.records[-1]
    assert isinstance(record, JobPriorityChanged)
    assert (record.before, record.after, record.by) == (1, 5, "eve")
    assert not driver.apply(PriorityChanged(job, 5)).has_rows


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (CancelRequested("j-1"), "be cancelled"),
        (HoldChanged("j-1", on_hold=True), "be put on hold"),
        (PriorityChanged("j-1", 3), "change its priority"),
    ],
)
def test_a_done_job_cannot_be_changed(event: Event, what: str) -> None:
    driver = Driver()
    driver.fleet("a", "b")
    roles = {"ps": {"command": "serve"}, "worker": {"command": "train"}}
    driver.submit(job_spec({"roles": roles, "complete_when": "worker"}), "j-1")
    driver.run("j-1", "a", "b")
    driver.exit("j-1", 1)
    assert driver.refuse(event, Conflict) == f"job j-1 is done; a done job cannot {what}"
    driver.exit("j-1", 0)
    driver.refuse(event, Unknown)


# Giving up


def test_a_job_that_is_pending_too_long_has_timed_out() -> None:
    driver = Driver()
    job = driver.submit(spec(2, schedule_timeout="10m"))
    driver.advance(599)
    assert driver.phase(job) is Phase.PENDING
    driver.advance(1)
    assert driver.phase(job) is Phase.TIMED_OUT
    assert driver.states(job) == [State.CANCELLED, State.CANCELLED]
    assert str(driver.job(job).cause) == "not started within 600 s"


def test_a_job_that_has_started_does_not_time_out() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec(schedule_timeout="10m"))
    driver.run(job, "a")
    driver.advance(3600)
    assert driver.phase(job) is Phase.RUNNING


def test_every_pending_period_has_the_whole_timeout() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec(schedule_timeout="10m"))
    driver.advance(500)
    driver.run(job, "a")
    driver.apply(Evicted(job, by="j-9", why="a test"))
    driver.stop(job)
    driver.advance(500)
    assert driver.phase(job) is Phase.PENDING
    driver.advance(101)
    assert driver.phase(job) is Phase.TIMED_OUT


def test_a_lost_reservation_does_not_restart_the_timeout() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(2, schedule_timeout="10m"))
    driver.advance(590)
    driver.place(job, "a", "b")
    driver.advance(29)
    assert driver.phase(job) is Phase.STARTING
    driver.advance(2)
    assert driver.phase(job) is Phase.TIMED_OUT


def test_backoff_does_not_count_towards_the_timeout() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(2, schedule_timeout="100s", backoff="50s"))
    for _ in range(2):
        driver.place(job, "a", "b")
        driver.advance(31)
    driver.advance(80)
    assert driver.phase(job) is Phase.PENDING
    driver.advance(10)
    assert driver.phase(job) is Phase.TIMED_OUT


def test_backoff_after_a_failure_does_not_count_towards_the_timeout() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec(schedule_timeout="20s"))
    for _ in range(2):
        driver.run(job, "a")
        driver.fail(job, 0)
    driver.advance(29)
    assert driver.phase(job) is Phase.PENDING
    driver.advance(1)
    assert driver.phase(job) is Phase.TIMED_OUT


def test_time_before_the_dependencies_are_done_does_not_count() -> None:
    driver = Driver()
    first = driver.submit(spec())
    job = driver.submit(spec(schedule_timeout="1m", after=[first]))
    driver.advance(600)
    assert driver.phase(job) is Phase.PENDING
    driver.apply(Claimed(f"{first}.0"))
    driver.exit(first, 0)
    driver.advance(59)
    assert driver.phase(job) is Phase.PENDING
    driver.advance(1)
    assert driver.phase(job) is Phase.TIMED_OUT


def test_an_early_or_outdated_timeout_changes_nothing() -> None:
    driver = Driver()
    job = driver.submit(spec(schedule_timeout="1m"))
    since = driver.now
    at = since + 60 * SECOND
    assert not driver.apply(ScheduleTimedOut(job, at)).has_rows
    driver.now += 61 * SECOND
    assert not driver.apply(ScheduleTimedOut(job, at - 1)).has_rows
    driver.apply(ScheduleTimedOut(job, at))
    assert driver.phase(job) is Phase.TIMED_OUT
