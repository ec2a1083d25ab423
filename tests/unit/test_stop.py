"""Stopping a gang: causes, timers, verdicts, and what stays occupied."""

from typing import Any

import pytest
from tests.driver import Driver, spec

from phalanx.core.causes import CauseKind
from phalanx.core.errors import Conflict, IllegalTransition, StaleEpoch, Unknown
from phalanx.core.events import (
    CancelRequested,
    Evicted,
    Exited,
    Gone,
    Placed,
    Placement,
    SpawnFailed,
    Started,
    Stopped,
    Vanished,
    WorkerLost,
    WorkerRemoved,
)
from phalanx.core.model import Assignment, Phase
from phalanx.core.records import GangStopped, GangStopping
from phalanx.core.spec.validation import job_spec
from phalanx.core.states import State
from phalanx.core.time_units import SECOND

B, R, RUN = State.BLOCKED, State.RESERVED, State.RUNNING
STOPPING, STOPPED = State.PREEMPTING, State.PREEMPTED
DONE, FAILED, CANCELLED = State.DONE, State.FAILED, State.CANCELLED


def a_running_gang(size: int = 3, **fields: Any) -> tuple[Driver, str]:
    driver = Driver()
    driver.fleet("a", "b", "c", resources={"gpu": 1000})
    job = driver.submit(spec(size, **{"role": {"resources": {"gpu": 1}}, **fields}))
    driver.run(job, "a", "b", "c")
    return driver, job


def evict(driver: Driver, job: str) -> None:
    driver.apply(Evicted(job, by="j-9", why="j-9 needs its place"))


# Causes


def test_an_eviction_stops_all_tasks_and_requeues_the_gang() -> None:
    driver, job = a_running_gang()
    evict(driver, job)
    assert driver.states(job) == [STOPPING] * 3
    driver.stop(job)
    assert driver.states(job) == [B, B, B]
    assert driver.job(job).verdict is None


def test_a_cancelled_gang_is_cancelled_when_its_last_task_has_stopped() -> None:
    driver, job = a_running_gang()
    driver.apply(CancelRequested(job, by="eve"))
    assert driver.phase(job) is Phase.STOPPING
    driver.stop(job)
    assert driver.states(job) == [CANCELLED] * 3
    assert driver.phase(job) is Phase.CANCELLED
    assert str(driver.job(job).cause) == "cancelled by eve"


def test_a_pending_job_is_cancelled_at_once() -> None:
    driver = Driver()
    one, two = driver.submit(spec(1)), driver.submit(spec(2))
    driver.apply(CancelRequested(one))
    driver.apply(CancelRequested(two))
    assert driver.states(one) == [CANCELLED]
    assert driver.states(two) == [CANCELLED, CANCELLED]
    assert str(driver.job(one).cause) == "cancelled"
    assert not driver.cluster.gangs


def test_a_reservation_is_cancelled_at_once() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(2))
    driver.place(job, "a", "b")
    changes = driver.apply(CancelRequested(job))
    assert driver.states(job) == [CANCELLED, CANCELLED]
    assert changes.wake == {"a", "b"}
    assert not any(node.charges for node in driver.cluster.nodes.values())


def test_a_released_task_is_stopped_before_it_is_cancelled() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec())
    driver.place(job, "a")
    driver.apply(CancelRequested(job))
    assert driver.states(job) == [STOPPING]
    driver.stop(job)
    assert driver.states(job) == [CANCELLED]


def test_a_job_that_reaches_its_time_limit_has_timed_out() -> None:
    driver, job = a_running_gang(time_limit="5m")
    driver.advance(299)
    assert driver.states(job) == [RUN] * 3
    driver.advance(1)
    assert driver.states(job) == [STOPPING] * 3
    driver.stop(job)
    assert driver.phase(job) is Phase.TIMED_OUT
    assert driver.states(job) == [FAILED] * 3
    assert driver.job(job).failures == 0
    cause = driver.job(job).cause
    assert cause is not None
    assert (cause.kind, str(cause)) == (
        CauseKind.TIME_LIMIT,
        "exceeded its time limit of 300 s",
    )


def test_every_attempt_has_the_whole_time_limit() -> None:
    driver, job = a_running_gang(time_limit="5m")
    driver.advance(200)
    driver.fail(job, 0)
    driver.stop(job)
    driver.run(job, "a", "b", "c")
    driver.advance(200)
    assert driver.states(job) == [RUN] * 3
    driver.advance(100)
    assert driver.states(job) == [STOPPING] * 3


