"""What a non-strict gang has gathered is charged like a task, and given up when it should be."""

from typing import Any

import pytest
from tests.driver import Driver, spec

from phalanx.core.errors import Conflict
from phalanx.core.events import (
    CancelRequested,
    CordonChanged,
    Held,
    HoldChanged,
    HoldsReleased,
    Placed,
    Placement,
    PriorityChanged,
    WorkerLost,
)
from phalanx.core.model import Assignment, Phase
from phalanx.core.spec.job import JobSpec
from phalanx.core.states import State


def gathering(replicas: int = 3, **fields: object) -> JobSpec:
    return spec(replicas, role={"resources": {"gpu": 1}}, mode="non-strict", **fields)


def fleet(gpus: int = 1, **fields: object) -> Driver:
    driver = Driver()
    driver.fleet("a", "b", "c", resources={"gpu": gpus * 1000}, **fields)
    return driver


def held(driver: Driver, job: str, *places: tuple[int, str]) -> Held:
    assignments = tuple(Assignment(task, worker) for task, worker in places)
    return Held(Placement(job, driver.job(job).version, assignments))


def holder(**fields: Any) -> tuple[Driver, str]:
    """A gang of three that holds two places."""
    driver = fleet()
    job = driver.submit(gathering(**fields), "j-1")
    driver.apply(held(driver, job, (0, "a"), (1, "b")))
    return driver, job


def holds(driver: Driver) -> dict[str, list[str]]:
    return {name: sorted(node.holds) for name, node in driver.cluster.nodes.items() if node.holds}


def test_a_hold_charges_its_worker_like_a_task() -> None:
    driver, job = holder()
    assert holds(driver) == {"a": [f"{job}.0"], "b": [f"{job}.1"]}
    node = driver.cluster.nodes["a"]
    assert (node.free("gpu"), node.devices, node.occupants) == (0, [0], 1)
    other = driver.submit(spec(role={"resources": {"gpu": 1}}))
    start = Placement(other, driver.job(other).version, (Assignment(0, "a"),))
    assert "gpu free" in driver.refuse(Placed((start,)), Conflict)


def test_a_hold_takes_a_slot() -> None:
    driver = fleet(gpus=8, slots=1)
    job = driver.submit(gathering())
    driver.apply(held(driver, job, (0, "a")))
    assert "slots are taken" in driver.refuse(held(driver, job, (1, "a")), Conflict)


def test_a_gang_goes_on_gathering_and_counts_from_its_first_hold() -> None:
    driver, job = holder()
    since = driver.job(job).held_since
    driver.advance(5)
    driver.apply(held(driver, job, (2, "c")))
    assert driver.job(job).held_since == since
    assert [hold.worker for hold in driver.job(job).held] == ["a", "b", "c"]
    assert driver.phase(job) is Phase.PENDING


def test_a_strict_gang_holds_nothing() -> None:
    driver = fleet()
    job = driver.submit(spec(3, role={"resources": {"gpu": 1}}))
    assert "it takes its whole minimum or nothing" in driver.refuse(
        held(driver, job, (0, "a")), Conflict
    )


def test_a_task_holds_one_place() -> None:
    driver, job = holder()
    assert "has a place already" in driver.refuse(held(driver, job, (0, "c")), Conflict)
    assert "has a place already" in driver.refuse(held(driver, job, (2, "c"), (2, "c")), Conflict)


def test_a_place_that_is_taken_cannot_be_held() -> None:
    driver, _ = holder()
    other = driver.submit(gathering())
    driver.refuse(held(driver, other, (0, "c"), (1, "a")), Conflict)
    assert sorted(holds(driver)) == ["a", "b"]  # not even the one that was free


def test_a_hold_planned_for_an_earlier_version_is_refused() -> None:
    driver, job = holder()
    plan = held(driver, job, (2, "c"))
    driver.apply(PriorityChanged(job, 3))
    driver.refuse(plan, Conflict)


def test_a_start_turns_holds_into_reservations() -> None:
    driver, job = holder()
    driver.place(job, "a", "b", "c")
    assert not holds(driver)
    assert driver.states(job) == [State.RESERVED] * 3
    assert (driver.job(job).held, driver.job(job).held_since) == ((), None)


def test_holds_are_released_on_the_planners_word() -> None:
    driver, job = holder()
    version = driver.job(job).version
    changes = driver.apply(HoldsReleased(job, version, "nobody who holds could ever start"))
    assert not holds(driver)
    assert driver.job(job).held == ()
    assert changes.replan
    assert driver.kinds(job)[-1] == "GatheredPlacesReleased"


def test_a_release_planned_for_an_earlier_version_is_refused() -> None:
    driver, job = holder()
    version = driver.job(job).version
    driver.apply(held(driver, job, (2, "c")))
    driver.refuse(HoldsReleased(job, version, "a test"), Conflict)


def test_a_cancelled_gang_holds_nothing() -> None:
    driver, job = holder()
    driver.apply(CancelRequested(job))
    assert not holds(driver)
    assert driver.cluster.nodes["a"].free("gpu") == 1000


def test_a_gang_that_is_put_on_hold_gives_its_places_up() -> None:
    driver, job = holder()
    driver.apply(HoldChanged(job, on_hold=True))
    assert not holds(driver)


@pytest.mark.parametrize("event", [WorkerLost("a"), CordonChanged("a", "broken")])
def test_what_is_held_on_a_worker_that_closes_is_not_held_any_more(
    event: WorkerLost | CordonChanged,
) -> None:
    driver, job = holder()
    driver.apply(event)
    assert holds(driver) == {"b": [f"{job}.1"]}
    assert driver.job(job).held == (Assignment(1, "b"),)
    assert driver.job(job).held_since is not None


def test_who_loses_the_last_place_has_held_nothing() -> None:
    driver, job = holder()
    driver.apply(WorkerLost("a"))
    driver.apply(WorkerLost("b"))
    assert (driver.job(job).held, driver.job(job).held_since) == ((), None)


def test_holds_survive_a_change_of_leader() -> None:
    driver, job = holder()
    before = holds(driver)
    driver.restart()
    assert holds(driver) == before
    assert driver.cluster.nodes["a"].free("gpu") == 0
    assert driver.gang(job).job.held == driver.job(job).held


def test_the_patience_of_a_non_strict_gang_counts_from_its_first_hold() -> None:
    driver = fleet()
    job = driver.submit(gathering(schedule_timeout="60s"))
    driver.advance(300)
    assert driver.phase(job) is Phase.PENDING
    driver.apply(held(driver, job, (0, "a")))
    driver.advance(59)
    assert driver.phase(job) is Phase.PENDING
    driver.advance(2)
    assert driver.phase(job) is Phase.TIMED_OUT
    assert not holds(driver)


def test_the_patience_of_a_holder_survives_a_change_of_leader() -> None:
    driver, job = holder(schedule_timeout="60s")
    driver.restart()
    driver.advance(61)
    assert driver.phase(job) is Phase.TIMED_OUT


def test_who_gave_its_places_up_is_patient_again() -> None:
    driver, job = holder(schedule_timeout="60s")
    driver.advance(30)
    driver.apply(HoldsReleased(job, driver.job(job).version, "a test"))
    driver.advance(100)
    assert driver.phase(job) is Phase.PENDING
