"""Checkpoints: saved only on the way out, handed to the next attempt, and never mixed up."""

from typing import Any

import pytest
from tests.driver import Driver, spec

from phalanx.core.errors import Conflict, StaleEpoch
from phalanx.core.events import (
    CancelRequested,
    CheckpointSaved,
    Evicted,
    Progressed,
    Shrunk,
    Started,
    WorkerLost,
)
from phalanx.core.model import Blob, Phase
from phalanx.core.records import CheckpointMissing, TaskCheckpointSaved
from phalanx.core.settings import CoreSettings
from phalanx.core.states import State


def a_gang(policy: str, size: int = 3, **fields: Any) -> tuple[Driver, str]:
    driver = Driver()
    driver.fleet("a", "b", "c")
    job = driver.submit(spec(size, checkpoint=policy, max_retries=9, **fields))
    driver.run(job, *"abc"[:size])
    return driver, job


def evict(driver: Driver, job: str) -> None:
    driver.apply(Evicted(job, by="j-9", why="a test"))


def save(driver: Driver, job: str, index: int, blob: str) -> list[str]:
    """Save under that name. Returns the blobs that were dropped."""
    task = driver.task(job, index)
    return driver.apply(CheckpointSaved(task.id, task.epoch, Blob(blob, 10))).dropped_blobs


def stop(driver: Driver, job: str) -> list[str]:
    """Stop all tasks. Returns the blobs that were dropped."""
    dropped: list[str] = []
    for index in driver.indices(job, State.PREEMPTING):
        dropped += driver.exit(job, index, 0, signalled=True).dropped_blobs
    return dropped


def checkpoints(driver: Driver, job: str) -> list[str | None]:
    tasks = [task for key, task in sorted(driver.tasks.items()) if key[0] == job]
    return [None if task.checkpoint is None else task.checkpoint.id for task in tasks]


def saved_set(driver: Driver, job: str, prefix: str) -> list[str]:
    """Evict, save everywhere, stop; returns what was dropped."""
    evict(driver, job)
    dropped = []
    for index in range(3):
        dropped += save(driver, job, index, f"{prefix}{index}")
    return dropped + stop(driver, job)


# When


@pytest.mark.parametrize("policy", ["none", "each", "all"])
def test_a_checkpoint_is_only_accepted_while_the_task_is_stopping(policy: str) -> None:
    driver, job = a_gang(policy)
    blob = CheckpointSaved(f"{job}.0", 1, Blob("b", 10))
    refusal = driver.refuse(blob, Conflict)
    assert refusal == (
        f"task {job}.0 is running; checkpoints are only accepted while it is stopping"
    )
    evict(driver, job)
    driver.apply(blob)
    driver.stop(job, 0)
    driver.refuse(blob, Conflict)
    driver.stop(job)
    driver.refuse(blob, Conflict)
    driver.place(job, "a", "b", "c")
    driver.refuse(blob, StaleEpoch)


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_checkpoint_of_another_attempt_is_refused(epoch: int) -> None:
    driver, job = a_gang("each")
    evict(driver, job)
    driver.refuse(CheckpointSaved(f"{job}.0", epoch, Blob("b", 10)), StaleEpoch)


def test_the_size_of_what_was_saved_is_on_record() -> None:
    driver, job = a_gang("each")
    evict(driver, job)
    save(driver, job, 1, "b1")
    record = driver.records[-1]
    assert isinstance(record, TaskCheckpointSaved)
    assert (record.task, record.size_bytes) == (1, 10)


# Each


@pytest.mark.parametrize("policy", ["none", "each"])
def test_every_task_gets_back_its_own_last_bytes(policy: str) -> None:
    driver, job = a_gang(policy)
    evict(driver, job)
    save(driver, job, 0, "b0")
    save(driver, job, 2, "b2")
    assert stop(driver, job) == []
    assert checkpoints(driver, job) == ["b0", None, "b2"]
    driver.run(job, "a", "b", "c")
    assert checkpoints(driver, job) == ["b0", None, "b2"]


@pytest.mark.parametrize("policy", ["none", "each"])
def test_newer_bytes_replace_older_ones(policy: str) -> None:
    driver, job = a_gang(policy)
    evict(driver, job)
    assert save(driver, job, 0, "b0") == []
    assert save(driver, job, 0, "b0'") == ["b0"]
    stop(driver, job)
    driver.run(job, "a", "b", "c")
    evict(driver, job)
    assert save(driver, job, 0, "b0''") == ["b0'"]
    stop(driver, job)
    assert checkpoints(driver, job) == ["b0''", None, None]