CAUSES: dict[str, CauseKind] = {
    "eviction": CauseKind.EVICTION,
    "failure": CauseKind.FAILURE,
    "limit": CauseKind.TIME_LIMIT,
    "cancel": CauseKind.CANCEL,
}


def befall(driver: Driver, job: str, what: str) -> None:
    """Begin to stop the gang, or add a cause while it is stopping. The limit is 30 s away."""
    if what == "eviction":
        evict(driver, job)
    elif what == "failure":
        driver.fail(job, 0)
    elif what == "limit":
        driver.advance(31)
    else:
        driver.apply(CancelRequested(job))


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ("eviction", "limit", Phase.TIMED_OUT),
        ("eviction", "cancel", Phase.CANCELLED),
        ("failure", "limit", Phase.TIMED_OUT),
        ("failure", "cancel", Phase.CANCELLED),
        ("limit", "cancel", Phase.CANCELLED),
    ],
)
def test_a_higher_cause_replaces_the_cause_of_a_stop(
    first: str, second: str, verdict: Phase
) -> None:
    driver, job = a_running_gang(time_limit="1m")
    driver.advance(30)
    befall(driver, job, first)
    before = driver.job(job).stopping
    stopping = driver.place_of(job, 2).stopping_at
    befall(driver, job, second)
    raised = driver.job(job).stopping
    assert before is not None
    assert raised is not None
    assert (before.cause.kind, raised.cause.kind) == (CAUSES[first], CAUSES[second])
    assert raised.began_at == before.began_at
    assert driver.place_of(job, 2).stopping_at == stopping
    driver.stop(job)
    assert driver.phase(job) is verdict


def test_a_lower_cause_does_not_replace_the_cause_of_a_stop() -> None:
    driver, job = a_running_gang(time_limit="1m")
    driver.apply(CancelRequested(job, by="eve"))
    driver.advance(40)
    driver.fail(job, 0)
    driver.refuse(Evicted(job, by="j-9", why="a test"), Conflict)
    driver.advance(1)
    before = driver.job(job).stopping
    assert before is not None
    assert before.cause.kind is CauseKind.CANCEL


def test_a_cancelled_job_that_reaches_its_time_limit_stays_cancelled() -> None:
    driver, job = a_running_gang(time_limit="20s")
    driver.apply(CancelRequested(job))
    driver.advance(21)
    driver.stop(job)
    assert driver.phase(job) is Phase.CANCELLED


def test_a_later_cause_does_not_restart_the_timer_of_a_stop() -> None:
    driver, job = a_running_gang()
    evict(driver, job)
    driver.advance(40)
    driver.apply(CancelRequested(job))
    driver.advance(5)
    assert driver.phase(job) is Phase.CANCELLED


def test_a_second_cancel_is_harmless() -> None:
    driver, job = a_running_gang()
    driver.apply(CancelRequested(job, by="eve"))
    assert not driver.apply(CancelRequested(job, by="adam")).has_rows


@pytest.mark.parametrize("event", [CancelRequested("j-1"), Evicted("j-1", by="x", why="y")])
def test_an_ended_job_cannot_be_cancelled_or_evicted(event: Any) -> None:
    driver = Driver()
    driver.worker("a")
    driver.submit(spec(), "j-1")
    driver.run("j-1", "a")
    driver.exit("j-1", 0)
    driver.refuse(event, Unknown)


def test_only_a_job_with_placed_tasks_can_be_evicted() -> None:
    driver = Driver()
    job = driver.submit(spec(2))
    refusal = driver.refuse(Evicted(job, by="j-9", why="a test"), Conflict)
    assert refusal == f"job {job} is pending; only a job with placed tasks can be evicted"


# Stopping


@pytest.mark.parametrize(
    "end",
    [
        Stopped("j-1.0", 1),
        Exited("j-1.0", 1, 0),
        Exited("j-1.0", 1, 1),
        Exited("j-1.0", 1, signal=15, signalled=True),
        Vanished("j-1.0", 1),
        WorkerLost("a"),
        Gone("a", "j-1.0", 1),
    ],
)
def test_however_a_stopping_task_ends_it_has_stopped(end: Any) -> None:
    driver = Driver()
    driver.fleet("a", "b")
    driver.submit(spec(2), "j-1")
    driver.run("j-1", "a", "b")
    evict(driver, "j-1")
    driver.apply(end)
    assert driver.states("j-1") == [STOPPED, STOPPING]
    driver.stop("j-1", 1)
    assert driver.states("j-1") == [B, B]
    assert driver.job("j-1").failures == 0


