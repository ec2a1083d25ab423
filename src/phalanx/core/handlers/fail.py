"""Failures: which tasks they stop, whether they are counted, and which worker is suspected."""

from typing import NamedTuple

from msgspec.structs import replace

from phalanx.core import causes
from phalanx.core.causes import TaskEnding, ending_text
from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict
from phalanx.core.events import Exited, RegroupDue, SpawnFailed, StallDue, Stopped, Vanished
from phalanx.core.gang import Gang
from phalanx.core.handlers.requeue import avoid, forgive, requeue
from phalanx.core.handlers.reserve import is_unclaimed, lose_reservation, return_unclaimed
from phalanx.core.handlers.stop import complete_if_done, stop_gang, task_stopped
from phalanx.core.lost_work import charge_lost_work, lost_work
from phalanx.core.model import AttemptState, Exit, Suspicion, Task, Worker
from phalanx.core.records import (
    ReservationLost,
    TaskDone,
    TaskFailed,
    TaskStopped,
    WorkerCordoned,
    about,
)
from phalanx.core.spec.job import Restart
from phalanx.core.states import Move, State
from phalanx.core.time_units import MINUTE, SECOND

#: How a stopping task ended.
_STOPS = {
    Move.EXITED_ZERO: TaskEnding.EXITED,
    Move.EXITED_NON_ZERO: TaskEnding.EXITED,
    Move.STOPPED: TaskEnding.STOPPED,
    Move.SPAWN_FAILED: TaskEnding.SPAWN_FAILED,
}
#: The move that follows from the ending of a process.
_MOVES = {
    TaskEnding.EXITED: Move.EXITED_NON_ZERO,
    TaskEnding.OUT_OF_MEMORY: Move.EXITED_NON_ZERO,
    TaskEnding.STOPPED: Move.STOPPED,
    TaskEnding.SPAWN_FAILED: Move.SPAWN_FAILED,
    TaskEnding.START_TIMED_OUT: Move.START_TIMED_OUT,
    TaskEnding.STALLED: Move.STALLED,
    TaskEnding.SILENT: Move.VANISHED,
    TaskEnding.VANISHED: Move.VANISHED,
    TaskEnding.WORKER_LOST: Move.WORKER_LOST,
}
#: Causes other than a failure, by the ending of the process.
_CAUSES = {
    TaskEnding.OUT_OF_MEMORY: causes.out_of_memory,
    TaskEnding.STOPPED: causes.stopped_by_worker,
}


class Failure(NamedTuple):
    """How a process ended without being asked to."""

    ending: TaskEnding
    gone: bool  #: the process cannot be alive; else its worker stays charged
    exit: Exit | None = None
    exact: str | None = None  #: says more than the ending alone
    message: str = ""  #: from the worker

    @property
    def move(self) -> Move:
        return _MOVES[self.ending]

    @property
    def is_counted(self) -> bool:
        """Whether it counts as a failure of the job. A stop by the worker does not."""
        return self.ending is not TaskEnding.STOPPED

    def text(self, task: Task) -> str:
        """The rest of the sentence that begins with the task."""
        return ending_text(self.ending, task.worker, exact=self.exact, message=self.message)


def exited(tx: Changes, event: Exited) -> None:
    gang, task = tx.attempt(event.task, event.epoch)
    end = Exit(event.code, event.signal, event.signalled, event.memory_used is not None)
    success = end.code == 0 and end.signal is None
    move = Move.EXITED_ZERO if success else Move.EXITED_NON_ZERO
    if task.state is State.PREEMPTING:
        _stop(tx, gang, task, move, end)
    elif end.signalled:
        fail(tx, gang, [task], Failure(TaskEnding.STOPPED, gone=True, exit=end))
    elif success:
        done = tx.move(gang, task, move, State.DONE, ended_at=tx.now, exit=end)
        tx.free(task)
        tx.record(TaskDone(*about(done)))
        if task.state is State.RESERVED:
            note_start(tx, gang)
        complete_if_done(tx, gang)
    else:
        fail(tx, gang, [task], _failure(gang, task, event, end))


