"""A task that fell: what it takes with it, what is counted, and who is to blame."""

from typing import NamedTuple

from msgspec.structs import replace

from phalanx.core import causes
from phalanx.core.causes import TaskEnding, ending_text
from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict
from phalanx.core.events import Exited, RegroupDue, SpawnFailed, StallDue, Stopped, Vanished
from phalanx.core.gang import Gang
from phalanx.core.handlers.lost_work import lose
from phalanx.core.handlers.requeue import avoid, forgive, wait_again
from phalanx.core.handlers.reserve import lose_reservation
from phalanx.core.handlers.stop import complete_if_done, drain, task_stopped
from phalanx.core.model import Exit, Suspicion, Task, Worker
from phalanx.core.records import (
    TaskDone,
    TaskFailed,
    TaskStopped,
    WorkerCordoned,
    about,
)
from phalanx.core.spec.job import SECOND, Restart
from phalanx.core.states import Move, State

#: How a task that was told to stop came to its end.
_STOPS = {
    Move.EXITED_ZERO: TaskEnding.EXITED,
    Move.EXITED_NON_ZERO: TaskEnding.EXITED,
    Move.STOPPED: TaskEnding.STOPPED,
    Move.SPAWN_FAILED: TaskEnding.SPAWN_FAILED,
}
#: What takes a task whose process was lost to its next state.
_MOVES = {
    TaskEnding.EXITED: Move.EXITED_NON_ZERO,
    TaskEnding.STOPPED: Move.STOPPED,
    TaskEnding.SPAWN_FAILED: Move.SPAWN_FAILED,
    TaskEnding.START_TIMED_OUT: Move.START_TIMED_OUT,
    TaskEnding.STALLED: Move.STALLED,
    TaskEnding.SILENT: Move.VANISHED,
    TaskEnding.VANISHED: Move.VANISHED,
    TaskEnding.WORKER_LOST: Move.WORKER_LOST,
}


class Fall(NamedTuple):
    """How a process was lost."""

    how: TaskEnding
    gone: bool  #: nothing of it can be alive; else its worker stays charged
    exit: Exit | None = None
    exact: str | None = None  #: says more than the ending alone
    message: str = ""  #: of the worker

    @property
    def move(self) -> Move:
        return _MOVES[self.how]

    @property
    def is_counted(self) -> bool:
        """Whether it counts as a failure of the job. A stop by the worker does not."""
        return self.how is not TaskEnding.STOPPED

    def text(self, task: Task) -> str:
        """The rest of the sentence that begins with the task."""
        return ending_text(self.how, task.worker, exact=self.exact, message=self.message)


def exited(tx: Changes, event: Exited) -> None:
    gang, task = tx.attempt(event.task, event.epoch)
    end = Exit(event.code, event.signal, event.signalled)
    success = end.code == 0 and end.signal is None
    move = Move.EXITED_ZERO if success else Move.EXITED_NON_ZERO
    if task.state is State.PREEMPTING:
        _stop(tx, gang, task, move, end)
    elif end.signalled:
        fail(tx, gang, [task], Fall(TaskEnding.STOPPED, gone=True, exit=end))
    elif success:
        done = tx.move(gang, task, move, State.DONE, ended_at=tx.now, exit=end)
        tx.free(task)
        tx.record(TaskDone(*about(done)))
        if task.state is State.RESERVED:
            note_start(tx, gang)
        complete_if_done(tx, gang)
    else:
        fail(tx, gang, [task], Fall(TaskEnding.EXITED, gone=True, exit=end, exact=str(end)))


def stopped(tx: Changes, event: Stopped) -> None:
    gang, task = tx.attempt(event.task, event.epoch)
    if task.state is not State.PREEMPTING:
        raise Conflict(f"task {task.id} is {task.state}; it was not told to stop")
    _stop(tx, gang, task, Move.STOPPED, Exit(signalled=True))


def _stop(tx: Changes, gang: Gang, task: Task, move: Move, end: Exit | None) -> None:
    """A task that was told to stop is gone."""
    started_at = task.started_at
    if move in (Move.EXITED_ZERO, Move.EXITED_NON_ZERO):
        started_at = started_at or tx.now  # we had not heard of its start yet
    gone = tx.move(
        gang, task, move, State.PREEMPTED, started_at=started_at, ended_at=tx.now, exit=end
    )
    tx.free(task)
    tx.record(TaskStopped(*about(gone), _STOPS[move]))
    task_stopped(tx, gang, gone)


