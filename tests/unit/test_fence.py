"""Fenced jobs, whose attempts never overlap; and workers that shut down."""

from tests.driver import Driver, spec

from phalanx.core.errors import Conflict
from phalanx.core.events import (
    Claimed,
    Gone,
    Placed,
    Placement,
    WorkerLeaving,
    WorkerLost,
    WorkerRegistered,
)
from phalanx.core.model import Assignment, Phase, Protocol
from phalanx.core.states import State


def a_lost_job(*, fence: bool) -> tuple[Driver, str]:
    """A job of one whose worker has just been lost, and another worker."""
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(fence=fence))
    driver.run(job, "a")
    driver.apply(WorkerLost("a"))
    return driver, job


def placing(driver: Driver, job: str, worker: str) -> Placed:
    return Placed((Placement(job, driver.job(job).version, (Assignment(0, worker),)),))


def test_a_fenced_job_is_not_placed_until_its_lost_task_must_have_stopped() -> None:
    driver, job = a_lost_job(fence=True)
    assert "backoff" in driver.refuse(placing(driver, job, "b"), Conflict)
    driver.advance(5.2)
    assert "backoff" in driver.refuse(placing(driver, job, "b"), Conflict)
    driver.advance(0.2)
    driver.run(job, "b")
    assert driver.states(job) == [State.RUNNING]


def test_a_job_without_a_fence_is_placed_again_at_once() -> None:
    driver, job = a_lost_job(fence=False)
    driver.run(job, "b")
    assert driver.states(job) == [State.RUNNING]


def test_a_fenced_job_is_not_placed_while_a_recovered_worker_runs_its_task() -> None:
    driver, job = a_lost_job(fence=True)
    driver.inventory("a", (f"{job}.0", 1))
    driver.advance(60)
    assert "may be alive on a" in driver.refuse(placing(driver, job, "b"), Conflict)
    driver.apply(Gone("a", f"{job}.0", 1))
    driver.run(job, "b")


def test_a_fenced_job_that_was_lost_with_a_plain_worker_awaits_the_end_of_its_task() -> None:
    driver = Driver()
    driver.plain("p", "q")
    job = driver.submit(spec(fence=True))
    driver.apply(Claimed(f"{job}.0", "p"))
    driver.apply(WorkerLost("p"))
    driver.advance(600)
    assert "may be alive on p" in driver.refuse(placing(driver, job, "q"), Conflict)
    assert "may be alive on p" in driver.refuse(Claimed(f"{job}.0", "q"), Conflict)
    driver.apply(Gone("p", f"{job}.0", 1))
    driver.apply(Claimed(f"{job}.0", "q"))


def test_a_worker_that_shuts_down_has_its_jobs_evicted_and_gets_no_others() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(2))
    driver.run(job, "a", "b")
    driver.apply(WorkerLeaving("a"))
    assert driver.states(job) == [State.PREEMPTING, State.PREEMPTING]
    assert not driver.apply(WorkerLeaving("a")).has_rows
    driver.stop(job)
    assert driver.phase(job) is Phase.PENDING
    assert driver.job(job).failures == 0
    lone = driver.submit(spec())
    assert "it is shutting down" in driver.refuse(placing(driver, lone, "a"), Conflict)
    driver.apply(WorkerRegistered("a", "2", Protocol.SYNC, address="a"))
    driver.inventory("a")
    driver.run(lone, "a")
