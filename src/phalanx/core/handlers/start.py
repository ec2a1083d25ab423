"""Starts: a released task is reported as running, or claimed over the plain protocol."""

from msgspec.structs import replace

from phalanx.core import causes
from phalanx.core.causes import TaskEnding
from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict
from phalanx.core.events import Claimed, Started, StartTimedOut
from phalanx.core.gang import Gang
from phalanx.core.handlers.fail import Failure, fail, lose_unclaimed, note_start
from phalanx.core.handlers.reserve import arm_attempt, is_unclaimed, release, with_group
from phalanx.core.handlers.startable import unfenced_worker
from phalanx.core.model import AttemptState, Place, Task
from phalanx.core.node import Charge
from phalanx.core.queues import stopped_by
from phalanx.core.reasons import QueueStopped, own_reason
from phalanx.core.records import TaskClaimed, TaskStarted, about
from phalanx.core.states import Move, State


def started(tx: Changes, event: Started) -> None:
    gang, task = tx.attempt(event.task, event.epoch)
    if task.state is State.RUNNING:
        return
    if task.state is State.PREEMPTING:
        # The stop was requested before the start was reported. That it had started decides
        # whether its checkpoint is needed for a complete set.
        if task.place is not None and task.place.started_at is None:
            tx.update(gang, task, place=replace(task.place, started_at=tx.now))
        return
    _run(tx, gang, task)


def _run(tx: Changes, gang: Gang, task: Task) -> None:
    place = None if task.place is None else replace(task.place, started_at=tx.now)
    running = tx.move(gang, task, Move.STARTED, State.RUNNING, place=place)
    tx.record(TaskStarted(*about(running)))
    note_start(tx, gang)


def claimed(tx: Changes, event: Claimed) -> None:
    gang, task = tx.task(event.task)
    if task.state is State.PENDING:
        _claim_anonymous(tx, gang, task, event.worker)
        return
    if task.state is not State.RESERVED or task.worker != event.worker:
        raise Conflict(f"task {task.id} is {task.state} and not reserved for {event.worker}")
    if not task.released:
        gangs = with_group(tx, gang)
        if any(member.missing for member in gangs):
            raise Conflict(f"task {task.id} cannot start before all agents of its gang are ready")
        release(tx, gangs)
        task = gang.tasks[task.index]
    _run(tx, gang, task)


def _claim_anonymous(tx: Changes, gang: Gang, task: Task, worker: str | None) -> None:
    job = gang.job
    if not job.spec.is_anonymous:
        raise Conflict(f"task {task.id} requests resources and has no reservation yet")
    reason = own_reason(job, tx.now)
    stopped = stopped_by(tx.base.queues, job.spec.queue)
    if reason is not None or stopped is not None:
        raise Conflict(f"job {job.id} cannot start: {reason or QueueStopped(stopped or '')}")
    if (unfenced := unfenced_worker(tx.base, gang)) is not None:
        raise Conflict(f"job {job.id} is fenced, and an earlier attempt may be alive on {unfenced}")
    epoch = job.epoch + 1
    if worker is not None:
        node = tx.node(worker)
        misfit = node.misfit(gang.role(task.index), ())
        if misfit is not None:
            raise Conflict(f"worker {worker} cannot take task {task.id}: {misfit}")
        node.charge((task.id, epoch), Charge(tx.now, {}))
    tx.set_job(
        gang,
        epoch=epoch,
        satisfied=True,
        pending=None,
        attempt=AttemptState(healthy_since=tx.now),
    )
    running = tx.move(
        gang,
        task,
        Move.CLAIMED,
        State.RUNNING,
        epoch=epoch,
        releases=task.releases + 1,
        place=Place(worker, tx.now, released_at=tx.now, started_at=tx.now),
        ended_at=None,
        exit=None,
    )
    gang.progress = None
    tx.record(TaskClaimed(*about(running)))
    arm_attempt(tx, gang)


def start_timed_out(tx: Changes, event: StartTimedOut) -> None:
    base = tx.base.gangs.get(event.job)
    if base is None or not base.count(State.RESERVED):
        return
    gang = tx.gang(event.job)
    late = [
        task
        for task in gang.tasks
        if task.state is State.RESERVED and task.released and task.epoch == event.epoch
    ]
    started = [task for task in late if not is_unclaimed(tx, task)]
    if started:
        # The worker had the instruction to run it, so a process may exist.
        fail(tx, gang, started, Failure(TaskEnding.START_TIMED_OUT, gone=False))
    unclaimed = [task for task in late if is_unclaimed(tx, task)]
    if unclaimed:
        workers = list(dict.fromkeys(task.worker for task in unclaimed if task.worker is not None))
        why = causes.not_claimed(workers)
        lose_unclaimed(tx, gang, unclaimed, Move.START_TIMED_OUT, why)
        for worker in workers:
            _lower_slots(tx, worker)


def _lower_slots(tx: Changes, worker: str) -> None:
    """Note that a plain worker does not poll for as many tasks as was counted."""
    node = tx.node(worker)
    slots = max(1, node.occupants)
    if node.worker.counts_polls and slots < (node.worker.slots or 0):
        tx.set_worker(replace(node.worker, slots=slots))