def _failure(gang: Gang, task: Task, event: Exited, end: Exit) -> Failure:
    """How the process of a task failed by itself."""
    if event.memory_used is None:
        return Failure(TaskEnding.EXITED, True, end, exact=str(end), message=event.note)
    asked = gang.role(task.index).resources.get("memory")
    use = causes.memory_use(event.memory_used, asked)
    return Failure(TaskEnding.OUT_OF_MEMORY, True, end, message=use)


def stopped(tx: Changes, event: Stopped) -> None:
    gang, task = tx.attempt(event.task, event.epoch)
    if task.state is not State.PREEMPTING:
        raise Conflict(f"task {task.id} is {task.state}; no stop was requested")
    _stop(tx, gang, task, Move.STOPPED, Exit(signalled=True))


def _stop(tx: Changes, gang: Gang, task: Task, move: Move, end: Exit | None) -> None:
    """Note that a task has stopped as requested, and is gone."""
    place = task.place
    if move in (Move.EXITED_ZERO, Move.EXITED_NON_ZERO) and place and place.started_at is None:
        place = replace(place, started_at=tx.now)  # its start was not reported before
    stopped = tx.move(gang, task, move, State.PREEMPTED, place=place, ended_at=tx.now, exit=end)
    tx.free(task)
    tx.record(TaskStopped(*about(stopped), _STOPS[move]))
    task_stopped(tx, gang, stopped)


def spawn_failed(tx: Changes, event: SpawnFailed) -> None:
    gang, task = tx.attempt(event.task, event.epoch)
    failure = Failure(TaskEnding.SPAWN_FAILED, gone=True, message=event.message)
    if task.state is State.PREEMPTING:
        _stop(tx, gang, task, Move.SPAWN_FAILED, None)
    elif task.state is State.RESERVED and not task.released:
        why = f"task {task.index} {failure.text(task)}"
        lose_reservation(tx, gang, Move.SPAWN_FAILED, why, task.worker)
    else:
        fail(tx, gang, [task], failure)


def vanished(tx: Changes, event: Vanished) -> None:
    gang, task = tx.attempt(event.task, event.epoch)
    is_silent = not event.gone or task.worker is None
    failure = Failure(TaskEnding.SILENT if is_silent else TaskEnding.VANISHED, event.gone)
    if event.gone and task.state is not State.PREEMPTING:
        fail(tx, gang, [task], failure)
    else:
        lose_processes(tx, gang, [task], failure)


def stall_due(tx: Changes, event: StallDue) -> None:
    base = tx.base.gangs.get(event.job)
    if base is None or base.job.is_ending:
        return
    stall_after = base.job.spec.stall_after
    started = [t for t in base.started() if t.epoch == event.epoch]
    running = [t for t in started if t.state is State.RUNNING]
    if stall_after is None or not started:
        return
    if not running:
        tx.timer(tx.now + stall_after, event)
        return
    # A new leader does not know earlier progress, so the clock starts when it has loaded.
    laggard = running[0]
    heard_at = max(laggard.released_at or 0, tx.base.loaded_at)
    if base.progress is not None:
        heard_at = max(heard_at, base.progress.at)
        slowest = base.progress.laggard()
        laggard = next((task for task in running if task.index == slowest), laggard)
    if heard_at + stall_after > tx.now:
        tx.timer(heard_at + stall_after, event)
        return
    exact = f"made no progress for {stall_after / SECOND:g} s"
    failure = Failure(TaskEnding.STALLED, gone=False, exact=exact)
    fail(tx, tx.gang(event.job), [laggard], failure)


