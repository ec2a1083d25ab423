"""A gang in which one task is done and another is lost: it fails, or starts again as a whole."""

from typing import Any

import pytest
from tests.driver import Driver, spec

from phalanx.core.errors import Invalid, StaleEpoch
from phalanx.core.events import (
    CheckpointSaved,
    Evicted,
    Exited,
    Inventoried,
    Progressed,
    WorkerLost,
)
from phalanx.core.ledger import JobLosses
from phalanx.core.model import Blob, Phase
from phalanx.core.records import DoneTasksRequeued, JobEnded
from phalanx.core.spec.job import PartialCompletion
from phalanx.core.spec.native_form import native
from phalanx.core.spec.validation import job_spec, short_form
from phalanx.core.states import State
from phalanx.plan.state.from_cluster import Translator

B, RUN, DONE, FAILED = State.BLOCKED, State.RUNNING, State.DONE, State.FAILED
STOPPING = State.PREEMPTING
GPU_S = 1000 * 1_000_000


def a_gang(size: int = 3, **fields: Any) -> tuple[Driver, str]:
    driver = Driver()
    driver.fleet("a", "b", "c", "d", resources={"gpu": 1000})
    role = {"resources": {"gpu": 1}, **fields.pop("role", {})}
    job = driver.submit(spec(size, role=role, **fields))
    driver.run(job, *"abcd"[:size])
    return driver, job


def save(driver: Driver, job: str, index: int, blob: str) -> None:
    task = driver.task(job, index)
    driver.apply(CheckpointSaved(task.id, task.epoch, Blob(blob, 10)))


def evict(driver: Driver, job: str) -> None:
    driver.apply(Evicted(job, by="eve", why="a test"))


def checkpoints(driver: Driver, job: str) -> list[str | None]:
    tasks = [task for key, task in sorted(driver.tasks.items()) if key[0] == job]
    return [None if task.checkpoint is None else task.checkpoint.id for task in tasks]


def why_it_ended(driver: Driver, job: str) -> str:
    [ended] = [r for r in driver.records if isinstance(r, JobEnded) and r.job == job]
    assert str(driver.job(job).cause) == ended.why
    return ended.why


# The field


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "fail"),
        ({"checkpoint": "each"}, "restart"),
        ({"checkpoint": "all"}, "restart"),
        ({"checkpoint": "all", "restart": "never"}, "fail"),
        ({"checkpoint": "all", "on_partial_completion": "fail"}, "fail"),
        ({"on_partial_completion": "restart"}, "restart"),
    ],
)
def test_a_job_restarts_by_default_if_it_declares_a_checkpoint(
    fields: dict[str, Any], expected: str
) -> None:
    job = spec(2, **fields)
    assert job.on_partial_completion == expected
    assert ("on_partial_completion" in native(job)) == ("on_partial_completion" in fields)


def test_a_job_that_never_restarts_cannot_ask_for_a_restart() -> None:
    with pytest.raises(Invalid, match="is restart, but restart is never; write fail"):
        spec(restart="never", on_partial_completion="restart")


def test_the_short_form_fails_as_ever() -> None:
    assert short_form({"command": "x"}).on_partial_completion is PartialCompletion.FAIL


# fail


def test_a_lost_task_beside_a_done_one_fails_the_job_and_its_end_says_why() -> None:
    driver, job = a_gang(max_retries=9)
    driver.exit(job, 0)
    driver.apply(WorkerLost("b"))
    driver.stop(job)
    assert driver.states(job) == [DONE, FAILED, FAILED]
    assert why_it_ended(driver, job) == (
        "task 0 had finished and task 1 was lost with b: on_partial_completion is fail"
    )


def test_the_end_of_an_evicted_gang_says_why() -> None:
    driver, job = a_gang()
    driver.exit(job, 0)
    driver.exit(job, 2)
    evict(driver, job)
    driver.stop(job)
    assert why_it_ended(driver, job) == (
        "tasks 0, 2 had finished and the gang was stopped (a test): on_partial_completion is fail"
    )