def test_a_stop_report_of_another_attempt_is_refused() -> None:
    driver, job = a_running_gang()
    evict(driver, job)
    driver.refuse(Stopped(f"{job}.0", 0), StaleEpoch)
    driver.refuse(Stopped(f"{job}.0", 2), StaleEpoch)


def test_a_stop_report_that_was_not_requested_is_refused() -> None:
    driver, job = a_running_gang()
    refusal = driver.refuse(Stopped(f"{job}.0", 1), Conflict)
    assert refusal == f"task {job}.0 is running; no stop was requested"


def test_a_task_that_has_stopped_takes_no_more_reports() -> None:
    driver, job = a_running_gang()
    evict(driver, job)
    driver.stop(job, 0)
    driver.refuse(Stopped(f"{job}.0", 1), Conflict)
    driver.refuse(Exited(f"{job}.0", 1, 0), IllegalTransition)
    driver.refuse(Started(f"{job}.0", 1), IllegalTransition)


def test_a_start_reported_after_the_stop_does_not_revive_the_task() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec())
    driver.place(job, "a")
    evict(driver, job)
    driver.apply(Started(f"{job}.0", 1))
    assert driver.states(job) == [STOPPING]
    assert driver.task(job, 0).started_at == driver.now


def test_a_task_that_could_not_be_spawned_needs_no_stop() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec())
    driver.place(job, "a")
    evict(driver, job)
    driver.apply(SpawnFailed(f"{job}.0", 1, "no such file"))
    assert driver.states(job) == [State.PENDING]
    assert driver.job(job).failures == 0


# Time-outs and what stays occupied


@pytest.mark.parametrize(("grace", "seconds"), [("0s", 45), ("15s", 45), ("16s", 46), ("5m", 330)])
def test_the_stop_timeout_depends_on_the_grace_period(grace: str, seconds: int) -> None:
    driver, job = a_running_gang(grace=grace)
    driver.fail(job, 0)
    driver.advance(seconds - 1)
    assert driver.states(job) == [STOPPED, STOPPING, STOPPING]
    driver.advance(1)
    assert driver.states(job) == [B, B, B]
    assert driver.job(job).failures == 1


def stopped_without_its_worker() -> tuple[Driver, str]:
    driver, job = a_running_gang()
    driver.fail(job, 0)
    driver.stop(job, 1)
    driver.advance(46)
    return driver, job


def test_a_stop_that_timed_out_leaves_its_worker_charged() -> None:
    driver, job = stopped_without_its_worker()
    assert driver.states(job) == [B, B, B]
    assert list(driver.residues) == [(f"{job}.2", 1)]
    free = {name: node.free("gpu") for name, node in driver.cluster.nodes.items()}
    assert free == {"a": 1000, "b": 1000, "c": 0}
    again = tuple(map(Assignment, range(3), "abc"))
    crowded = Placed((Placement(job, driver.job(job).version, again),))
    assert "it has 0 gpu free" in driver.refuse(crowded, Conflict)


def test_a_worker_is_instructed_again_to_stop_a_residue() -> None:
    driver, job = a_running_gang()
    driver.fail(job, 0)
    driver.stop(job, 1)
    [timer] = [t for t in driver.cluster.timers() if t.event.__class__.__name__ == "StopTimedOut"]
    driver.now += 46 * SECOND
    assert driver.apply(timer.event).wake == {"c"}


def test_a_residue_outlives_a_change_of_leader() -> None:
    driver, job = stopped_without_its_worker()
    driver.restart()
    assert driver.cluster.nodes["c"].free("gpu") == 0
    assert (f"{job}.2", 1) in driver.cluster.nodes["c"].charges


def test_a_residue_outlives_its_job() -> None:
    driver, job = stopped_without_its_worker()
    driver.apply(CancelRequested(job))
    assert job not in driver.cluster.gangs
    assert driver.cluster.nodes["c"].free("gpu") == 0
    driver.apply(Gone("c", f"{job}.2", 1))
    assert driver.cluster.nodes["c"].free("gpu") == 1000


def test_a_residue_ends_when_its_worker_reports_that_it_is_gone() -> None:
    driver, job = stopped_without_its_worker()
    assert driver.apply(Gone("c", f"{job}.2", 1)).replan
    assert not driver.residues
    driver.run(job, "a", "b", "c")
    assert driver.states(job) == [RUN] * 3


def test_a_residue_ends_when_its_worker_returns_without_it() -> None:
    driver, job = stopped_without_its_worker()
    driver.inventory("c", (f"{job}.2", 1))
    assert driver.residues
    driver.inventory("c")
    assert not driver.residues
    assert driver.cluster.nodes["c"].free("gpu") == 1000