def lose_processes(tx: Changes, gang: Gang, tasks: list[Task], failure: Failure) -> None:
    """End tasks whose processes are lost: those that were stopping have stopped, others failed."""
    failed, unclaimed = [], []
    # Stopping tasks first: the last of them may complete the gang, and then the others stop too.
    for index in [t.index for t in sorted(tasks, key=lambda t: t.state is not State.PREEMPTING)]:
        task = gang.tasks[index]
        if task.state is State.PREEMPTING:
            stopped = tx.move(gang, task, failure.move, State.PREEMPTED, ended_at=tx.now)
            if failure.gone:
                tx.free(task)
            else:
                tx.keep_charged(task)
            tx.record(TaskStopped(*about(stopped), failure.ending))
            task_stopped(tx, gang, stopped)
        elif is_unclaimed(tx, task):
            unclaimed.append(task)
        elif task.released and task.state in (State.RESERVED, State.RUNNING):
            failed.append(task)
    if failed:
        fail(tx, gang, failed, failure)
    if unclaimed:
        first, is_lost = unclaimed[0], failure.ending is TaskEnding.WORKER_LOST
        why = causes.worker_lost(first.worker or "") if is_lost else failure.text(first)
        lose_unclaimed(tx, gang, unclaimed, failure.move, why)


def lose_unclaimed(tx: Changes, gang: Gang, tasks: list[Task], move: Move, why: str) -> None:
    """Take back tasks that their plain workers will not claim. This is not a failure: nothing ran.

    The rest of the gang cannot run without them, and is placed again with them.
    """
    # A failure in the same event has stopped the gang, and has taken them back.
    tasks = [task for task in tasks if is_unclaimed(tx, gang.tasks[task.index])]
    if not tasks:
        return
    job = gang.job
    workers = list(dict.fromkeys(task.worker for task in tasks if task.worker is not None))
    for task in tasks:
        return_unclaimed(tx, gang, task, move)
    tx.record(ReservationLost(job.id, job.epoch, why, tuple(workers)))
    avoid(tx, gang, workers)
    if job.spec.restart is Restart.TASK and gang.may_start_with(gang.unplaced()):
        requeue(tx, gang, setbacks=0)
        note_shortage(tx, gang)
    else:
        stop_gang(tx, gang, causes.unclaimed([task.index for task in tasks], why))


def fail(tx: Changes, gang: Gang, failed: list[Task], failure: Failure) -> None:
    """Handle tasks of one gang that failed together: the first is the trigger, and they count once.

    With `restart: task` only these tasks are requeued, if they can be placed without the rest.
    """
    trigger = failed[0]
    spec = gang.job.spec
    counted = failure.is_counted and _count(tx, gang)
    if counted:
        _blame(tx, gang, trigger, failure.move)
    exhausted = gang.job.failures >= spec.max_retries
    alone = (
        spec.restart is Restart.TASK
        and not exhausted
        and gang.may_start_with([*gang.unplaced(), *failed])
    )
    cause = _CAUSES.get(failure.ending, causes.failed)(trigger.index, failure.text(trigger))
    if alone:
        ended = [replace(task, ended_at=tx.now) for task in failed]
        charge_lost_work(tx, gang, cause, lost_work(gang, ended))
    for task in failed:
        _record_failure(tx, task, failure)
        if failure.gone:
            tx.free(task)
        else:
            tx.keep_charged(task)
        if alone:
            tx.requeue(gang, task, failure.move, ended_at=tx.now, exit=failure.exit)
        else:
            tx.move(gang, task, failure.move, State.PREEMPTED, ended_at=tx.now, exit=failure.exit)
    if alone:
        requeue(tx, gang, setbacks=gang.job.failures if counted else 0)
        note_shortage(tx, gang)
        return
    stop_gang(tx, gang, cause, counted=counted)


def _record_failure(tx: Changes, task: Task, failure: Failure) -> None:
    end = failure.exit or Exit()
    tx.record(TaskFailed(*about(task), failure.ending, failure.text(task), end.code, end.signal))


