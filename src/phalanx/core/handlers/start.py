"""A released task becoming a process: seen by its agent, or claimed over the plain protocol."""

from phalanx.core.causes import TaskEnding
from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict
from phalanx.core.events import Claimed, Started, StartTimedOut
from phalanx.core.gang import Gang
from phalanx.core.handlers.fail import Fall, fail, note_start
from phalanx.core.handlers.reserve import arm_attempt, release, with_mates
from phalanx.core.model import Task
from phalanx.core.node import Charge
from phalanx.core.queues import stopped_by
from phalanx.core.records import TaskClaimed, TaskStarted, about
from phalanx.core.states import Move, State


def started(tx: Changes, event: Started) -> None:
    gang, task = tx.attempt(event.task, event.epoch)
    if task.state is State.RUNNING:
        return
    if task.state is State.PREEMPTING:
        # Told to stop before we heard of it; whether it had started decides about its checkpoint.
        if task.started_at is None:
            tx.update(gang, task, started_at=tx.now)
        return
    _run(tx, gang, task)


def _run(tx: Changes, gang: Gang, task: Task) -> None:
    running = tx.move(gang, task, Move.STARTED, State.RUNNING, started_at=tx.now)
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
        gangs = with_mates(tx, gang)
        if any(mate.missing for mate in gangs):
            raise Conflict(f"task {task.id} waits until the agents of its gang have accepted")
        release(tx, gangs)
        task = gang.tasks[task.index]
    _run(tx, gang, task)


def _claim_anonymous(tx: Changes, gang: Gang, task: Task, worker: str | None) -> None:
    job = gang.job
    if not job.spec.is_anonymous:
        raise Conflict(f"task {task.id} asks for resources, so it has to be placed first")
    stopped = stopped_by(tx.base.queues, job.spec.queue)
    if job.on_hold or job.not_before > tx.now or stopped is not None:
        raise Conflict(f"job {job.id} may not start yet")
    epoch = job.epoch + 1
    if worker is not None:
        node = tx.node(worker)
        misfit = node.misfit(gang.role(task.index))
        if misfit is not None:
            raise Conflict(f"worker {worker} cannot take task {task.id}: {misfit}")
        node.charge((task.id, epoch), Charge(tx.now, {}))
    tx.set_job(
        gang,
        epoch=epoch,
        satisfied=True,
        losses=0,
        waiting_since=None,
        healthy_since=tx.now,
    )
    running = tx.move(
        gang,
        task,
        Move.CLAIMED,
        State.RUNNING,
        epoch=epoch,
        releases=task.releases + 1,
        worker=worker,
        placed_at=tx.now,
        released_at=tx.now,
        started_at=tx.now,
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
    if late:
        # The worker was told to run it, so a process may exist.
        fail(tx, gang, late, Fall(TaskEnding.START_TIMED_OUT, gone=False))
