"""Gathered places of a non-strict gang are charged like tasks, and released when they should be."""

from typing import Any

import pytest
from tests.driver import Driver, spec

from phalanx.core.errors import Conflict
from phalanx.core.events import (
    CancelRequested,
    CordonChanged,
    GangGathered,
    GatheringEnded,
    HoldChanged,
    Placed,
    Placement,
    PriorityChanged,
    WorkerLost,
)
from phalanx.core.model import Assignment, GatheredPlaces, Phase
from phalanx.core.spec.job import JobSpec
from phalanx.core.states import State


def non_strict(replicas: int = 3, **fields: object) -> JobSpec:
    return spec(replicas, role={"resources": {"gpu": 1}}, mode="non-strict", **fields)


def fleet(gpus: int = 1, **fields: object) -> Driver:
    driver = Driver()
    driver.fleet("a", "b", "c", resources={"gpu": gpus * 1000}, **fields)
    return driver


def gathered(driver: Driver, job: str, *places: tuple[int, str]) -> GangGathered:
    assignments = tuple(Assignment(task, worker) for task, worker in places)
    return GangGathered(Placement(job, driver.job(job).version, assignments))


def gatherer(**fields: Any) -> tuple[Driver, str]:
    """A gang of three that has gathered two places."""
    driver = fleet()
    job = driver.submit(non_strict(**fields), "j-1")
    driver.apply(gathered(driver, job, (0, "a"), (1, "b")))
    return driver, job


def charged(driver: Driver) -> dict[str, list[str]]:
    return {
        name: sorted(node.gathered) for name, node in driver.cluster.nodes.items() if node.gathered
    }


def places(driver: Driver, job: str) -> GatheredPlaces:
    gathered = driver.pending(job).gathered
    assert gathered is not None
    return gathered


def test_a_gathered_place_charges_its_worker_like_a_task() -> None:
    driver, job = gatherer()
    assert charged(driver) == {"a": [f"{job}.0"], "b": [f"{job}.1"]}
    node = driver.cluster.nodes["a"]
    assert (node.free("gpu"), node.devices, node.occupants) == (0, [0], 1)
    other = driver.submit(spec(role={"resources": {"gpu": 1}}))
    start = Placement(other, driver.job(other).version, (Assignment(0, "a"),))
    assert "gpu free" in driver.refuse(Placed((start,)), Conflict)


def test_a_gathered_place_takes_a_slot() -> None:
    driver = fleet(gpus=8, slots=1)
    job = driver.submit(non_strict())
    driver.apply(gathered(driver, job, (0, "a")))
    assert "slot is taken" in driver.refuse(gathered(driver, job, (1, "a")), Conflict)


def test_a_gang_that_gathers_more_counts_from_its_first_place() -> None:
    driver, job = gatherer()
    since = places(driver, job).since
    driver.advance(5)
    driver.apply(gathered(driver, job, (2, "c")))
    assert places(driver, job).since == since
    assert [each.worker for each in places(driver, job).places] == ["a", "b", "c"]
    assert driver.phase(job) is Phase.PENDING


def test_a_strict_gang_cannot_gather_places() -> None:
    driver = fleet()
    job = driver.submit(spec(3, role={"resources": {"gpu": 1}}))
    assert "it reserves its whole minimum or nothing" in driver.refuse(
        gathered(driver, job, (0, "a")), Conflict
    )


def test_a_task_gathers_one_place() -> None:
    driver, job = gatherer()
    assert "already has a place" in driver.refuse(gathered(driver, job, (0, "c")), Conflict)
    assert "already has a place" in driver.refuse(
        gathered(driver, job, (2, "c"), (2, "c")), Conflict
    )


def test_a_place_that_is_taken_cannot_be_gathered() -> None:
    driver, _ = gatherer()
    other = driver.submit(non_strict())
    driver.refuse(gathered(driver, other, (0, "c"), (1, "a")), Conflict)
    assert sorted(charged(driver)) == ["a", "b"]  # not even the one that was free


