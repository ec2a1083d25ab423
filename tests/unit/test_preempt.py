"""Preemption: victims stop, and their capacity is kept for the preemptor, in one change."""

import pytest
from tests.driver import Driver, spec

from phalanx.core import causes
from phalanx.core.errors import Conflict
from phalanx.core.events import (
    CancelRequested,
    HoldChanged,
    Nominated,
    Placed,
    Placement,
    PriorityChanged,
    QueueSet,
    Victim,
)
from phalanx.core.model import Assignment, Nomination, Phase, Queue
from phalanx.core.records import CapacityKept, GangStopping, JobEnded, JobEvicted
from phalanx.core.settings import CoreSettings
from phalanx.core.spec.job import JobSpec
from phalanx.core.states import State
from phalanx.core.time_units import SECOND

B, RUN, STOPPING = State.BLOCKED, State.RUNNING, State.PREEMPTING


def gpus(replicas: int, **fields: object) -> JobSpec:
    role: dict[str, object] = {"resources": {"gpu": 1}}
    if "min" in fields:
        role["min"] = fields.pop("min")
    return spec(replicas, role=role, **fields)


def crowded(**victim: object) -> tuple[Driver, str, str]:
    """Two workers of one GPU, both taken by a gang; another gang is pending."""
    driver = Driver()
    driver.fleet("a", "b", resources={"gpu": 1000})
    low = driver.submit(gpus(2, **victim), "j-low")
    driver.run(low, "a", "b")
    high = driver.submit(gpus(2, priority=9, name="urgent"), "j-high")
    return driver, low, high


def start_set(driver: Driver, job: str, *workers: str) -> Placement:
    assignments = tuple(Assignment(n, worker) for n, worker in enumerate(workers))
    return Placement(job, driver.job(job).version, assignments)


def nomination(driver: Driver, preemptor: str, victim: str, *tasks: int) -> Nominated:
    placement = start_set(driver, preemptor, "a", "b")
    return Nominated((placement,), (Victim(victim, driver.job(victim).version, tasks),))


def nominated(**victim: object) -> tuple[Driver, str, str]:
    driver, low, high = crowded(**victim)
    driver.apply(nomination(driver, high, low))
    return driver, low, high


def kept(driver: Driver, job: str) -> Nomination:
    found = driver.pending(job).nomination
    assert found is not None
    return found


def test_a_nomination_and_its_evictions_are_one_change() -> None:
    driver, low, high = crowded()
    changes = driver.apply(nomination(driver, high, low))
    assert driver.states(low) == [STOPPING, STOPPING]
    assert kept(driver, high).assignments == (Assignment(0, "a"), Assignment(1, "b"))
    assert kept(driver, high).victims == ("j-low.0", "j-low.1")
    assert {type(record) for record in changes.records} >= {JobEvicted, CapacityKept}
    assert driver.kinds(low).count("JobEvicted") == 1


def test_the_victim_records_its_preemptor() -> None:
    driver, low, _ = nominated()
    cause = driver.job(low).cause
    assert cause is not None
    assert cause.job == "default/urgent"
    sentence = "task worker preempted by higher-priority job default/urgent"
    assert str(cause) == sentence
    told = [each for each in driver.records if isinstance(each, JobEvicted | GangStopping)]
    assert [(each.why, each.other_job) for each in told] == [(sentence, "default/urgent")] * 2


def test_a_job_that_never_restarts_ends_with_the_name_of_its_preemptor() -> None:
    driver, low, _ = nominated(restart="never")
    driver.stop(low)
    sentence = "task worker preempted by higher-priority job default/urgent"
    assert (driver.phase(low), str(driver.job(low).cause)) == (Phase.FAILED, sentence)
    [end] = [record for record in driver.records if isinstance(record, JobEnded)]
    assert (end.why, end.other_job) == (sentence, "default/urgent")


