"""Until the first start a group ends as one; from then on each of its jobs is on its own."""

from typing import Any

import pytest
from tests.driver import Driver, spec

from phalanx.core.events import CancelRequested, Placed, Placement, ScheduleTimedOut
from phalanx.core.model import Assignment, Phase

NAMES = ("one", "two", "three")


def group(**first: Any) -> tuple[Driver, list[str]]:
    """Three jobs, connected only in a row: the first names the second, the third the second."""
    driver = Driver()
    driver.fleet("a", "b", "c")
    near = {"one": ["default/two"], "two": [], "three": ["default/two"]}
    jobs = []
    for name in NAMES:
        fields = first if name == "one" else {}
        jobs.append(driver.submit(spec(name=name, group=near[name], **fields), f"j-{name}"))
    return driver, jobs


def start(driver: Driver, jobs: list[str]) -> None:
    workers = dict(zip(jobs, ("a", "b", "c"), strict=True))
    driver.apply(
        Placed(
            tuple(
                Placement(job, driver.job(job).version, (Assignment(0, workers[job]),))
                for job in jobs
            )
        )
    )
    for job in jobs:
        driver.accept(job)
    for job in jobs:
        driver.start(job)


def phases(driver: Driver, jobs: list[str]) -> list[Phase]:
    return [driver.phase(job) for job in jobs]


def test_a_member_that_is_cancelled_before_the_first_start_fails_the_rest() -> None:
    driver, jobs = group()
    driver.apply(CancelRequested(jobs[0]))
    assert phases(driver, jobs) == [Phase.CANCELLED, Phase.FAILED, Phase.FAILED]
    cause = driver.job(jobs[2]).cause
    assert cause is not None
    assert str(cause).startswith("group member default/")


def test_a_member_that_reaches_its_schedule_timeout_times_the_rest_out() -> None:
    driver, jobs = group(schedule_timeout="60s")
    driver.advance(61)
    assert phases(driver, jobs) == [Phase.TIMED_OUT] * 3


def test_it_does_not_matter_which_job_names_the_other() -> None:
    for ends in range(3):
        driver, jobs = group()
        driver.apply(CancelRequested(jobs[ends]))
        assert all(driver.job(job).verdict is not None for job in jobs)


def test_a_member_that_ends_after_the_first_start_ends_alone() -> None:
    driver, jobs = group()
    start(driver, jobs)
    driver.apply(CancelRequested(jobs[0]))
    driver.stop(jobs[0])
    assert phases(driver, jobs) == [Phase.CANCELLED, Phase.RUNNING, Phase.RUNNING]


def test_a_member_that_fails_after_the_first_start_fails_alone() -> None:
    driver, jobs = group(max_retries=1)
    start(driver, jobs)
    driver.fail(jobs[0], 0)
    assert phases(driver, jobs) == [Phase.FAILED, Phase.RUNNING, Phase.RUNNING]


def test_a_member_that_is_requeued_after_the_first_start_does_not_end_with_the_group() -> None:
    driver, jobs = group()
    start(driver, jobs)
    driver.fail(jobs[1], 0)
    assert driver.phase(jobs[1]) is Phase.PENDING
    driver.apply(CancelRequested(jobs[0]))
    driver.stop(jobs[0])
    assert driver.phase(jobs[1]) is Phase.PENDING


def test_a_job_of_the_same_name_in_another_namespace_is_no_member() -> None:
    driver, jobs = group()
    stranger = driver.submit(spec(name="two", namespace="elsewhere"))
    driver.apply(CancelRequested(jobs[0]))
    assert driver.phase(stranger) is Phase.PENDING


@pytest.mark.parametrize("reload", [True, False])
def test_a_group_is_known_after_a_change_of_leader(reload: bool) -> None:
    driver, jobs = group()
    if reload:
        driver.restart()
    driver.apply(CancelRequested(jobs[2]))
    assert phases(driver, jobs) == [Phase.FAILED, Phase.FAILED, Phase.CANCELLED]


def test_a_job_that_joins_later_is_a_member() -> None:
    driver = Driver()
    one = driver.submit(spec(name="one", group=["default/two"]))
    two = driver.submit(spec(name="two"))
    driver.apply(CancelRequested(one))
    assert driver.phase(two) is Phase.FAILED


def test_a_late_timeout_ends_no_job() -> None:
    driver, jobs = group(schedule_timeout="60s")
    at = driver.job(jobs[0]).times_out_at
    assert at is not None
    start(driver, jobs)
    driver.apply(ScheduleTimedOut(jobs[0], at))
    assert phases(driver, jobs) == [Phase.RUNNING] * 3


def late_comer() -> tuple[Driver, str, str]:
    """A job that runs, and one that names it and was submitted afterwards."""
    driver = Driver()
    driver.fleet("a", "b", "c")
    old = driver.submit(spec(name="old"))
    driver.run(old, "a")
    return driver, old, driver.submit(spec(name="late", group=["default/old"]))


def test_the_end_of_a_member_that_had_started_does_not_end_a_later_member() -> None:
    driver, old, late = late_comer()
    driver.apply(CancelRequested(old))
    driver.stop(old)
    assert phases(driver, [old, late]) == [Phase.CANCELLED, Phase.PENDING]


def test_a_later_member_does_not_end_those_that_had_started() -> None:
    driver, old, late = late_comer()
    driver.apply(CancelRequested(late))
    assert phases(driver, [old, late]) == [Phase.RUNNING, Phase.CANCELLED]
