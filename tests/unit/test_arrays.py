"""Arrays: elements become jobs through a window, end one by one, and can be retried."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.driver import Driver, spec

from phalanx.core.array import WINDOW
from phalanx.core.errors import Conflict, Invalid, LimitReached, Unknown
from phalanx.core.events import (
    CancelRequested,
    CronRequested,
    CronSet,
    ElementsCancelled,
    ElementsRetried,
    Evicted,
    HoldChanged,
    PriorityChanged,
)
from phalanx.core.gang import Gang
from phalanx.core.model import ElementCounts, Phase
from phalanx.core.records import ElementFailed
from phalanx.core.settings import CoreSettings
from phalanx.core.spec.job import JobSpec


def an_array(array: object = "0-3", size: int = 1, **fields: Any) -> JobSpec:
    fields.setdefault("max_retries", 1)
    return spec(size, array=array, **fields)


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.fleet(*(f"w{n}" for n in range(4)))
    return driver


def jobs_of(driver: Driver, array: str) -> list[Gang]:
    return [gang for gang in driver.cluster.gangs.values() if gang.job.array == array]


def pending(driver: Driver, array: str) -> list[str]:
    jobs = (gang.job for gang in jobs_of(driver, array))
    return [job.id for job in jobs if job.phase is Phase.PENDING]


def restart(driver: Driver) -> None:
    driver.restart()
    for name, node in driver.cluster.nodes.items():
        driver.inventory(name, *node.charges)


def finish(driver: Driver, element: str, code: int = 0) -> None:
    driver.run(element, "w0")
    driver.exit(element, 0, code)


def test_elements_are_jobs_that_share_the_specification_of_their_array(driver: Driver) -> None:
    job = driver.submit(an_array("0-2", name="sweep"), owner="ada")
    elements = [gang.job for gang in jobs_of(driver, job)]
    assert [each.id for each in elements] == [f"{job}[0]", f"{job}[1]", f"{job}[2]"]
    assert [each.name for each in elements] == ["sweep[0]", "sweep[1]", "sweep[2]"]
    array = driver.array(job)
    assert all(each.spec is array.job.spec for each in elements)
    assert {each.owner for each in elements} == {"ada"}
    # They are as old as their array, and in order.
    assert [each.created_at - array.job.created_at for each in elements] == [0, 1, 2]
    driver.restart()
    loaded = [gang.job for gang in jobs_of(driver, job)]
    assert all(each.spec is driver.array(job).job.spec for each in loaded)


def test_an_array_is_done_when_all_elements_are_done(driver: Driver) -> None:
    job = driver.submit(an_array("0-1"))
    assert driver.phase(job) is Phase.PENDING
    driver.run(f"{job}[0]", "w0")
    assert driver.phase(job) is Phase.RUNNING
    driver.exit(f"{job}[0]", 0)
    assert driver.phase(job) is Phase.PENDING
    finish(driver, f"{job}[1]")
    assert driver.phase(job) is Phase.DONE
    assert driver.job(job).counts == ElementCounts(done=2)
    assert job not in driver.cluster.gangs
    assert not driver.cluster.loads


def test_an_array_with_a_failed_element_fails_when_the_others_have_ended(driver: Driver) -> None:
    job = driver.submit(an_array("0-2"))
    finish(driver, f"{job}[1]", code=1)
    assert driver.phase(job) is Phase.PENDING
    finish(driver, f"{job}[0]")
    finish(driver, f"{job}[2]")
    assert driver.phase(job) is Phase.FAILED
    assert str(driver.job(job).cause) == "1 of 3 elements failed"
    assert driver.job(job).counts == ElementCounts(done=2, failed=1)
    [failed] = [record for record in driver.records if isinstance(record, ElementFailed)]
    assert (failed.job, failed.index, failed.phase) == (job, 1, Phase.FAILED)


def test_a_large_array_has_only_a_window_of_jobs(driver: Driver) -> None:
    job = driver.submit(an_array("0-9999"))
    assert len(jobs_of(driver, job)) == WINDOW
    assert driver.array(job).element_counts == ElementCounts(pending=10_000)
    driver.run(f"{job}[0]", "w0")
    assert len(pending(driver, job)) == WINDOW
    driver.exit(f"{job}[0]", 0)
    assert driver.array(job).element_counts == ElementCounts(pending=9_999, done=1)
    driver.restart()
    assert driver.array(job).element_counts == ElementCounts(pending=9_999, done=1)
    assert len(pending(driver, job)) == WINDOW


def test_no_more_elements_than_parallel_are_jobs(driver: Driver) -> None:
    job = driver.submit(an_array("0-9%2"))
    assert pending(driver, job) == [f"{job}[0]", f"{job}[1]"]
    driver.run(f"{job}[1]", "w0")
    assert len(jobs_of(driver, job)) == 2
    driver.exit(f"{job}[1]", 0)
    assert pending(driver, job) == [f"{job}[0]", f"{job}[2]"]


def test_elements_are_gangs_that_are_retried_alone(driver: Driver) -> None:
    job = driver.submit(an_array("5,7", size=2, max_retries=2))
    driver.run(f"{job}[5]", "w0", "w1")
    driver.fail(f"{job}[5]", 0)
    driver.stop(f"{job}[5]")
    assert driver.phase(f"{job}[5]") is Phase.PENDING
    driver.run(f"{job}[5]", "w0", "w1")
    driver.exit(f"{job}[5]", 0)
    driver.exit(f"{job}[5]", 1)
    assert driver.phase(f"{job}[5]") is Phase.DONE
    assert driver.job(f"{job}[5]").epoch == 2


def test_elements_begin_when_the_dependencies_of_the_array_are_done(driver: Driver) -> None:
    first = driver.submit(spec())
    job = driver.submit(an_array(after=[first]))
    assert not jobs_of(driver, job)
    finish(driver, first)
    assert len(jobs_of(driver, job)) == 4


def test_elements_of_an_array_whose_dependency_failed_never_ran(driver: Driver) -> None:
    first = driver.submit(spec(max_retries=1))
    job = driver.submit(an_array(after=[first]))
    finish(driver, first, code=1)
    assert driver.phase(job) is Phase.FAILED
    assert driver.job(job).counts == ElementCounts(never_ran=4)


def test_a_job_runs_after_all_elements_of_an_array(driver: Driver) -> None:
    job = driver.submit(an_array("0-1"))
    after = driver.submit(spec(after=[job]))
    finish(driver, f"{job}[0]")
    assert driver.pending(after).after == (job,)
    finish(driver, f"{job}[1]")
    assert driver.pending(after).after == ()


def test_a_job_runs_after_one_element_that_is_no_job_yet(driver: Driver) -> None:
    job = driver.submit(an_array("0-2%1"))
    after = driver.submit(spec(after=[f"{job}[1]"]))
    restart(driver)
    finish(driver, f"{job}[0]")
    assert driver.pending(after).since is None
    finish(driver, f"{job}[1]")
    assert driver.pending(after).since is not None
    later = driver.submit(spec(after=[f"{job}[0]"]))
    assert driver.pending(later).since is not None
    doomed = driver.submit(spec(after=[f"{job}[2]"]))
    driver.apply(ElementsCancelled(job, (2,)))
    assert driver.phase(doomed) is Phase.FAILED
    with pytest.raises(Invalid, match=r"is j-x\[0\], which does not exist"):
        driver.submit(spec(after=["j-x[0]"]))


def test_cancelling_an_array_stops_what_runs_and_ends_the_rest(driver: Driver) -> None:
    job = driver.submit(an_array("0-9%2"))
    finish(driver, f"{job}[0]")
    driver.run(f"{job}[1]", "w0")
    driver.apply(CancelRequested(job, "ada"))
    assert driver.phase(job) is Phase.STOPPING
    restart(driver)
    driver.stop(f"{job}[1]")
    assert driver.phase(job) is Phase.CANCELLED
    assert driver.job(job).counts == ElementCounts(done=1, cancelled=1, never_ran=8)
    assert str(driver.job(job).cause) == "cancelled by ada"


def test_elements_are_cancelled_by_their_index(driver: Driver) -> None:
    job = driver.submit(an_array("0-9%1"))
    driver.apply(ElementsCancelled(job, (0, 3, 4), "ada"))
    counts = driver.array(job).element_counts
    # The first was pending as a job, the others had none.
    assert counts == ElementCounts(pending=7, never_ran=3)
    assert pending(driver, job) == [f"{job}[1]"]
    assert driver.refuse(ElementsCancelled(job, (3,)), Conflict) == (
        f"{job}[3] is cancelled; an element that has ended is not cancelled"
    )
    driver.refuse(ElementsCancelled(job, (12,)), Unknown)
    plain = driver.submit(spec())
    assert "is not an array" in driver.refuse(ElementsCancelled(plain, (0,)), Conflict)


def test_hold_and_priority_reach_the_elements_that_come_later(driver: Driver) -> None:
    job = driver.submit(an_array("0-2%1"))
    driver.apply(PriorityChanged(job, 7))
    driver.apply(HoldChanged(job, on_hold=True))
    assert driver.job(f"{job}[0]").on_hold
    driver.apply(ElementsCancelled(job, (0,)))
    assert not jobs_of(driver, job)
    driver.apply(HoldChanged(job, on_hold=False))
    [element] = jobs_of(driver, job)
    assert (element.job.index, element.job.priority, element.job.on_hold) == (1, 7, False)


def test_failed_elements_are_retried_in_a_running_array(driver: Driver) -> None:
    job = driver.submit(an_array("0-2"))
    after = driver.submit(spec(after=[job]))
    finish(driver, f"{job}[1]", code=1)
    driver.apply(ElementsRetried(job, by="ada"))
    assert driver.job(f"{job}[1]").phase is Phase.PENDING
    assert driver.run(f"{job}[1]", "w0") == 2  # attempts are counted on
    driver.exit(f"{job}[1]", 0)
    finish(driver, f"{job}[0]")
    finish(driver, f"{job}[2]")
    assert driver.phase(job) is Phase.DONE
    assert driver.pending(after).since is not None


def test_an_array_that_has_ended_begins_again_with_its_failed_elements(driver: Driver) -> None:
    job = driver.submit(an_array("0-2", name="sweep"))
    finish(driver, f"{job}[0]")
    finish(driver, f"{job}[1]", code=1)
    finish(driver, f"{job}[2]")
    blocks = tuple(block for key, block in driver.elements.items() if key[0] == job)
    retry = ElementsRetried(job, row=driver.job(job), blocks=blocks)
    other = driver.submit(spec(name="sweep"))
    assert "the name of the unfinished job" in driver.refuse(retry, Invalid)
    finish(driver, other)
    driver.apply(retry)
    assert driver.array(job).element_counts == ElementCounts(pending=1, done=2)
    restart(driver)
    finish(driver, f"{job}[1]")
    assert driver.phase(job) is Phase.DONE
    assert driver.job(job).counts == ElementCounts(done=3)


def test_only_elements_that_have_ended_are_retried(driver: Driver) -> None:
    job = driver.submit(an_array("0-2"))
    assert driver.refuse(ElementsRetried(job), Conflict) == (
        f"array {job} has no element that ended without success"
    )
    assert "is pending; only" in driver.refuse(ElementsRetried(job, (1,)), Conflict)
    finish(driver, f"{job}[1]")
    driver.apply(ElementsRetried(job, (1,)))
    assert f"{job}[1]" in pending(driver, job)


def test_attempts_beyond_a_byte_are_counted_on(driver: Driver) -> None:
    job = driver.submit(an_array("0-1", max_retries=1))
    for attempt in range(1, 301):
        assert driver.run(f"{job}[0]", "w0") == attempt
        driver.fail(f"{job}[0]", 0)
        driver.apply(ElementsRetried(job, (0,)))


def test_an_array_counts_as_many_jobs_as_it_has_unfinished_elements() -> None:
    driver = Driver(CoreSettings(namespace_jobs=10, namespace_tasks=15))
    driver.fleet("w0")
    with pytest.raises(LimitReached, match="11 more would exceed the limit of 10"):
        driver.submit(an_array("0-10"))
    with pytest.raises(LimitReached, match="tasks"):
        driver.submit(an_array("0-7", size=2))
    job = driver.submit(an_array("0-9"))
    with pytest.raises(LimitReached):
        driver.submit(spec())
    finish(driver, f"{job}[4]")
    driver.submit(spec())


def test_a_run_of_a_cron_can_be_an_array(driver: Driver) -> None:
    schedule = {"cron": "0 * * * *", "concurrency": "replace", "keep": {"done": 0}}
    driver.apply(CronSet(an_array("0-1", name="nightly", schedule=schedule)))
    driver.apply(CronRequested("default/nightly"))
    [first] = [run.job for run in driver.crons["default/nightly"].runs]
    assert driver.array(first).job.cron == "default/nightly"
    driver.run(f"{first}[0]", "w0")
    driver.apply(CronRequested("default/nightly"))
    assert driver.phase(first) is Phase.STOPPING
    driver.stop(f"{first}[0]")
    assert driver.phase(first) is Phase.CANCELLED
    driver.advance(1)
    [second] = [run.job for run in driver.crons["default/nightly"].unfinished]
    finish(driver, f"{second}[0]")
    finish(driver, f"{second}[1]")
    assert driver.phase(second) is Phase.DONE


def test_an_array_is_not_requeued_as_a_whole(driver: Driver) -> None:
    job = driver.submit(an_array())
    assert "name an element, like" in driver.refuse(Evicted(job, "ada", "why"), Conflict)


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 300), st.sampled_from(["", "%1", "%3", "%300"]))
def test_any_order_of_starts_and_ends_runs_each_element_once(
    seed: int, size: int, parallel: str
) -> None:
    """The driver checks the invariants of the window after every event."""
    chance = random.Random(seed)  # noqa: S311
    driver = Driver()
    driver.worker("w0")
    job = driver.submit(an_array(f"0-{size - 1}{parallel}"))
    runs: list[str] = []
    for _ in range(40):
        if job not in driver.cluster.gangs:
            break
        waiting = pending(driver, job)
        running = [g.job.id for g in jobs_of(driver, job) if g.job.phase is Phase.RUNNING]
        if waiting and chance.random() < 0.6:
            element = chance.choice(waiting)
            driver.run(element, "w0")
            runs.append(element)
        elif running:
            driver.exit(chance.choice(running), 0, chance.choice((0, 0, 1)))
        if chance.random() < 0.1:
            restart(driver)
    assert len(runs) == len(set(runs))
