"""Checkpoints and progress: what a task saved, what counts, and what the next attempt is given."""

from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict
from phalanx.core.events import CheckpointSaved, Progressed
from phalanx.core.gang import Gang, GangProgress
from phalanx.core.model import Task
from phalanx.core.records import GangCheckpointSaved, TaskCheckpointSaved, WorkSaved, about
from phalanx.core.spec.job import CheckpointPolicy
from phalanx.core.states import State


def checkpoint_saved(tx: Changes, event: CheckpointSaved) -> None:
    gang, task = tx.attempt(event.task, event.epoch)
    if task.state is not State.PREEMPTING:
        raise Conflict(
            f"task {task.id} is {task.state}; a checkpoint is only taken while it is preempting"
        )
    if gang.job.spec.checkpoint is CheckpointPolicy.ALL:
        replaced = task.saved
        tx.update(gang, task, saved=event.blob)
    else:
        replaced = task.checkpoint
        tx.update(gang, task, checkpoint=event.blob)
    if replaced is not None and replaced.id != event.blob.id:
        tx.dropped_blobs.append(replaced.id)
    tx.record(TaskCheckpointSaved(*about(task), event.blob.size_bytes))


def settle_checkpoints(tx: Changes, gang: Gang) -> None:
    """Take a set over only if every task that had started is in it, so that all ranks resume from
    the same step. Otherwise the last complete set stays."""
    stopped = [task for task in gang.tasks if task.state is State.PREEMPTED]
    saved = [task for task in stopped if task.saved is not None]
    if not saved:
        return
    complete = all(task.saved is not None for task in stopped if task.started_at is not None)
    for task in saved:
        unused = task.checkpoint if complete else task.saved
        if unused is not None:
            tx.dropped_blobs.append(unused.id)
        if complete:
            tx.update(gang, task, checkpoint=task.saved, saved=None)
        else:
            tx.update(gang, task, saved=None)
    if complete:
        _forget_older(tx, gang, {task.index for task in saved})
        tx.record(GangCheckpointSaved(gang.job.id, gang.job.epoch, len(saved)))


def drop_saved(tx: Changes, gang: Gang, task: Task) -> None:
    """A task that stops alone is part of no set."""
    if task.saved is not None:
        tx.dropped_blobs.append(task.saved.id)
        tx.update(gang, task, saved=None)


def _forget_older(tx: Changes, gang: Gang, saved: set[int]) -> None:
    """Tasks outside the new set must not resume from an older one."""
    for task in list(gang.tasks):
        if task.index not in saved and task.checkpoint is not None:
            tx.dropped_blobs.append(task.checkpoint.id)
            tx.update(gang, task, checkpoint=None)


def progressed(tx: Changes, event: Progressed) -> None:
    gang, task = tx.attempt(event.task, event.epoch)
    if task.state is not State.RUNNING:
        return  # told to stop by now; the report is true but of no use
    steps = {} if gang.progress is None else dict(gang.progress.steps)
    if event.step is not None:
        steps[task.index] = event.step
    gang.progress = GangProgress(tx.now, steps)
    if event.safe:
        tx.set_job(gang, safe_at=tx.now)
        tx.record(WorkSaved(*about(task), event.step))
