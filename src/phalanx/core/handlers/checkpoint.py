"""Checkpoints and progress: what a task has saved, and what the next attempt resumes from."""

from collections.abc import Sequence

from msgspec.structs import replace

from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict
from phalanx.core.events import CheckpointSaved, LongRunDue, ProblemReported, Progressed
from phalanx.core.gang import Gang, GangProgress
from phalanx.core.handlers.alarms import is_after_alarm
from phalanx.core.ledger import gpu_seconds
from phalanx.core.lost_work import money, work_at_risk
from phalanx.core.model import Task, TaskProblem
from phalanx.core.node import GPU
from phalanx.core.records import (
    CheckpointMissing,
    GangCheckpointSaved,
    TaskCheckpointDiscarded,
    TaskCheckpointSaved,
    TaskProblemReported,
    WorkSaved,
    about,
)
from phalanx.core.spec.job import CheckpointPolicy, Restart
from phalanx.core.states import State
from phalanx.core.time_units import SECOND


def checkpoint_saved(tx: Changes, event: CheckpointSaved) -> None:
    gang, task = tx.attempt(event.task, event.epoch)
    if task.state is not State.PREEMPTING:
        raise Conflict(
            f"task {task.id} is {task.state}; checkpoints are only accepted while it is stopping"
        )
    blob = replace(event.blob, saved_at=tx.now)
    if is_after_alarm(gang, None):
        tx.dropped_blobs.append(event.blob.id)
        tx.record(TaskCheckpointDiscarded(*about(task), event.blob.size_bytes))
        return
    # An alarm can still arrive during the stop, so a watched job does not replace anything yet.
    if gang.job.spec.checkpoint is CheckpointPolicy.ALL or gang.job.spec.watch:
        replaced = task.saved
        tx.update(gang, task, saved=blob)
    else:
        replaced = task.checkpoint
        tx.update(gang, task, checkpoint=blob)
    if replaced is not None and replaced.id != event.blob.id:
        tx.dropped_blobs.append(replaced.id)
    tx.record(TaskCheckpointSaved(*about(task), event.blob.size_bytes))


#: Longer messages are cut.
_MESSAGE_CHARACTERS = 1000


def problem_reported(tx: Changes, event: ProblemReported) -> None:
    gang, task = tx.attempt(event.task, event.epoch)
    problem = TaskProblem(task.epoch, event.message[:_MESSAGE_CHARACTERS])
    if task.place is None or task.problem == problem:
        return  # the task no longer runs, or the report was repeated
    tx.update(gang, task, problem=problem)
    tx.record(TaskProblemReported(*about(task), problem.message))


def settle_checkpoints(tx: Changes, gang: Gang, repeated: Sequence[Task], *, discard: bool) -> None:
    """Adopt the checkpoints of a stopped gang if every task that had started has saved one.

    So all ranks resume from the same step. Otherwise, and with `discard`, the last complete set
    stays. Repeated tasks were done before the stop and have not saved, so with them no new set is
    complete.
    """
    if repeated:
        _drop_partial_set(tx, gang, repeated)
    if not gang.count(State.PREEMPTED):
        return
    stopped = [task for task in gang.tasks if task.state is State.PREEMPTED]
    saved = [task for task in stopped if task.saved is not None]
    if not saved:
        return
    if gang.job.spec.checkpoint is not CheckpointPolicy.ALL and not discard:
        for task in saved:
            _adopt(tx, gang, task)
        return
    complete = (
        not discard
        and not repeated
        and all(task.saved is not None for task in stopped if task.started_at is not None)
    )
    for task in saved:
        if complete:
            _adopt(tx, gang, task)
        else:
            _discard(tx, gang, task)
    if complete:
        _drop_older(tx, gang, {task.index for task in saved})
        tx.record(GangCheckpointSaved(gang.job.id, gang.job.epoch, len(saved)))