# restart


def restarting(**fields: Any) -> tuple[Driver, str]:
    return a_gang(on_partial_completion="restart", **fields)


def test_the_whole_gang_runs_again_with_the_done_task() -> None:
    driver, job = restarting()
    driver.exit(job, 0)
    driver.apply(WorkerLost("b"))
    assert driver.states(job) == [DONE, State.PREEMPTED, STOPPING]
    driver.restart()
    for worker in "acd":
        driver.inventory(worker)
    driver.stop(job)
    assert driver.states(job) == [B, B, B]
    assert driver.job(job).failures == 1
    [requeued] = [r for r in driver.records if isinstance(r, DoneTasksRequeued)]
    assert requeued.tasks == (0,)
    assert driver.run(job, "a", "c", "d") == 2
    driver.refuse(Exited(f"{job}.0", 1, 0), StaleEpoch)
    for index in range(3):
        driver.exit(job, index)
    assert driver.phase(job) is Phase.DONE


def test_an_eviction_costs_no_retry() -> None:
    driver, job = restarting()
    driver.exit(job, 0)
    evict(driver, job)
    driver.stop(job)
    assert driver.states(job) == [B, B, B]
    assert driver.job(job).failures == 0


def test_the_last_retry_fails_the_job_for_its_cause() -> None:
    driver, job = restarting(max_retries=1)
    driver.exit(job, 0)
    driver.fail(job, 1)
    driver.stop(job)
    assert driver.states(job) == [DONE, FAILED, FAILED]
    assert why_it_ended(driver, job) == "task 1 exited with code 1 on b"


def test_a_gang_whose_other_tasks_finish_while_they_stop_is_done() -> None:
    driver, job = restarting(complete_when="worker")
    driver.exit(job, 0)
    evict(driver, job)
    for index in (1, 2):
        driver.exit(job, index)
    assert driver.phase(job) is Phase.DONE


def test_a_device_that_a_done_task_left_is_free_until_the_gang_starts_again() -> None:
    driver, job = restarting()
    driver.exit(job, 0)
    other = driver.submit(spec(role={"resources": {"gpu": 1}}))
    driver.run(other, "a")
    evict(driver, job)
    driver.stop(job)
    driver.run(job, "b", "c", "d")
    assert driver.states(other) == [RUN]


def test_an_elastic_gang_starts_again_with_its_minimum() -> None:
    driver, job = restarting(role={"min": 2})
    driver.exit(job, 0)
    driver.apply(WorkerLost("b"))
    driver.stop(job)
    driver.place(job, "c", "d", tasks=[0, 1])
    driver.accept(job)
    driver.start(job)
    driver.exit(job, 0)
    driver.exit(job, 1)
    assert driver.phase(job) is Phase.DONE


def test_a_role_that_completes_the_job_is_repeated_with_the_others() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    roles = {"prepare": {"command": "x"}, "train": {"command": "x"}}
    fields = {"complete_when": "train", "on_partial_completion": "restart"}
    job = driver.submit(job_spec({"roles": roles} | fields))
    driver.run(job, "a", "b")
    driver.exit(job, 0)
    driver.fail(job, 1)
    assert driver.states(job) == [B, B]
    driver.run(job, "a", "b")
    driver.exit(job, 1)
    driver.stop(job)
    assert driver.phase(job) is Phase.DONE


# Tasks that restart alone


def test_a_task_that_restarts_alone_leaves_done_tasks_as_they_are() -> None:
    driver, job = restarting(restart="task", match="once-satisfied")
    driver.exit(job, 0)
    driver.fail(job, 1)
    assert driver.states(job) == [DONE, B, RUN]


def test_a_gang_that_cannot_continue_without_its_done_tasks_repeats_them() -> None:
    driver, job = restarting(restart="task")
    driver.exit(job, 0)
    driver.fail(job, 1)
    driver.stop(job)
    assert driver.states(job) == [B, B, B]