def spawn_failed(tx: Changes, event: SpawnFailed) -> None:
    gang, task = tx.attempt(event.task, event.epoch)
    how = Fall(TaskEnding.SPAWN_FAILED, gone=True, message=event.message)
    if task.state is State.PREEMPTING:
        _stop(tx, gang, task, Move.SPAWN_FAILED, None)
    elif task.state is State.RESERVED and not task.released:
        why = f"task {task.index} {how.text(task)}"
        lose_reservation(tx, gang, Move.SPAWN_FAILED, why, task.worker)
    else:
        fail(tx, gang, [task], how)


def vanished(tx: Changes, event: Vanished) -> None:
    gang, task = tx.attempt(event.task, event.epoch)
    is_silent = not event.gone or task.worker is None
    how = Fall(TaskEnding.SILENT if is_silent else TaskEnding.VANISHED, event.gone)
    if event.gone and task.state is not State.PREEMPTING:
        fail(tx, gang, [task], how)
    else:
        fall(tx, gang, [task], how)


def stall_due(tx: Changes, event: StallDue) -> None:
    base = tx.base.gangs.get(event.job)
    if base is None or base.job.drain is not None or base.job.verdict is not None:
        return
    stall_after = base.job.spec.stall_after
    started = [t for t in base.started() if t.epoch == event.epoch]
    running = [t for t in started if t.state is State.RUNNING]
    if stall_after is None or not started:
        return
    if not running:
        tx.timer(tx.now + stall_after, event)
        return
    # Progress from before a restart of the server is not known, so the clock starts there.
    heard_at = max(running[0].released_at or 0, tx.base.loaded_at)
    laggard = running[0]
    if base.progress is not None:
        heard_at = max(heard_at, base.progress.at)
        slowest = base.progress.laggard()
        laggard = next((task for task in running if task.index == slowest), laggard)
    if heard_at + stall_after > tx.now:
        tx.timer(heard_at + stall_after, event)
        return
    exact = f"made no progress for {stall_after / SECOND:g} s"
    how = Fall(TaskEnding.STALLED, gone=False, exact=exact)
    fail(tx, tx.gang(event.job), [laggard], how)


def fall(tx: Changes, gang: Gang, tasks: list[Task], how: Fall) -> None:
    """Tasks of one gang are lost with their worker, each as its state demands."""
    fallen = []
    # The last stop may complete the gang, and then the others are to stop as well.
    for index in [t.index for t in sorted(tasks, key=lambda t: t.state is not State.PREEMPTING)]:
        task = gang.tasks[index]
        if task.state is State.PREEMPTING:
            stopped = tx.move(gang, task, how.move, State.PREEMPTED, ended_at=tx.now)
            if how.gone:
                tx.free(task)
            else:
                tx.linger(task)
            tx.record(TaskStopped(*about(stopped), how.how))
            task_stopped(tx, gang, stopped)
        elif task.released and task.state in (State.RESERVED, State.RUNNING):
            fallen.append(task)
    if fallen:
        fail(tx, gang, fallen, how)


def fail(tx: Changes, gang: Gang, fallen: list[Task], fall: Fall) -> None:
    """Tasks of one gang fell at once. The first is the trigger; together they count once.

    With `restart: task` only they wait again, if they can be placed without the rest.
    """
    trigger = fallen[0]
    spec = gang.job.spec
    counted = fall.is_counted and _count(tx, gang)
    if counted:
        _blame(tx, gang, trigger, fall.move)
    exhausted = gang.job.failures >= spec.max_retries
    alone = (
        spec.restart is Restart.TASK
        and not exhausted
        and gang.may_start_with([*gang.waiting(), *fallen])
    )
    cause_of = causes.failed if fall.is_counted else causes.stopped_by_worker
    cause = cause_of(trigger.index, fall.text(trigger))
    if alone:
        lose(tx, gang, cause, (), fallen)
    for task in fallen:
        _record_failure(tx, task, fall)
        if fall.gone:
            tx.free(task)
        else:
            tx.linger(task)
        if alone:
            tx.rest(gang, task, fall.move, ended_at=tx.now, exit=fall.exit)
        else:
            tx.move(gang, task, fall.move, State.PREEMPTED, ended_at=tx.now, exit=fall.exit)
    if alone:
        wait_again(tx, gang, setbacks=gang.job.failures if counted else 0)
        note_shortage(tx, gang)
        return
    drain(tx, gang, cause, counted=counted)