def test_a_job_of_another_queue_reclaims_and_one_of_equal_priority_is_not_called_higher() -> None:
    driver, low, high = crowded(queue="default")
    driver.apply(PriorityChanged(high, 0))
    driver.apply(nomination(driver, high, low))
    assert str(driver.job(low).cause) == "task worker preempted by job default/urgent"
    driver = Driver()
    driver.apply(QueueSet(Queue("research")))
    driver.fleet("a", "b", resources={"gpu": 1000})
    low = driver.submit(gpus(2))
    driver.run(low, "a", "b")
    high = driver.submit(gpus(2, name="urgent", queue="research"))
    driver.apply(nomination(driver, high, low))
    assert str(driver.job(low).cause) == (
        "task worker reclaimed by job default/urgent of queue research"
    )


@pytest.mark.parametrize(
    "cause",
    [
        causes.preempted(["a", "b"], "ml/x", higher_priority=True),
        causes.reclaimed(["a"], "ml/x", "research"),
        causes.shrunk("ml/x"),
        causes.group_member_ended("ml/x", "timed-out"),
        causes.partly_complete(causes.preempted(["a"], "ml/x", higher_priority=True), [3]),
    ],
)
def test_a_cause_carries_the_job_that_it_names(cause: causes.Cause) -> None:
    assert cause.job == "ml/x"
    hidden = causes.without_job(str(cause), "ml/x", "a job")
    assert "ml/x" in str(cause)
    assert "x" not in hidden


@pytest.mark.parametrize("stale", ["preemptor", "victim"])
def test_a_plan_made_for_an_earlier_version_evicts_no_job(stale: str) -> None:
    driver, low, high = crowded()
    plan = nomination(driver, high, low)
    changed = high if stale == "preemptor" else low
    driver.apply(PriorityChanged(changed, 5))
    driver.refuse(plan, Conflict)
    assert driver.states(low) == [RUN, RUN]
    assert driver.pending(high).nomination is None


def test_one_victim_that_cannot_be_evicted_protects_all_of_them() -> None:
    driver = Driver()
    driver.fleet("a", "b", resources={"gpu": 1000})
    soft, hard = driver.submit(gpus(1)), driver.submit(gpus(1, preemptible=False))
    driver.run(soft, "a")
    driver.run(hard, "b")
    high = driver.submit(gpus(2, priority=9))
    victims = tuple(Victim(job, driver.job(job).version) for job in (soft, hard))
    refusal = driver.refuse(Nominated((start_set(driver, high, "a", "b"),), victims), Conflict)
    assert refusal == f"victim {hard} is not preemptible"
    assert driver.states(soft) + driver.states(hard) == [RUN, RUN]


def test_a_gang_with_stopping_victims_evicts_no_more() -> None:
    driver, _, high = nominated()
    driver.worker("c", resources={"gpu": 1000})
    other = driver.submit(gpus(1))
    driver.run(other, "c")
    refusal = driver.refuse(nomination(driver, high, other), Conflict)
    assert "capacity is already kept for job" in refusal


def test_a_pending_job_is_no_victim() -> None:
    driver, low, high = crowded()
    other = driver.submit(gpus(1))
    driver.refuse(nomination(driver, high, other), Conflict)
    assert driver.states(low) == [RUN, RUN]


def test_an_elastic_victim_gives_up_its_tasks_above_the_minimum() -> None:
    driver, low, high = crowded(min=1)
    driver.apply(nomination(driver, high, low, 1))
    assert driver.states(low) == [RUN, STOPPING]
    assert kept(driver, high).victims == ("j-low.1",)
    assert driver.phase(low) is Phase.RUNNING


def test_an_elastic_victim_shrinks_for_several_jobs_and_is_then_evicted_whole() -> None:
    driver = Driver()
    driver.fleet("a", "b", "c", resources={"gpu": 1000})
    low = driver.submit(gpus(3, min=1), "j-low")
    driver.run(low, "a", "b", "c")
    version = driver.job(low).version
    gives = {"c": (2,), "b": (1,), "a": ()}
    preemptors = {worker: driver.submit(gpus(1, priority=9)) for worker in gives}
    for worker, high in preemptors.items():
        victim = Victim(low, version, gives[worker])
        driver.apply(Nominated((start_set(driver, high, worker),), (victim,)))
        assert kept(driver, high).victims
        driver.now -= 1  # all decisions of a plan are carried out at once
    assert driver.states(low) == [STOPPING, STOPPING, STOPPING]


