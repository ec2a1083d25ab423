"""Several jobs in one reservation: reserved together, released together, given back together."""

import pytest
from tests.driver import Driver, spec

from phalanx.core.errors import Conflict
from phalanx.core.events import (
    Accepted,
    CancelRequested,
    Claimed,
    Evicted,
    HoldChanged,
    Placed,
    Placement,
    SpawnFailed,
    WorkerLost,
)
from phalanx.core.model import Assignment, Phase
from phalanx.core.states import State

B, R, RUN = State.BLOCKED, State.RESERVED, State.RUNNING


def placement(driver: Driver, job: str, *workers: str) -> Placement:
    assignments = tuple(Assignment(n, worker) for n, worker in enumerate(workers))
    return Placement(job, driver.job(job).version, assignments)


def two_jobs() -> tuple[Driver, str, str]:
    driver = Driver()
    driver.fleet("a", "b", "c", "d", resources={"gpu": 1000})
    wanted = spec(2, role={"resources": {"gpu": 1}})
    return driver, driver.submit(wanted, "j-1"), driver.submit(wanted, "j-2")


def reserved() -> tuple[Driver, str, str]:
    driver, one, two = two_jobs()
    together = (placement(driver, one, "a", "b"), placement(driver, two, "c", "d"))
    driver.apply(Placed(together))
    return driver, one, two


def together(driver: Driver, job: str) -> tuple[str, ...]:
    reservation = driver.job(job).reservation
    return () if reservation is None else reservation.together


def test_a_group_is_reserved_in_one_commit() -> None:
    driver, one, two = reserved()
    assert driver.states(one) + driver.states(two) == [R] * 4
    assert (together(driver, one), together(driver, two)) == ((two,), (one,))


def test_a_group_of_which_one_job_does_not_fit_is_refused_whole() -> None:
    driver, one, two = two_jobs()
    crowd = (placement(driver, one, "a", "b"), placement(driver, two, "b", "c"))
    driver.refuse(Placed(crowd), Conflict)


def test_a_group_of_which_one_job_cannot_start_is_refused_whole() -> None:
    driver, one, two = two_jobs()
    driver.apply(HoldChanged(two, on_hold=True))
    held = (placement(driver, one, "a", "b"), placement(driver, two, "c", "d"))
    driver.refuse(Placed(held), Conflict)


def test_a_job_is_named_once_in_a_group() -> None:
    driver, one, _ = two_jobs()
    twice = (placement(driver, one, "a", "b"), placement(driver, one, "c", "d"))
    driver.refuse(Placed(twice), Conflict)


def test_no_job_is_released_before_all_agents_of_the_group_have_accepted() -> None:
    driver, one, two = reserved()
    driver.accept(one)
    driver.apply(Accepted(f"{two}.0", 1))
    assert len(driver.gang(one).unreleased()) == 2
    driver.apply(Accepted(f"{two}.1", 1))
    assert not driver.gang(one).unreleased()
    assert not driver.gang(two).unreleased()
    assert together(driver, one) == together(driver, two) == ()


def test_acceptances_of_a_group_are_asked_for_again_after_a_change_of_leader() -> None:
    driver, one, two = reserved()
    driver.accept(one)
    driver.restart()
    driver.accept(two)
    assert len(driver.gang(two).unreleased()) == 2
    driver.accept(one)
    assert not driver.gang(two).unreleased()


def test_a_group_on_one_agent_is_released_at_once() -> None:
    driver = Driver()
    driver.worker("a")
    one, two = driver.submit(spec(2)), driver.submit(spec(1))
    driver.apply(Placed((placement(driver, one, "a", "a"), placement(driver, two, "a"))))
    assert all(task.released for job in (one, two) for task in driver.gang(job).tasks)


def test_a_plain_worker_cannot_claim_before_all_agents_of_the_group_accepted() -> None:
    driver = Driver()
    driver.plain("p")
    driver.fleet("a", "b")
    one, two = driver.submit(spec(1)), driver.submit(spec(2))
    driver.apply(Placed((placement(driver, one, "p"), placement(driver, two, "a", "b"))))
    driver.refuse(Claimed(f"{one}.0", "p"), Conflict)
    driver.accept(two)
    driver.claim(one, 0)
    assert driver.states(one) + driver.states(two) == [RUN, R, R]


def test_the_first_claim_releases_a_group_of_plain_workers() -> None:
    driver = Driver()
    driver.plain("p", "q")
    one, two = driver.submit(spec(1)), driver.submit(spec(1))
    driver.apply(Placed((placement(driver, one, "p"), placement(driver, two, "q"))))
    driver.claim(one, 0)
    assert driver.task(two, 0).released
    driver.claim(two, 0)
    assert driver.phase(two) is Phase.RUNNING


@pytest.mark.parametrize("loss", ["time", "worker", "spawn"])
def test_a_reservation_that_one_job_loses_is_lost_by_all(loss: str) -> None:
    driver, one, two = reserved()
    driver.accept(two)
    if loss == "time":
        driver.apply(Accepted(f"{one}.0", 1))
        driver.advance(30)
    elif loss == "worker":
        driver.apply(WorkerLost("b"))
    else:
        driver.apply(SpawnFailed(f"{one}.1", 1, "no such file"))
    assert driver.states(one) + driver.states(two) == [B] * 4
    assert not any(node.charges for node in driver.cluster.nodes.values())
    assert (driver.job(one).avoid, driver.job(two).avoid) == (("b",), ())
    assert (driver.pending(one).lost_reservations, driver.pending(two).lost_reservations) == (1, 1)
    assert together(driver, one) == together(driver, two) == ()


@pytest.mark.parametrize("cancel", [True, False])
def test_a_job_that_is_stopped_requeues_the_others_of_its_group(cancel: bool) -> None:
    driver, one, two = reserved()
    if cancel:
        driver.apply(CancelRequested(one))
        assert driver.phase(one) is Phase.CANCELLED
    else:
        driver.apply(Evicted(one, by="j-9", why="a test"))
        assert driver.states(one) == [B, B]
    assert driver.states(two) == [B, B]
    assert (
        driver.pending(two).lost_reservations,
        driver.pending(two).not_before <= driver.now,
    ) == (0, True)


def test_after_the_release_each_job_fails_and_restarts_by_itself() -> None:
    driver, one, two = reserved()
    driver.accept(one)
    driver.accept(two)
    driver.start(one)
    driver.start(two)
    driver.fail(one, 0)
    driver.stop(one)
    assert driver.states(one) + driver.states(two) == [B, B, RUN, RUN]
    driver.run(one, "a", "b")
    assert driver.states(one) == [RUN, RUN]


def test_a_worker_lost_by_several_jobs_of_a_group_is_lost_once_by_each() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    one, two = driver.submit(spec(2)), driver.submit(spec(2))
    driver.apply(Placed((placement(driver, one, "a", "b"), placement(driver, two, "a", "b"))))
    driver.apply(WorkerLost("a"))
    assert [driver.pending(job).lost_reservations for job in (one, two)] == [1, 1]
    assert [driver.job(job).avoid for job in (one, two)] == [("a",), ("a",)]