def _record_failure(tx: Changes, task: Task, fall: Fall) -> None:
    end = fall.exit or Exit()
    tx.record(TaskFailed(*about(task), fall.how, fall.text(task), end.code, end.signal))


def _count(tx: Changes, gang: Gang) -> bool:
    """Count a failure against the job, unless a shrink is to blame."""
    forgive(tx, gang)
    job, settings = gang.job, tx.base.settings
    shrunk = job.shrunk_at
    counted = shrunk is None or tx.now - shrunk > job.spec.grace + settings.shrink_slack
    tx.set_job(gang, failures=job.failures + counted, healthy_since=None)
    return counted


def _blame(tx: Changes, gang: Gang, trigger: Task, move: Move) -> None:
    """The next attempt avoids the trigger's worker, and so do all if it trips job after job."""
    node = tx.find_node(trigger.worker)
    if node is None:
        return
    worker, job = node.worker, gang.job
    elsewhere = [each for each in job.avoid if each != worker.id]
    avoid(tx, gang, [worker.id])
    if move is Move.WORKER_LOST:
        return
    if elsewhere:  # it is the job that fails, wherever it is
        _acquit(tx, job.id, [*elsewhere, worker.id])
    elif worker.cordoned is None:
        since = tx.now - tx.base.settings.suspect_window
        recent = tuple(s for s in worker.suspicions if s.at > since and s.job != job.id)
        _suspect(tx, worker, (*recent, Suspicion(job.id, tx.now)))


def _acquit(tx: Changes, job: str, workers: list[str]) -> None:
    for name in workers:
        node = tx.find_node(name)
        if node is not None and any(s.job == job for s in node.worker.suspicions):
            left = tuple(s for s in node.worker.suspicions if s.job != job)
            tx.set_worker(replace(node.worker, suspicions=left))


def _suspect(tx: Changes, worker: Worker, suspicions: tuple[Suspicion, ...]) -> None:
    settings = tx.base.settings
    others = (node for node in tx.base.nodes.values() if node.worker.id != worker.id)
    if len(suspicions) < settings.suspect_jobs or not any(node.is_open for node in others):
        kept = suspicions[-settings.suspect_jobs :]
        tx.set_worker(replace(worker, suspicions=kept))
        return
    minutes = settings.suspect_window // 60_000_000
    reason = f"{len(suspicions)} jobs failed first on this worker within {minutes} minutes"
    tx.set_worker(replace(worker, suspicions=(), cordoned=reason))
    tx.record(WorkerCordoned(worker.id, reason))


def note_start(tx: Changes, gang: Gang) -> None:
    """The last task of a start set was seen: from here on it runs healthily."""
    if not gang.count(State.RESERVED):
        tx.set_job(gang, healthy_since=tx.now)
        note_shortage(tx, gang)


def note_shortage(tx: Changes, gang: Gang) -> None:
    """Start or stop the clock of a gang that runs below its minimum."""
    job, short = gang.job, gang.is_short
    if short and job.short_since is None:
        tx.set_job(gang, short_since=tx.now)
        tx.timer(tx.now + tx.base.settings.regroup_after, RegroupDue(job.id, tx.now))
    elif not short and job.short_since is not None:
        tx.set_job(gang, short_since=None)


def regroup_due(tx: Changes, event: RegroupDue) -> None:
    base = tx.base.gangs.get(event.job)
    if base is None or base.job.short_since != event.since or base.job.drain is not None:
        return
    gang = tx.gang(event.job)
    if not gang.is_short:
        tx.set_job(gang, short_since=None)  # what was missing is starting just now
        return
    drain(tx, gang, causes.below_minimum(tx.base.settings.regroup_after))