def test_a_residue_ends_when_an_operator_removes_its_worker() -> None:
    driver, _ = stopped_without_its_worker()
    driver.apply(WorkerRemoved("c"))
    assert not driver.residues
    assert "c" not in driver.cluster.nodes


def test_a_worker_lost_during_a_stop_settles_its_tasks_and_stays_charged() -> None:
    driver, job = a_running_gang()
    driver.fail(job, 0)
    driver.stop(job, 1)
    driver.apply(WorkerLost("c"))
    assert driver.states(job) == [B, B, B]
    assert driver.cluster.nodes["c"].free("gpu") == 0


def test_a_stopped_task_frees_its_worker_before_the_gang_settles() -> None:
    driver, job = a_running_gang()
    driver.fail(job, 0)
    assert driver.cluster.nodes["a"].free("gpu") == 1000
    assert driver.cluster.nodes["b"].free("gpu") == 0
    driver.stop(job, 1)
    assert driver.cluster.nodes["b"].free("gpu") == 1000


def test_a_gone_report_of_an_unknown_attempt_is_refused() -> None:
    driver, job = a_running_gang()
    driver.refuse(Gone("b", f"{job}.0", 1), Unknown)
    driver.refuse(Gone("a", f"{job}.0", 7), Unknown)


# Completion


def with_servers(**fields: Any) -> tuple[Driver, str]:
    """One parameter server that never exits, and two workers whose completion is the job's."""
    driver = Driver()
    driver.fleet("a", "b", "c")
    roles = {"ps": {"command": "serve"}, "worker": {"command": "train", "replicas": 2}}
    job = driver.submit(job_spec({"roles": roles, "complete_when": "worker", **fields}))
    driver.run(job, "a", "b", "c")
    return driver, job


def test_a_job_is_done_with_its_completing_role_while_the_others_still_stop() -> None:
    driver, job = with_servers()
    driver.exit(job, 1)
    assert driver.phase(job) is Phase.RUNNING
    changes = driver.exit(job, 2)
    assert driver.states(job) == [STOPPING, DONE, DONE]
    assert driver.phase(job) is Phase.DONE
    assert driver.job(job).finished_at is None
    assert changes.wake == {"a"}
    driver.exit(job, 0, 143, signalled=True)
    assert driver.states(job) == [DONE, DONE, DONE]
    assert driver.job(job).finished_at == driver.now


@pytest.mark.parametrize("end", ["fails", "times out", "is lost"])
def test_however_the_servers_end_the_job_stays_done(end: str) -> None:
    driver, job = with_servers()
    driver.exit(job, 1)
    driver.exit(job, 2)
    if end == "fails":
        driver.fail(job, 0)
    elif end == "is lost":
        driver.apply(WorkerLost("a"))
    else:
        driver.advance(46)
    assert driver.phase(job) is Phase.DONE
    assert (driver.job(job).failures, driver.job(job).finished_at is None) == (0, False)


def test_a_server_that_exits_well_does_not_complete_the_job() -> None:
    driver, job = with_servers()
    driver.exit(job, 0)
    assert driver.states(job) == [DONE, RUN, RUN]
    assert driver.phase(job) is Phase.RUNNING


def test_workers_that_succeed_after_a_server_failed_complete_the_job() -> None:
    driver, job = with_servers()
    driver.fail(job, 0)
    driver.exit(job, 1)
    driver.exit(job, 2)
    assert driver.phase(job) is Phase.DONE


def test_a_job_is_done_when_all_of_its_tasks_are() -> None:
    driver, job = a_running_gang()
    for index in range(3):
        assert driver.phase(job) is Phase.RUNNING
        driver.exit(job, index)
    assert driver.phase(job) is Phase.DONE
    assert str(driver.job(job).cause) == "job complete"
    assert not any(node.charges for node in driver.cluster.nodes.values())


# The story


def test_a_stop_is_recorded_from_beginning_to_end() -> None:
    driver, job = a_running_gang()
    driver.fail(job, 1)
    driver.advance(2)
    driver.stop(job)
    began = next(r for r in driver.records if isinstance(r, GangStopping))
    stopped = next(r for r in driver.records if isinstance(r, GangStopped))
    assert (began.cause, began.task, began.stopping) == (CauseKind.FAILURE, 1, 2)
    assert began.why == "task 1 exited with code 1 on b"
    assert (began.attempt, stopped.attempt) == (1, 1)
    assert stopped.outcome is Phase.PENDING
    assert stopped.seconds == pytest.approx(2, abs=0.001)
