"""Dependencies: a job is blocked until all have ended, and ends if one ended in the wrong way."""

import pytest
from tests.driver import Driver, spec

from phalanx.core.causes import CauseKind
from phalanx.core.errors import Conflict, Invalid
from phalanx.core.events import (
    CancelRequested,
    Claimed,
    HoldChanged,
    Placed,
    Placement,
    Submitted,
)
from phalanx.core.model import Assignment, Phase
from phalanx.core.spec.validation import job_spec
from phalanx.core.states import State

B, PENDING = State.BLOCKED, State.PENDING


def finish(driver: Driver, job: str, code: int = 0) -> None:
    """Run a job of one task to its end."""
    driver.apply(Claimed(f"{job}.0"))
    driver.exit(job, 0, code)


def test_a_job_with_dependencies_starts_blocked() -> None:
    driver = Driver()
    first = driver.submit(spec())
    job = driver.submit(spec(after=[first]))
    assert driver.states(job) == [B]
    assert driver.pending(job).after == (first,)
    driver.refuse(Claimed(f"{job}.0"), Conflict)


def test_a_job_cannot_be_placed_before_its_dependencies_are_done() -> None:
    driver = Driver()
    driver.worker("a")
    first = driver.submit(spec())
    job = driver.submit(spec(after=[first]))
    early = Placed((Placement(job, 0, (Assignment(0, "a"),)),))
    assert f"it runs after {first}" in driver.refuse(early, Conflict)


def test_a_job_is_pending_when_its_last_dependency_is_done() -> None:
    driver = Driver()
    one, two = driver.submit(spec()), driver.submit(spec())
    job = driver.submit(spec(after=[one, two]))
    finish(driver, two)
    assert driver.pending(job).after == (one,)
    assert driver.states(job) == [B]
    finish(driver, one)
    assert driver.states(job) == [PENDING]
    assert driver.pending(job).since == driver.now
    finish(driver, job)
    assert driver.phase(job) is Phase.DONE


def test_a_chain_of_jobs_becomes_eligible_one_by_one() -> None:
    driver = Driver()
    one = driver.submit(spec())
    two = driver.submit(spec(after=[one]))
    three = driver.submit(spec(after=[two]))
    finish(driver, one)
    assert (driver.states(two), driver.states(three)) == ([PENDING], [B])
    finish(driver, two)
    assert driver.states(three) == [PENDING]
    finish(driver, three)
    assert not driver.cluster.gangs


def test_one_dependency_can_unblock_many_jobs() -> None:
    driver = Driver()
    one = driver.submit(spec())
    jobs = [driver.submit(spec(after=[one])) for _ in range(3)]
    finish(driver, one)
    assert [driver.states(job) for job in jobs] == [[PENDING]] * 3


def test_tasks_of_a_gang_stay_blocked_after_their_dependencies_are_done() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    first = driver.submit(spec())
    job = driver.submit(spec(2, after=[first]))
    finish(driver, first)
    assert driver.states(job) == [B, B]
    driver.run(job, "a", "b")
    assert driver.phase(job) is Phase.RUNNING


def test_a_failed_dependency_fails_its_dependants_transitively() -> None:
    driver = Driver()
    one = driver.submit(spec(max_retries=1))
    two = driver.submit(spec(2, after=[one]))
    three = driver.submit(spec(after=[two]))
    finish(driver, one, 1)
    assert [driver.phase(job) for job in (one, two, three)] == [Phase.FAILED] * 3
    assert driver.states(two) == [State.FAILED, State.FAILED]
    cause = driver.job(three).cause
    assert cause is not None
    assert (cause.kind, cause.by) == (CauseKind.DEPENDENCY, two)
    assert str(cause) == f"dependency {two} failed"
    assert not driver.cluster.gangs
    assert not driver.cluster.dependants


def test_a_dependency_that_is_retried_does_not_fail_its_dependants() -> None:
    driver = Driver()
    one = driver.submit(spec(max_retries=2))
    two = driver.submit(spec(after=[one]))
    finish(driver, one, 1)
    assert driver.states(two) == [B]
    finish(driver, one)
    assert driver.states(two) == [PENDING]


def test_a_cancelled_dependency_fails_its_dependants() -> None:
    driver = Driver()
    one = driver.submit(spec())
    two = driver.submit(spec(after=[one]))
    driver.apply(CancelRequested(one))
    assert driver.phase(two) is Phase.FAILED
    assert str(driver.job(two).cause) == f"dependency {one} was cancelled"


def test_a_timed_out_dependency_fails_its_dependants() -> None:
    driver = Driver()
    one = driver.submit(spec(schedule_timeout="1m"))
    two = driver.submit(spec(after=[one]))
    driver.advance(60)
    assert driver.phase(two) is Phase.FAILED
    assert str(driver.job(two).cause) == f"dependency {one} timed out"


def test_a_dependency_that_reaches_its_time_limit_fails_its_dependants() -> None:
    driver = Driver()
    driver.worker("a")
    one = driver.submit(spec(time_limit="1m"))
    two = driver.submit(spec(after=[one]))
    driver.run(one, "a")
    driver.advance(60)
    driver.stop(one)
    assert driver.phase(one) is Phase.TIMED_OUT
    assert driver.phase(two) is Phase.FAILED


def test_of_two_dependencies_one_failure_is_enough() -> None:
    driver = Driver()
    one, two = driver.submit(spec(max_retries=1)), driver.submit(spec())
    job = driver.submit(spec(after=[one, two]))
    finish(driver, one, 1)
    assert driver.phase(job) is Phase.FAILED
    finish(driver, two)
    assert driver.phase(job) is Phase.FAILED