def test_no_gang_is_shrunk_below_its_minimum() -> None:
    driver, low, high = crowded(min=2)
    refusal = driver.refuse(nomination(driver, high, low, 1), Conflict)
    assert "below its minimum" in refusal
    assert driver.pending(high).nomination is None


def test_a_nomination_ends_with_the_start_it_was_made_for() -> None:
    driver, low, high = nominated()
    driver.stop(low)
    driver.apply(Placed((start_set(driver, high, "a", "b"),)))
    assert driver.pending(high).nomination is None
    assert driver.phase(high) is Phase.STARTING
    assert driver.pending(high).unused_nominations == 0


def test_a_nomination_ends_with_its_preemptor() -> None:
    driver, _, high = nominated()
    driver.apply(CancelRequested(high))
    assert driver.pending(high).nomination is None
    assert driver.phase(high) is Phase.CANCELLED


def test_a_preemptor_that_is_put_on_hold_keeps_no_capacity() -> None:
    driver, _, high = nominated()
    driver.apply(HoldChanged(high, on_hold=True))
    assert driver.pending(high).nomination is None


def test_a_nomination_outlives_the_time_its_victims_have_to_stop() -> None:
    driver, _, high = nominated()
    settings = CoreSettings()
    ahead = kept(driver, high).until - driver.now
    assert ahead == settings.stop_timeout(15 * SECOND) + settings.nomination


def test_unused_capacity_is_released_and_the_pause_doubles() -> None:
    driver, low, high = nominated()
    pauses = []
    for _ in range(4):
        driver.stop(low)
        driver.advance((kept(driver, high).until - driver.now) / SECOND)
        assert driver.pending(high).nomination is None
        pauses.append((driver.pending(high).evicts_from - driver.now) // SECOND)
        driver.run(low, "a", "b")
        driver.apply(nomination(driver, high, low))
    assert pauses == [30, 60, 120, 240]
    assert driver.pending(high).unused_nominations == 4


def test_a_nomination_and_its_end_survive_a_change_of_leader() -> None:
    driver, low, high = nominated()
    before = kept(driver, high)
    driver.restart()
    assert driver.gang(high).job.pending == driver.job(high).pending
    assert driver.pending(high).nomination == before
    driver.inventory("a", (f"{low}.0", 1))
    driver.inventory("b", (f"{low}.1", 1))
    driver.stop(low)
    driver.advance((before.until - driver.now) / SECOND)
    assert driver.pending(high).nomination is None
    assert driver.kinds(high)[-1] == "KeptCapacityReleased"


def test_the_end_of_an_earlier_nomination_does_not_end_a_later_one() -> None:
    driver, low, high = nominated()
    driver.stop(low)
    driver.apply(HoldChanged(high, on_hold=True))
    driver.apply(HoldChanged(high, on_hold=False))
    driver.advance(40)
    driver.run(low, "a", "b")
    driver.apply(nomination(driver, high, low))
    later = kept(driver, high)
    driver.advance(50)  # the first one would have ended by now
    assert driver.pending(high).nomination == later


def test_victims_are_evicted_for_a_whole_group() -> None:
    driver, low, _ = crowded()
    one = driver.submit(gpus(1, name="one", group=["default/two"]), "j-one")
    two = driver.submit(gpus(1, name="two"), "j-two")
    placements = (start_set(driver, one, "a"), start_set(driver, two, "b"))
    driver.apply(Nominated(placements, (Victim(low, driver.job(low).version),)))
    assert kept(driver, one).victims == kept(driver, two).victims
    assert kept(driver, two).assignments == (Assignment(0, "b"),)


def test_the_time_that_a_victim_was_pending_counts_before_all_its_attempts() -> None:
    driver = Driver()
    driver.fleet("a", "b", resources={"gpu": 1000})
    low = driver.submit(gpus(2))
    waited = []
    for seconds in (30, 50):
        driver.advance(seconds)
        driver.run(low, "a", "b")
        attempt = driver.job(low).attempt
        assert attempt is not None
        waited.append(attempt.waited)
        high = driver.submit(gpus(2, priority=9))
        driver.apply(nomination(driver, high, low))
        driver.stop(low)
        driver.apply(CancelRequested(high))
    assert [each // SECOND for each in waited] == [30, 80]