def test_the_same_bytes_saved_again_are_not_dropped() -> None:
    driver, job = a_gang("each")
    evict(driver, job)
    save(driver, job, 0, "b0")
    assert save(driver, job, 0, "b0") == []


def test_the_trigger_of_a_failure_keeps_what_it_had() -> None:
    driver, job = a_gang("each")
    saved_set(driver, job, "x")
    driver.run(job, "a", "b", "c")
    driver.fail(job, 1)
    driver.refuse(CheckpointSaved(f"{job}.1", 2, Blob("late", 10)), Conflict)
    save(driver, job, 0, "y0")
    save(driver, job, 2, "y2")
    stop(driver, job)
    assert checkpoints(driver, job) == ["y0", "x1", "y2"]


# All


def test_a_set_counts_when_every_task_saved_in_the_same_stop() -> None:
    driver, job = a_gang("all")
    evict(driver, job)
    for index in range(3):
        save(driver, job, index, f"x{index}")
        assert checkpoints(driver, job) == [None, None, None]
    assert stop(driver, job) == []
    assert checkpoints(driver, job) == ["x0", "x1", "x2"]
    assert "GangCheckpointSaved" in driver.kinds(job)


def test_a_new_set_replaces_the_old_one_whole() -> None:
    driver, job = a_gang("all")
    saved_set(driver, job, "x")
    driver.run(job, "a", "b", "c")
    assert sorted(saved_set(driver, job, "y")) == ["x0", "x1", "x2"]
    assert checkpoints(driver, job) == ["y0", "y1", "y2"]


def test_an_incomplete_set_is_dropped_and_the_last_complete_one_stays() -> None:
    driver, job = a_gang("all")
    saved_set(driver, job, "x")
    driver.run(job, "a", "b", "c")
    evict(driver, job)
    save(driver, job, 0, "y0")
    save(driver, job, 1, "y1")
    assert stop(driver, job) == ["y0", "y1"]
    assert checkpoints(driver, job) == ["x0", "x1", "x2"]


def test_bytes_saved_twice_in_one_stop_are_not_kept_twice() -> None:
    driver, job = a_gang("all")
    evict(driver, job)
    save(driver, job, 0, "y0")
    assert save(driver, job, 0, "y0'") == ["y0"]


def test_a_failed_task_cannot_save_so_its_stop_has_no_set() -> None:
    driver, job = a_gang("all")
    saved_set(driver, job, "x")
    driver.run(job, "a", "b", "c")
    driver.fail(job, 1)
    save(driver, job, 0, "y0")
    save(driver, job, 2, "y2")
    assert stop(driver, job) == ["y0", "y2"]
    assert checkpoints(driver, job) == ["x0", "x1", "x2"]


def test_a_stop_after_a_failure_has_no_set_even_with_restart_task() -> None:
    driver, job = a_gang("all", restart="task", match="only-waiting")
    saved_set(driver, job, "x")
    driver.run(job, "a", "b", "c")
    driver.fail(job, 1)
    save(driver, job, 0, "y0")
    save(driver, job, 2, "y2")
    assert stop(driver, job) == ["y0", "y2"]
    assert checkpoints(driver, job) == ["x0", "x1", "x2"]


def test_a_worker_lost_before_its_task_could_save_spoils_the_set() -> None:
    driver, job = a_gang("all")
    evict(driver, job)
    save(driver, job, 0, "y0")
    save(driver, job, 1, "y1")
    driver.apply(WorkerLost("c"))
    assert stop(driver, job) == ["y0", "y1"]
    assert checkpoints(driver, job) == [None, None, None]


def half_started(driver: Driver, job: str) -> None:
    """A second attempt, in which only the first task was reported as started."""
    driver.place(job, "a", "b", "c")
    driver.accept(job)
    driver.apply(Started(f"{job}.0", 2))
    evict(driver, job)
    save(driver, job, 0, "y0")


def test_tasks_that_never_started_are_not_missed_in_a_set() -> None:
    driver, job = a_gang("all")
    evict(driver, job)
    stop(driver, job)
    half_started(driver, job)
    driver.stop(job)
    assert checkpoints(driver, job) == ["y0", None, None]


def test_a_task_that_exited_had_started_even_if_its_start_was_never_reported() -> None:
    driver, job = a_gang("all")
    saved_set(driver, job, "x")
    half_started(driver, job)
    driver.exit(job, 1, 143, signalled=True)
    driver.stop(job)
    assert checkpoints(driver, job) == ["x0", "x1", "x2"]


def test_a_task_outside_a_new_set_does_not_resume_from_an_older_one() -> None:
    driver, job = a_gang("all", role={"min": 2})
    saved_set(driver, job, "x")
    driver.run(job, "a", "b")
    evict(driver, job)
    save(driver, job, 0, "y0")
    save(driver, job, 1, "y1")
    assert sorted(stop(driver, job)) == ["x0", "x1", "x2"]
    assert checkpoints(driver, job) == ["y0", "y1", None]