def _count(tx: Changes, gang: Gang) -> bool:
    """Count a failure against the job, unless a recent shrink explains it. Whether it counts."""
    forgive(tx, gang)
    job, settings = gang.job, tx.base.settings
    attempt = job.attempt or AttemptState()
    shrunk = attempt.shrunk_at
    counted = shrunk is None or tx.now - shrunk > job.spec.grace + settings.shrink_slack
    attempt = replace(attempt, healthy_since=None)
    tx.set_job(gang, failures=job.failures + counted, attempt=attempt)
    return counted


def _blame(tx: Changes, gang: Gang, trigger: Task, move: Move) -> None:
    """Let the next attempt avoid the trigger's worker, and suspect the worker."""
    node = tx.find_node(trigger.worker)
    if node is None:
        return
    worker, job = node.worker, gang.job
    elsewhere = [each for each in job.avoid if each != worker.id]
    avoid(tx, gang, [worker.id])
    if move is Move.WORKER_LOST:
        return
    if elsewhere:  # the job fails on several workers, so the workers are not to blame
        _acquit(tx, job.id, [*elsewhere, worker.id])
    elif worker.cordoned is None:
        since = tx.now - tx.base.settings.suspect_window
        recent = tuple(s for s in worker.suspicions if s.at > since and s.job != job.id)
        _suspect(tx, worker, (*recent, Suspicion(job.id, tx.now)))


def _acquit(tx: Changes, job: str, workers: list[str]) -> None:
    """Drop the suspicions that a job has raised against these workers."""
    for name in workers:
        node = tx.find_node(name)
        if node is not None and any(s.job == job for s in node.worker.suspicions):
            others = tuple(s for s in node.worker.suspicions if s.job != job)
            tx.set_worker(replace(node.worker, suspicions=others))


def _suspect(tx: Changes, worker: Worker, suspicions: tuple[Suspicion, ...]) -> None:
    """Note the suspicions, or cordon the worker if there are enough. The last open worker stays
    open."""
    settings = tx.base.settings
    others = (node for node in tx.base.nodes.values() if node.worker.id != worker.id)
    if len(suspicions) < settings.suspect_jobs or not any(node.is_open for node in others):
        kept = suspicions[-settings.suspect_jobs :]
        tx.set_worker(replace(worker, suspicions=kept))
        return
    minutes = settings.suspect_window // MINUTE
    reason = f"{len(suspicions)} jobs failed first on this worker within {minutes} minutes"
    tx.set_worker(replace(worker, suspicions=(), cordoned=reason))
    tx.record(WorkerCordoned(worker.id, reason))


def note_start(tx: Changes, gang: Gang) -> None:
    """Note that a task has started. Once the whole start set has, the attempt is healthy."""
    if not gang.count(State.RESERVED):
        tx.set_attempt(gang, healthy_since=tx.now)
        note_shortage(tx, gang)


def note_shortage(tx: Changes, gang: Gang) -> None:
    """Start or stop the clock of a gang that runs below its minimum."""
    job, is_short = gang.job, gang.is_short
    since = None if job.attempt is None else job.attempt.short_since
    if is_short and since is None:
        tx.set_attempt(gang, short_since=tx.now)
        tx.timer(tx.now + tx.base.settings.regroup_after, RegroupDue(job.id, tx.now))
    elif not is_short and since is not None:
        tx.set_attempt(gang, short_since=None)


def regroup_due(tx: Changes, event: RegroupDue) -> None:
    base = tx.base.gangs.get(event.job)
    attempt = None if base is None else base.job.attempt
    if base is None or attempt is None or attempt.short_since != event.since:
        return
    if base.job.stopping is not None:
        return
    gang = tx.gang(event.job)
    if not gang.is_short:
        tx.set_attempt(gang, short_since=None)  # the missing tasks are starting just now
        return
    stop_gang(tx, gang, causes.below_minimum(tx.base.settings.regroup_after))
