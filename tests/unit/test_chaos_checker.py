"""The checker of `make chaos` finds every violation, and its schedule depends on the seed alone."""

from typing import Any

import pytest
from chaos.checker import JobOutcome, check
from chaos.journal import TaskRun
from chaos.schedule import PlannedJob, schedule


def a_planned(**fields: Any) -> PlannedJob:
    document = {"checkpoint": "all", "restart": "gang", "fence": True, **fields}
    return PlannedJob(0.0, "c-1", document)


def a_run(index: int = 0, attempt: int = 1, **fields: Any) -> TaskRun:
    run = TaskRun(
        task=f"j-1.{index}",
        attempt=attempt,
        worker="w-1",
        devices=(str(index),),
        pid=1,
        world=2,
        resumed=None,
        began_at=10.0 * attempt,
        last_at=10.0 * attempt + 5,
        code=0,
        lines=(),
    )
    return run._replace(**fields)


def an_outcome(
    phase: str = "done",
    attempt: int = 1,
    planned: PlannedJob | None = None,
    cause: str = "job complete",
    events: list[dict[str, Any]] | None = None,
) -> JobOutcome:
    tasks = [{"id": f"j-1.{n}", "attempt": attempt, "state": phase} for n in range(2)]
    view = {"phase": phase, "attempt": attempt, "cause": cause, "tasks": tasks}
    return JobOutcome(planned or a_planned(), "j-1", view, events or [], is_cancelled=False)


def rules(outcome: JobOutcome, *runs: TaskRun) -> set[str]:
    return {violation.rule for violation in check([outcome], runs, [{"name": "c-1"}])}


BOTH = (a_run(0), a_run(1))


def test_a_job_that_ended_as_it_should_violates_nothing() -> None:
    assert rules(an_outcome(), *BOTH) == set()


def test_a_lost_job_is_a_violation() -> None:
    lost = an_outcome()._replace(view=None)
    assert rules(lost, *BOTH) == {"acknowledged-jobs-are-kept"}


def test_a_job_that_was_submitted_twice_is_a_violation() -> None:
    [violation] = check([], [], [{"name": "c-1"}, {"name": "c-1"}])
    assert violation.rule == "submitted-once"


def test_a_job_that_failed_without_a_reason_is_a_violation() -> None:
    assert rules(an_outcome("failed"), *BOTH) == {"jobs-end-as-they-should"}


def test_a_job_that_must_fail_and_is_done_is_a_violation() -> None:
    planned = a_planned()._replace(must_fail=True)
    assert rules(an_outcome(planned=planned), *BOTH) == {"jobs-end-as-they-should"}


PARTIAL = "task 0 had finished and task 1 was lost with w-2: on_partial_completion is fail"


@pytest.mark.parametrize(
    ("policy", "code", "expected"),
    [
        ("fail", 0, set()),
        ("fail", None, {"jobs-end-as-they-should"}),
        ("restart", 0, {"jobs-end-as-they-should"}),
    ],
)
def test_a_partly_done_job_may_fail_only_if_it_asked_for_it_and_a_task_was_done(
    policy: str, code: int | None, expected: set[str]
) -> None:
    failed = an_outcome("failed", planned=a_planned(on_partial_completion=policy), cause=PARTIAL)
    failed = failed._replace(view={**(failed.view or {}), "tasks": []})
    assert rules(failed, a_run(0, code=code), a_run(1, code=None)) == expected


def test_a_done_task_whose_process_did_not_end_is_a_violation() -> None:
    assert rules(an_outcome(), a_run(0), a_run(1, code=None)) == {"done-tasks-have-ended"}
    assert rules(an_outcome(), a_run(0)) == {"done-tasks-have-ended"}


def test_an_attempt_that_ran_twice_is_a_violation() -> None:
    twice = a_run(0, began_at=20.0, last_at=21.0)
    assert rules(an_outcome(), *BOTH, twice) == {"attempts-run-once"}


def test_an_attempt_that_the_server_does_not_know_is_a_violation() -> None:
    assert rules(an_outcome(), *BOTH, a_run(0, 2)) == {"attempts-are-known"}


LOST = [{"kind": "TaskFailed", "attempt": 1, "how": "worker-lost"}]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ({"kind": "double", "what": "task"}, "tasks-run-once-at-a-time"),
        ({"kind": "mixed", "other": 1}, "attempts-are-not-mixed"),
    ],
)
def test_attempts_of_a_fenced_job_never_overlap(line: dict[str, Any], rule: str) -> None:
    runs = (*BOTH, a_run(0, 2, lines=(line,)), a_run(1, 2))
    assert rules(an_outcome(attempt=2, events=LOST), *runs) == {rule}
    unfenced = a_planned(fence=False)
    assert rules(an_outcome(attempt=2, planned=unfenced), *runs) == {rule}
    assert rules(an_outcome(attempt=2, planned=unfenced, events=LOST), *runs) == set()


def test_a_shared_device_is_a_violation_by_locks_and_by_times() -> None:
    held = a_run(1, lines=({"kind": "double", "what": "device 1 of w-1"},))
    assert rules(an_outcome(), a_run(0), held) == {"devices-are-not-shared"}
    overlapping = a_run(1, devices=("0",), began_at=12.0)
    assert rules(an_outcome(), a_run(0), overlapping) == {"devices-are-not-shared"}


def test_a_state_of_another_task_or_of_another_stop_is_a_violation() -> None:
    foreign = a_run(1, resumed={"task": "j-1.0", "attempt": 1})
    assert rules(an_outcome(), a_run(0), foreign) == {"checkpoints-are-not-mixed-up"}
    runs = (
        a_run(0, 3, resumed={"task": "j-1.0", "attempt": 1}),
        a_run(1, 3, resumed={"task": "j-1.1", "attempt": 2}),
    )
    assert rules(an_outcome(attempt=3), *runs) == {"a-set-is-from-one-stop"}


def test_a_seed_always_gives_the_same_schedule() -> None:
    one, two, other = (schedule(seed, 600, has_database=True, program=["x"]) for seed in (7, 7, 8))
    assert one == two
    assert one != other
    assert len({fault.kind for fault in one.faults}) > 20