def test_a_shrunk_task_is_part_of_no_set() -> None:
    driver, job = a_gang("all", role={"min": 2})
    driver.apply(Shrunk(job, (2,), by="j-9"))
    save(driver, job, 2, "y2")
    assert stop(driver, job) == ["y2"]
    assert checkpoints(driver, job) == [None, None, None]


def test_a_shrunk_task_that_saved_and_ended_well_leaves_nothing_behind() -> None:
    driver, job = a_gang("all", role={"min": 2})
    driver.apply(Shrunk(job, (2,), by="j-9"))
    save(driver, job, 2, "y2")
    assert driver.exit(job, 2).dropped_blobs == ["y2"]
    assert driver.task(job, 2).state is State.DONE


def test_a_set_begun_before_a_change_of_leader_is_completed_after_it() -> None:
    driver, job = a_gang("all")
    evict(driver, job)
    save(driver, job, 0, "x0")
    driver.restart()
    save(driver, job, 1, "x1")
    save(driver, job, 2, "x2")
    stop(driver, job)
    assert checkpoints(driver, job) == ["x0", "x1", "x2"]


def test_a_cancelled_job_keeps_the_set_it_saved() -> None:
    driver, job = a_gang("all")
    driver.apply(CancelRequested(job))
    for index in range(3):
        save(driver, job, index, f"x{index}")
    stop(driver, job)
    assert driver.phase(job) is Phase.CANCELLED
    assert checkpoints(driver, job) == ["x0", "x1", "x2"]


# Progress


def test_a_report_of_safe_work_is_kept_on_the_attempt() -> None:
    driver, job = a_gang("each")
    driver.apply(Progressed(f"{job}.0", 1, step=4))
    assert driver.attempt_of(job).safe_at is None
    driver.apply(Progressed(f"{job}.0", 1, step=5, safe=True))
    assert driver.attempt_of(job).safe_at == driver.now


def test_safe_work_is_that_of_the_present_attempt() -> None:
    driver, job = a_gang("each")
    driver.apply(Progressed(f"{job}.0", 1, safe=True))
    evict(driver, job)
    stop(driver, job)
    assert driver.attempt_of(job).safe_at is None


def test_work_that_is_reported_as_saved_again_is_one_event() -> None:
    driver, job = a_gang("each")
    for step in (5, 5, 6):
        driver.apply(Progressed(f"{job}.0", 1, step=step + 3, safe=True, saved_step=step))
    assert driver.kinds(job).count("WorkSaved") == 2


def test_progress_without_safety_is_kept_in_memory_only() -> None:
    driver, job = a_gang("each")
    assert not driver.apply(Progressed(f"{job}.0", 1, step=4)).has_rows


def test_a_task_that_is_stopping_makes_no_progress_but_may_save_its_work() -> None:
    driver, job = a_gang("each")
    evict(driver, job)
    assert not driver.apply(Progressed(f"{job}.0", 1, step=4)).has_rows
    driver.apply(Progressed(f"{job}.0", 1, step=4, safe=True))
    assert driver.attempt_of(job).safe_at == driver.now


def long_running(driver: Driver) -> list[CheckpointMissing]:
    return [record for record in driver.records if isinstance(record, CheckpointMissing)]


def test_a_long_attempt_without_saved_work_is_warned_about_once() -> None:
    driver = Driver(CoreSettings(price={"gpu": 3_500_000}))
    driver.fleet("a", "b", resources={"gpu": 1000})
    job = driver.submit(spec(2, role={"resources": {"gpu": 1}}))
    driver.run(job, "a", "b")
    driver.advance(3590)
    assert long_running(driver) == []
    driver.advance(20)
    [warning] = long_running(driver)
    assert (round(warning.seconds), round(warning.gpu_s), round(warning.cost, 1)) == (3600, 7200, 7)
    driver.restart()
    driver.advance(7200)
    assert len(long_running(driver)) == 1


@pytest.mark.parametrize("fields", [{"checkpoint": "each"}, {"time_limit": "50m"}])
def test_a_job_with_checkpoints_or_a_short_limit_is_not_warned_about(
    fields: dict[str, Any],
) -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec(**fields))
    driver.run(job, "a")
    driver.advance(4000)
    assert long_running(driver) == []


def test_saved_work_prevents_the_warning_about_a_long_attempt() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec())
    driver.run(job, "a")
    driver.apply(Progressed(f"{job}.0", 1, step=4, safe=True))
    driver.advance(4000)
    assert long_running(driver) == []