@pytest.mark.parametrize(
    ("phase", "ended"),
    [
        (Phase.FAILED, "failed"),
        (Phase.CANCELLED, "was cancelled"),
        (Phase.TIMED_OUT, "timed out"),
    ],
)
def test_a_dependency_that_had_failed_before_fails_the_submission_at_once(
    phase: Phase, ended: str
) -> None:
    driver = Driver()
    live = driver.submit(spec())
    job = driver.submit(spec(after=[live, "j-old"]), ended={"j-old": phase})
    assert driver.phase(job) is Phase.FAILED
    assert str(driver.job(job).cause) == f"dependency j-old {ended}"
    assert driver.job(job).finished_at == driver.now
    finish(driver, live)


def test_a_dependency_that_was_already_done_delays_nothing() -> None:
    driver = Driver()
    live = driver.submit(spec())
    one = driver.submit(spec(after=["j-old"]), ended={"j-old": Phase.DONE})
    two = driver.submit(spec(after=["j-old", live]), ended={"j-old": Phase.DONE})
    assert (driver.states(one), driver.states(two)) == ([PENDING], [B])
    assert driver.pending(two).after == (live,)


def test_a_job_that_is_done_while_its_servers_stop_counts_as_done() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    roles = {"ps": {"command": "serve"}, "worker": {"command": "train"}}
    first = driver.submit(job_spec({"roles": roles, "complete_when": "worker"}))
    waiting = driver.submit(spec(after=[first]))
    driver.run(first, "a", "b")
    driver.exit(first, 1)
    assert driver.states(first) == [State.PREEMPTING, State.DONE]
    assert driver.states(waiting) == [PENDING]
    assert driver.states(driver.submit(spec(after=[first]))) == [PENDING]


def test_an_unknown_dependency_is_refused() -> None:
    driver = Driver()
    refusal = driver.refuse(Submitted("j-1", spec(after=["j-9"])), Invalid)
    assert refusal == "after[0] is j-9, which does not exist"


def test_a_job_cannot_depend_on_itself() -> None:
    Driver().refuse(Submitted("j-1", spec(after=["j-1"])), Invalid)


def test_dependencies_are_still_met_after_a_change_of_leader() -> None:
    driver = Driver()
    one = driver.submit(spec())
    two = driver.submit(spec(after=[one]))
    driver.restart()
    finish(driver, one)
    assert driver.states(two) == [PENDING]


def test_a_job_on_hold_stays_on_hold_when_its_dependencies_are_met() -> None:
    driver = Driver()
    one = driver.submit(spec())
    two = driver.submit(spec(after=[one]))
    driver.apply(HoldChanged(two, on_hold=True))
    finish(driver, one)
    assert driver.states(two) == [PENDING]
    driver.refuse(Claimed(f"{two}.0"), Conflict)


def test_cancelling_a_dependant_does_not_affect_its_dependency() -> None:
    driver = Driver()
    one = driver.submit(spec())
    two = driver.submit(spec(after=[one]))
    driver.apply(CancelRequested(two))
    finish(driver, one)
    assert (driver.phase(one), driver.phase(two)) == (Phase.DONE, Phase.CANCELLED)


@pytest.mark.parametrize("code", [0, 1])
def test_a_job_with_afterany_runs_in_whatever_phase_its_dependency_ended(code: int) -> None:
    driver = Driver()
    one = driver.submit(spec(max_retries=1))
    two = driver.submit(spec(afterany=[one]))
    assert driver.states(two) == [B]
    finish(driver, one, code)
    assert driver.states(two) == [PENDING]
    assert not driver.cluster.dependants.get(one)


def test_a_job_with_afternotok_runs_when_its_dependency_has_failed() -> None:
    driver = Driver()
    one = driver.submit(spec(max_retries=1))
    two = driver.submit(spec(afternotok=[one]))
    finish(driver, one, 1)
    assert driver.states(two) == [PENDING]


def test_a_job_with_afternotok_is_cancelled_when_its_dependency_is_done() -> None:
    driver = Driver()
    one = driver.submit(spec())
    two = driver.submit(spec(afternotok=[one]))
    finish(driver, one)
    assert driver.phase(two) is Phase.CANCELLED
    assert str(driver.job(two).cause) == f"not needed: job {one} is done"


def test_dependencies_of_each_kind_are_judged_when_they_had_ended_before() -> None:
    driver = Driver()
    ended = {"j-good": Phase.DONE, "j-bad": Phase.FAILED}
    runs = driver.submit(spec(after=["j-good"], afternotok=["j-bad"]), ended=ended)
    also = driver.submit(spec(afterany=["j-good", "j-bad"]), ended=ended)
    not_needed = driver.submit(spec(afternotok=["j-good"]), ended=ended)
    fails = driver.submit(spec(after=["j-bad"]), ended=ended)
    assert (driver.states(runs), driver.states(also)) == ([PENDING], [PENDING])
    assert driver.phase(not_needed) is Phase.CANCELLED
    assert driver.phase(fails) is Phase.FAILED


def test_a_missing_dependency_is_named_with_its_field() -> None:
    refusal = Driver().refuse(Submitted("j-1", spec(afternotok=["j-9"])), Invalid)
    assert refusal == "afternotok[0] is j-9, which does not exist"


def test_a_job_that_is_a_dependency_of_two_kinds_has_to_meet_both() -> None:
    driver = Driver()
    one = driver.submit(spec())
    two = driver.submit(spec(after=[one], afterany=[one]))
    three = driver.submit(spec(after=[one], afternotok=[one]))
    finish(driver, one)
    assert (driver.states(two), driver.phase(three)) == ([PENDING], Phase.CANCELLED)
    driver.apply(CancelRequested(two))
    assert not driver.cluster.followers