def test_a_set_that_was_saved_without_a_repeated_task_is_dropped() -> None:
    fields = {"restart": "task", "checkpoint": "all", "role": {"min": 3}, "max_retries": 9}
    driver, job = restarting(size=4, **fields)
    driver.exit(job, 0)
    evict(driver, job)
    for index in (1, 2, 3):
        save(driver, job, index, f"b-{index}")
    driver.stop(job)
    assert driver.states(job) == [DONE, B, B, B]
    assert checkpoints(driver, job) == [None, "b-1", "b-2", "b-3"]
    driver.run(job, "b", "c", "d")
    driver.exit(job, 1)
    evict(driver, job)
    driver.stop(job)
    assert driver.states(job) == [B] * 4
    assert checkpoints(driver, job) == [None] * 4


# Checkpoints


def test_with_all_the_gang_resumes_from_the_last_set_that_includes_the_done_task() -> None:
    driver, job = restarting(checkpoint="all")
    evict(driver, job)
    for index in range(3):
        save(driver, job, index, f"old-{index}")
    driver.stop(job)
    driver.run(job, "a", "b", "c")
    driver.exit(job, 0)
    evict(driver, job)
    save(driver, job, 1, "new-1")
    save(driver, job, 2, "new-2")
    driver.stop(job)
    assert driver.states(job) == [B, B, B]
    assert checkpoints(driver, job) == ["old-0", "old-1", "old-2"]
    assert all(task.saved is None for task in driver.tasks.values())


def test_with_each_every_task_keeps_the_state_that_it_saved_last() -> None:
    driver, job = restarting(checkpoint="each")
    evict(driver, job)
    for index in range(3):
        save(driver, job, index, f"old-{index}")
    driver.stop(job)
    driver.run(job, "a", "b", "c")
    driver.exit(job, 0)
    evict(driver, job)
    save(driver, job, 1, "new-1")
    driver.stop(job)
    assert checkpoints(driver, job) == ["old-0", "new-1", "old-2"]


# Lost work


def losses(driver: Driver, job: str) -> JobLosses:
    lost = driver.job(job).losses
    assert lost is not None
    return lost


def test_the_work_of_a_repeated_task_is_lost_up_to_its_end() -> None:
    driver, job = restarting(checkpoint="all")
    driver.advance(100)
    driver.exit(job, 0)
    driver.advance(60)
    driver.apply(WorkerLost("b"))
    driver.stop(job)
    assert losses(driver, job).total.gpu // GPU_S == 100 + 160 + 160


def test_work_that_was_saved_before_is_not_lost() -> None:
    driver, job = restarting(checkpoint="each")
    driver.advance(90)
    driver.apply(Progressed(f"{job}.1", 1, step=9, safe=True))
    driver.advance(10)
    driver.exit(job, 0)
    driver.advance(60)
    evict(driver, job)
    driver.advance(5)
    driver.stop(job)
    assert losses(driver, job).total.gpu // GPU_S == 10 + 70 + 70


def test_a_done_task_of_a_job_that_fails_loses_nothing() -> None:
    driver, job = a_gang()
    driver.advance(100)
    driver.exit(job, 0)
    driver.apply(WorkerLost("b"))
    driver.stop(job)
    assert losses(driver, job).total.gpu // GPU_S == 200


# The planner


@pytest.mark.parametrize("restart", ["gang", "task"])
def test_a_gang_that_would_repeat_or_lose_done_tasks_is_not_evicted(restart: str) -> None:
    driver, job = a_gang(restart=restart)
    driver.exit(job, 0)
    views = Translator(driver.cluster.settings)
    running = views.running_gang(driver.gang(job))
    assert running is not None
    assert not running.evictable


def test_a_worker_that_returns_with_the_done_attempt_changes_nothing() -> None:
    driver, job = restarting()
    driver.exit(job, 0)
    driver.apply(WorkerLost("b"))
    driver.stop(job)
    driver.apply(Inventoried("a", "1", ((f"{job}.0", 1),)))
    assert driver.states(job) == [B, B, B]
