"""Failures: which tasks they stop, and whether they are counted."""

from typing import NamedTuple

from msgspec.structs import replace

from phalanx.core import causes
from phalanx.core.causes import Cause, TaskEnding, ending_text
from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict
from phalanx.core.events import (
    AlarmsDue,
    Exited,
    InputsUnavailable,
    RegroupDue,
    SpawnFailed,
    StallDue,
    Stopped,
    Vanished,
)
from phalanx.core.gang import Gang
from phalanx.core.handlers.alarms import are_due, has_alarms, judge_alarms
from phalanx.core.handlers.requeue import avoid, count_failure, note_refusal, requeue
from phalanx.core.handlers.reserve import is_unclaimed, lose_reservation, return_unclaimed
from phalanx.core.handlers.stop import complete_if_done, stop_gang, task_stopped
from phalanx.core.handlers.suspicion import blame
from phalanx.core.lost_work import charge_lost_work, lost_work
from phalanx.core.model import Exit, SuspicionKind, Task
from phalanx.core.records import (
    ReservationLost,
    TaskDone,
    TaskFailed,
    TaskStopped,
    about,
)
from phalanx.core.spec.job import Restart
from phalanx.core.states import Move, State
from phalanx.core.time_units import SECOND

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
    refused: bool = False  #: another try on this worker would fail too

    @property
    def move(self) -> Move:
        return _MOVES[self.ending]

    @property
    def is_counted(self) -> bool:
        """Whether it counts as a failure of the job. A stop by the worker does not."""
        return self.ending is not TaskEnding.STOPPED

    @property
    def suspicion(self) -> SuspicionKind | None:
        """What the worker of the task is suspected of. The loss of a worker says enough, and what a
        worker refuses to start has its cause in the job."""
        if self.ending is TaskEnding.WORKER_LOST or self.refused:
            return None
        starts = (TaskEnding.SPAWN_FAILED, TaskEnding.START_TIMED_OUT)
        return SuspicionKind.START if self.ending in starts else SuspicionKind.FAILURE

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
    failure = Failure(TaskEnding.SPAWN_FAILED, True, message=event.message, refused=event.final)
    is_reserved = task.state is State.RESERVED and not task.released
    # A gang that runs does not fail because some of its tasks cannot be prepared.
    if event.final and not (is_reserved and gang.job.attempt is not None):
        note_refusal(tx, gang, task.worker or "")
    if task.state is State.PREEMPTING:
        _stop(tx, gang, task, Move.SPAWN_FAILED, None)
    elif is_reserved:
        cause = causes.failed(task.index, failure.text(task))
        lose_reservation(tx, gang, Move.SPAWN_FAILED, str(cause), task.worker)
        blame(tx, gang, task, failure.suspicion)
        _give_up_start(tx, gang, cause)
    else:
        fail(tx, gang, [task], failure)


def inputs_unavailable(tx: Changes, event: InputsUnavailable) -> None:
    """Give back the start set: no worker is to blame. A gang that was released keeps its places."""
    base = tx.base.gangs.get(event.job)
    if base is None or base.job.epoch != event.epoch or not base.unreleased():
        return
    gang = tx.gang(event.job)
    if event.final and gang.job.attempt is None:
        note_refusal(tx, gang, "")
    lose_reservation(tx, gang, Move.SPAWN_FAILED, event.why, suspect="")
    _give_up_start(tx, gang, causes.inputs_unavailable(event.why))


def _give_up_start(tx: Changes, gang: Gang, cause: Cause) -> None:
    """End a job that no worker can start, after its reservation was lost."""
    if gang.job.cannot_start and gang.job.attempt is None:
        stop_gang(tx, gang, cause)


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
    counted = failure.is_counted and count_failure(tx, gang)
    if counted and not has_alarms(gang):  # else the failure may follow from an abnormal value
        blame(tx, gang, trigger, failure.suspicion)
    exhausted = gang.job.failures >= spec.max_retries or gang.job.cannot_start
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


def note_start(tx: Changes, gang: Gang) -> None:
    """Note that a task has started. Once the whole start set has, the attempt is healthy."""
    if not gang.count(State.RESERVED):
        tx.set_attempt(gang, healthy_since=tx.now)
        if gang.job.start_refusals:
            tx.set_job(gang, start_refusals=())
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


def alarms_due(tx: Changes, event: AlarmsDue) -> None:
    base = tx.base.gangs.get(event.job)
    if base is None or base.job.is_ending or not are_due(base, tx):
        return  # the stop of a gang has judged its alarms
    gang = tx.gang(event.job)
    cause = judge_alarms(tx, gang)
    if cause is not None:
        stop_gang(tx, gang, cause, counted=count_failure(tx, gang))