def test_a_place_planned_for_an_earlier_version_is_refused() -> None:
    driver, job = gatherer()
    plan = gathered(driver, job, (2, "c"))
    driver.apply(PriorityChanged(job, 3))
    driver.refuse(plan, Conflict)


def test_a_start_turns_gathered_places_into_reservations() -> None:
    driver, job = gatherer()
    driver.place(job, "a", "b", "c")
    assert not charged(driver)
    assert driver.states(job) == [State.RESERVED] * 3
    assert driver.pending(job).gathered is None


def test_gathered_places_are_released_when_the_planner_says_so() -> None:
    driver, job = gatherer()
    version = driver.job(job).version
    changes = driver.apply(GatheringEnded(job, version, "no gathering gang could ever start"))
    assert not charged(driver)
    assert driver.pending(job).gathered is None
    assert changes.replan
    assert driver.kinds(job)[-1] == "GatheredPlacesReleased"


def test_a_release_planned_for_an_earlier_version_is_refused() -> None:
    driver, job = gatherer()
    version = driver.job(job).version
    driver.apply(gathered(driver, job, (2, "c")))
    driver.refuse(GatheringEnded(job, version, "a test"), Conflict)


def test_a_cancelled_gang_releases_its_places() -> None:
    driver, job = gatherer()
    driver.apply(CancelRequested(job))
    assert not charged(driver)
    assert driver.cluster.nodes["a"].free("gpu") == 1000


def test_a_gang_that_is_put_on_hold_releases_its_places() -> None:
    driver, job = gatherer()
    driver.apply(HoldChanged(job, on_hold=True))
    assert not charged(driver)


@pytest.mark.parametrize("event", [WorkerLost("a"), CordonChanged("a", "broken")])
def test_places_on_a_worker_that_closes_are_lost(
    event: WorkerLost | CordonChanged,
) -> None:
    driver, job = gatherer()
    driver.apply(event)
    assert charged(driver) == {"b": [f"{job}.1"]}
    assert places(driver, job).places == (Assignment(1, "b"),)


def test_a_gang_that_loses_its_last_place_has_gathered_nothing() -> None:
    driver, job = gatherer()
    driver.apply(WorkerLost("a"))
    driver.apply(WorkerLost("b"))
    assert driver.pending(job).gathered is None


def test_gathered_places_survive_a_change_of_leader() -> None:
    driver, job = gatherer()
    before = charged(driver)
    driver.restart()
    assert charged(driver) == before
    assert driver.cluster.nodes["a"].free("gpu") == 0
    assert driver.gang(job).job.pending == driver.job(job).pending


def test_the_gather_timeout_counts_from_the_first_gathered_place() -> None:
    driver = fleet()
    job = driver.submit(non_strict(gather_timeout="60s"))
    driver.advance(300)
    assert driver.phase(job) is Phase.PENDING
    driver.apply(gathered(driver, job, (0, "a")))
    driver.advance(59)
    assert driver.phase(job) is Phase.PENDING
    driver.advance(2)
    assert driver.phase(job) is Phase.TIMED_OUT
    assert not charged(driver)


def test_a_gathering_gang_reaches_its_schedule_timeout_too() -> None:
    driver, job = gatherer(gather_timeout="60s", schedule_timeout="70s")
    driver.advance(30)
    driver.apply(GatheringEnded(job, driver.job(job).version, "a test"))
    driver.restart()
    driver.advance(39)
    assert driver.phase(job) is Phase.PENDING
    driver.advance(2)
    assert driver.phase(job) is Phase.TIMED_OUT


def test_the_gather_timeout_survives_a_change_of_leader() -> None:
    driver, job = gatherer(gather_timeout="60s")
    driver.restart()
    driver.advance(61)
    assert driver.phase(job) is Phase.TIMED_OUT


def test_the_gather_timeout_starts_again_after_places_were_released() -> None:
    driver, job = gatherer(gather_timeout="60s")
    driver.advance(30)
    driver.apply(GatheringEnded(job, driver.job(job).version, "a test"))
    driver.advance(100)
    assert driver.phase(job) is Phase.PENDING