def _drop_partial_set(tx: Changes, gang: Gang, repeated: Sequence[Task]) -> None:
    """Drop a set that was saved after a repeated task was done: it does not include that task.

    Only a gang with `restart: task` continues without its done tasks, and can have such a set.
    """
    spec = gang.job.spec
    is_set = spec.checkpoint is CheckpointPolicy.ALL and spec.restart is Restart.TASK
    if is_set and any(task.checkpoint is None for task in repeated):
        _drop_older(tx, gang, set())


def long_run_due(tx: Changes, event: LongRunDue) -> None:
    base = tx.base.gangs.get(event.job)
    attempt = None if base is None else base.job.attempt
    if base is None or attempt is None or attempt.warned or attempt.safe_at is not None:
        return
    running = [task for task in base.started() if task.epoch == event.epoch]
    if base.job.is_ending or not running:
        return
    gang = tx.gang(event.job)
    work = work_at_risk(gang, tx.now, gang.started())
    began = min(task.released_at or tx.now for task in running)
    tx.set_attempt(gang, warned=True)
    tx.record(
        CheckpointMissing(
            gang.job.id,
            event.epoch,
            (tx.now - began) / SECOND,
            gpu_seconds(work.get(GPU, 0)),
            money(work, tx.base.settings.price) / 1_000_000,
        )
    )


def settle_alone(tx: Changes, gang: Gang, task: Task) -> None:
    """Settle the checkpoint of a task that stopped alone: it is not part of a complete set."""
    if task.saved is None:
        return
    if gang.job.spec.checkpoint is CheckpointPolicy.ALL:
        _discard(tx, gang, task)
    else:
        _adopt(tx, gang, task)


def _adopt(tx: Changes, gang: Gang, task: Task) -> None:
    """Let the next attempt resume from what the task has saved in this stop."""
    if task.checkpoint is not None:
        tx.dropped_blobs.append(task.checkpoint.id)
    tx.update(gang, task, checkpoint=task.saved, saved=None)


def _discard(tx: Changes, gang: Gang, task: Task) -> None:
    if task.saved is not None:
        tx.dropped_blobs.append(task.saved.id)
    tx.update(gang, task, saved=None)


def _drop_older(tx: Changes, gang: Gang, saved: set[int]) -> None:
    """Drop the checkpoints of tasks outside the new set: they are from an earlier step."""
    for task in list(gang.tasks):
        if task.index not in saved and task.checkpoint is not None:
            tx.dropped_blobs.append(task.checkpoint.id)
            tx.update(gang, task, checkpoint=None)


def progressed(tx: Changes, event: Progressed) -> None:
    gang, task = tx.attempt(event.task, event.epoch)
    if task.state is State.PREEMPTING and event.safe:
        _note_saved_work(tx, gang, task, event)
    if task.state is not State.RUNNING:
        return  # the task is stopping by now, so its progress no longer matters
    steps = {} if gang.progress is None else dict(gang.progress.steps)
    if event.step is not None:
        steps[task.index] = event.step
    alarms = None if gang.progress is None else gang.progress.alarms
    gang.progress = GangProgress(tx.now, steps, alarms)
    if event.safe:
        _note_saved_work(tx, gang, task, event)


def _note_saved_work(tx: Changes, gang: Gang, task: Task, event: Progressed) -> None:
    saved = event.step if event.saved_step is None else event.saved_step
    if _is_known(gang, saved) or is_after_alarm(gang, saved):
        return
    tx.set_attempt(gang, safe_at=tx.now)
    if saved is not None:
        tx.set_job(gang, saved_step=saved, resume_step=None)
    tx.record(WorkSaved(*about(task), saved))


def _is_known(gang: Gang, saved: int | None) -> bool:
    """Whether this attempt has reported the step as saved before: agents can repeat a report."""
    has_saved = gang.job.attempt is not None and gang.job.attempt.safe_at is not None
    return saved is not None and has_saved and saved == gang.job.saved_step
