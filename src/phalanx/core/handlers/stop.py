"""Stopping a gang as a whole, after which it is requeued or ends.

Every end of an attempt goes through here: `stop_gang` requests the stop of all tasks, `settle`
decides what follows in the same commit in which the last task has stopped. A gang without anything
to stop settles at once.
"""

from msgspec.structs import replace

from phalanx.core import causes
from phalanx.core.array import name_an_element
from phalanx.core.causes import Cause, CauseKind
from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict
from phalanx.core.events import Evicted, NominationEnded, Shrunk, StopTimedOut, TimeLimitReached
from phalanx.core.gang import Gang
from phalanx.core.handlers.alarms import judge_alarms
from phalanx.core.handlers.checkpoint import settle_alone, settle_checkpoints
from phalanx.core.handlers.gather import release_gathered
from phalanx.core.handlers.requeue import count_failure, forgive, requeue
from phalanx.core.handlers.reserve import (
    give_back,
    is_unclaimed,
    return_unclaimed,
    with_group,
)
from phalanx.core.handlers.suspicion import judge_job
from phalanx.core.lost_work import charge_lost_work, lost_work
from phalanx.core.model import EndState, Nomination, Phase, Shrink, StoppingState, Task
from phalanx.core.records import (
    DoneTasksRequeued,
    GangStopped,
    GangStopping,
    JobEnded,
    JobEvicted,
    JobShrunk,
    TaskStopTimedOut,
    about,
)
from phalanx.core.spec.job import Match, Restart, total
from phalanx.core.states import PLACED, TERMINAL, UNPLACED, Move, State
from phalanx.core.time_units import SECOND, Micros

#: Verdicts that follow from the cause alone. After any other cause the gang may be requeued.
VERDICTS = {
    CauseKind.COMPLETE: Phase.DONE,
    CauseKind.CANCEL: Phase.CANCELLED,
    CauseKind.SCHEDULE_TIMEOUT: Phase.TIMED_OUT,
    CauseKind.DEPENDENCY: Phase.FAILED,
    CauseKind.TIME_LIMIT: Phase.TIMED_OUT,
    CauseKind.ABNORMAL_VALUE: Phase.FAILED,
}


def stop_gang(tx: Changes, gang: Gang, cause: Cause, *, counted: bool = False) -> None:
    """Stop every task of the gang. If it is stopping already, only a higher cause is adopted."""
    job = gang.job
    if job.stopping is not None:
        if cause.outranks(job.stopping.cause):
            tx.set_job(gang, stopping=replace(job.stopping, cause=cause))
        return
    cause, counted = _with_alarms(tx, gang, cause, counted=counted)
    forgive(tx, gang)
    job = gang.job
    release_gathered(tx, gang)
    tx.set_job(gang, pending=None, stopping=StoppingState(cause, job.epoch, tx.now, counted))
    if job.reservation is not None:
        members = with_group(tx, gang)[1:]
        give_back(tx, gang, Move.STOP_BEGAN)
        for member in members:
            requeue(tx, member, setbacks=0)
    for task in gang.started():
        if is_unclaimed(tx, task):
            return_unclaimed(tx, gang, task, Move.STOP_BEGAN)
    stopping = gang.started()
    failed = gang.count(State.PREEMPTED)
    for task in stopping:
        _request_stop(tx, gang, task, Move.STOP_BEGAN)
    if stopping or failed:
        tx.record(
            GangStopping(
                job.id,
                job.epoch,
                cause.kind,
                str(cause),
                len(stopping),
                cause.task,
                cause.job,
                failed,
            )
        )
    if stopping:
        _arm_stop_timeout(tx, gang)
    settle(tx, gang)


def _with_alarms(tx: Changes, gang: Gang, cause: Cause, *, counted: bool) -> tuple[Cause, bool]:
    """Judge the alarms of a gang that stops. The cause of the stop, and whether it is counted."""
    alarm = judge_alarms(tx, gang)
    if alarm is None or not alarm.outranks(cause):
        return cause, counted
    return alarm, counted or count_failure(tx, gang)


def _request_stop(tx: Changes, gang: Gang, task: Task, move: Move) -> None:
    place = None if task.place is None else replace(task.place, stopping_at=tx.now)
    tx.move(gang, task, move, State.PREEMPTING, place=place)
    tx.wake_worker_of(task)


def _arm_stop_timeout(tx: Changes, gang: Gang) -> None:
    timeout = tx.base.settings.stop_timeout(gang.job.spec.grace)
    tx.timer(tx.now + timeout, StopTimedOut(gang.job.id))


def task_stopped(tx: Changes, gang: Gang, task: Task) -> None:
    """Settle the gang if this was its last task to stop, or the task alone if only it stopped."""
    if gang.job.stopping is not None:
        settle(tx, gang)
        return
    settle_alone(tx, gang, task)
    task = gang.tasks[task.index]
    if _has_succeeded(task):
        tx.move(gang, task, Move.SHRINK_SETTLED, State.DONE, ended_at=tx.now)
    else:
        _note_shrink_loss(tx, gang, task)
        tx.requeue(gang, task, Move.SHRINK_SETTLED)
    _conclude_shrink(tx, gang)


def _conclude_shrink(tx: Changes, gang: Gang) -> None:
    """Charge a shrink once all of its tasks have stopped. They may have been the last ones."""
    if not gang.count(State.PREEMPTING):
        _charge_shrink(tx, gang)
    complete_if_done(tx, gang)


def complete_if_done(tx: Changes, gang: Gang) -> None:
    """End the job if its work is done, and stop the tasks that still run."""
    if not gang.job.is_ending and gang.is_complete:
        alarm = judge_alarms(tx, gang)
        if alarm is not None:
            stop_gang(tx, gang, alarm, counted=count_failure(tx, gang))
            return
        cause = causes.complete()
        _end(tx, gang, Phase.DONE, cause)
        stop_gang(tx, gang, cause)


def _end(tx: Changes, gang: Gang, verdict: Phase, cause: Cause) -> None:
    tx.set_job(gang, pending=None, end=EndState(verdict, cause))
    tx.verdicts.append((gang.job.id, verdict))
    judge_job(tx, gang, verdict)
    tx.record(JobEnded(gang.job.id, verdict, str(cause), cause.job))


def settle(tx: Changes, gang: Gang) -> None:
    """If the last task has stopped: decide how the job goes on, and the state of every task."""
    job, stopping = gang.job, gang.job.stopping
    if stopping is None or not gang.is_idle:
        return
    _charge_shrink(tx, gang)
    # Reports of the stopping tasks can have raised further alarms.
    reason, counted = _with_alarms(tx, gang, stopping.cause, counted=stopping.counted)
    verdict, cause = _outcome(gang, reason)
    verdict = job.verdict or verdict
    repeated = _repeated(gang, verdict)
    rolls_back = reason.kind is CauseKind.ROLLBACK
    settle_checkpoints(tx, gang, repeated, discard=rolls_back)
    keep = verdict is not None or (gang.can_continue_without_finished and not rolls_back)
    if verdict is not Phase.DONE:
        work = lost_work(gang, [*_unfinished(gang, keep=keep), *repeated])
        charge_lost_work(tx, gang, cause, work)
    had_stopped = gang.count(State.PREEMPTED) > 0
    for task in () if gang.is_over else list(gang.tasks):
        if task.state not in TERMINAL:
            _settle_task(tx, gang, task, verdict, keep=keep)
    for task in repeated:
        tx.requeue(gang, gang.tasks[task.index], Move.GANG_RESTARTED)
    tx.set_job(gang, stopping=None, attempt=None)
    if had_stopped:
        seconds = (tx.now - stopping.began_at) / SECOND
        tx.record(GangStopped(job.id, stopping.epoch, verdict or Phase.PENDING, seconds))
    if repeated:
        tasks = tuple(task.index for task in repeated)
        tx.record(DoneTasksRequeued(job.id, stopping.epoch, tasks))
    if verdict is None:
        waited = 0 if job.attempt is None else job.attempt.waited
        requeue(tx, gang, gang.job.failures if counted else 0, waited)
        if stopping.moves_to is not None:
            restart_at(tx, gang, stopping.moves_to)
    elif job.verdict is None:
        _end(tx, gang, verdict, cause)


def _outcome(gang: Gang, cause: Cause) -> tuple[Phase | None, Cause]:
    """How a job whose gang has stopped for this cause ends, and why. None if it is requeued."""
    verdict = VERDICTS.get(cause.kind)
    if verdict is not None:
        return verdict, cause
    if gang.is_complete and cause.kind is not CauseKind.ROLLBACK:
        return Phase.DONE, cause
    spec = gang.job.spec
    exhausted = gang.job.failures >= spec.max_retries
    if gang.job.cannot_start and cause.kind is CauseKind.FAILURE:
        return Phase.FAILED, causes.not_retried(cause, gang.job.start_refusals)
    # A reservation that was given back does not count as an attempt.
    spent = spec.restart is Restart.NEVER and gang.count(State.PREEMPTED) > 0
    if exhausted or spent:
        return Phase.FAILED, cause
    if gang.can_start_again or gang.repeats_done_tasks:
        return None, cause
    done = [task.index for task in gang.tasks if task.state is State.DONE]
    return Phase.FAILED, causes.partly_complete(cause, done) if done else cause


def _repeated(gang: Gang, verdict: Phase | None) -> list[Task]:
    """The done tasks that run again, because the whole gang does."""
    if verdict is not None or not gang.repeats_done_tasks:
        return []
    return [task for task in gang.tasks if task.state is State.DONE]


def _unfinished(gang: Gang, *, keep: bool) -> list[Task]:
    """The stopped tasks without those that succeeded, if the gang keeps their results."""
    stopped = [task for task in gang.tasks if task.state is State.PREEMPTED]
    return [task for task in stopped if not (keep and _has_succeeded(task))]


def _has_succeeded(task: Task) -> bool:
    return task.exit is not None and task.exit.is_success


def _settle_task(tx: Changes, gang: Gang, task: Task, verdict: Phase | None, *, keep: bool) -> None:
    """Move a task to the state that follows. A task that succeeded by itself is done, if the gang
    keeps its result."""
    unplaced = task.state in UNPLACED
    succeeded = not unplaced and _has_succeeded(task)
    if verdict is None:
        if succeeded and keep:
            tx.move(gang, task, Move.STOP_SETTLED, State.DONE)
        elif not unplaced:
            tx.requeue(gang, task, Move.STOP_SETTLED)
        return
    if not unplaced and (succeeded or verdict is Phase.DONE):
        target = State.DONE
    elif verdict is Phase.FAILED or (verdict is Phase.TIMED_OUT and not unplaced):
        target = State.FAILED
    else:
        # Also a task of a completed job that never had a place: it was not needed.
        target = State.CANCELLED
    tx.move(gang, task, Move.STOP_SETTLED, target, ended_at=task.ended_at or tx.now)


def stop_timed_out(tx: Changes, event: StopTimedOut) -> None:
    base = tx.base.gangs.get(event.job)
    if base is None or not base.count(State.PREEMPTING):
        return
    gang = tx.gang(event.job)
    timeout = tx.base.settings.stop_timeout(gang.job.spec.grace)
    late = [
        task
        for task in gang.tasks
        if task.state is State.PREEMPTING and _stopping_at(task) + timeout <= tx.now
    ]
    for task in late:
        stopped = tx.move(gang, task, Move.STOP_TIMED_OUT, State.PREEMPTED, ended_at=tx.now)
        tx.keep_charged(task)
        tx.record(TaskStopTimedOut(*about(task)))
        # A task that was given up in a shrink settles alone.
        if gang.job.stopping is None:
            task_stopped(tx, gang, stopped)
    settle(tx, gang)


def _stopping_at(task: Task) -> Micros:
    return 0 if task.place is None else task.place.stopping_at or 0


def time_limit_reached(tx: Changes, event: TimeLimitReached) -> None:
    base = tx.base.gangs.get(event.job)
    if base is None or base.job.end is not None:
        return
    limit = base.job.spec.time_limit
    released = [
        task.place.released_at
        for task in base.tasks
        if task.epoch == event.epoch and task.state in PLACED and task.place is not None
    ]
    if limit is None or not released or released[0] is None or tx.now < released[0] + limit:
        return
    stop_gang(tx, tx.gang(event.job), causes.time_limit_exceeded(limit))


def evicted(tx: Changes, event: Evicted) -> None:
    gang = tx.gang(event.job)
    if gang.job.is_array:
        raise Conflict(name_an_element(gang.job))
    evict(tx, gang, causes.evicted(event.why, event.by))


def evict(tx: Changes, gang: Gang, cause: Cause, *, moved: bool = False) -> None:
    """Stop a gang that has placed tasks. Raises Conflict for any other."""
    job = gang.job
    if job.is_ending or gang.is_idle:
        raise Conflict(f"job {job.id} is {job.phase}; only a job with placed tasks can be evicted")
    tx.record(JobEvicted(job.id, job.epoch, str(cause), cause.by or "", cause.job, moved))
    stop_gang(tx, gang, cause)


def restart_at(tx: Changes, gang: Gang, places: Nomination) -> None:
    """Let a gang that is moved start again at places that are kept for it, once it has stopped."""
    job = gang.job
    if job.stopping is not None:
        tx.set_job(gang, stopping=replace(job.stopping, moves_to=places), moved_at=places.at)
    elif job.end is None and not job.on_hold and tx.now < places.until:
        tx.set_pending(gang, nomination=places)
        tx.timer(places.until, NominationEnded(job.id, places.at))


def shrunk(tx: Changes, event: Shrunk) -> None:
    gang = tx.gang(event.job)
    roles = [role.name for role in gang.job.spec.roles]
    shrink(tx, gang, event.tasks, causes.preempted(roles, event.by, higher_priority=False))


def shrink(tx: Changes, gang: Gang, tasks: tuple[int, ...], eviction: Cause) -> None:
    """Stop tasks above the gang's minimum, or evict the gang if nothing of it would run on."""
    job = gang.job
    if job.is_ending:
        raise Conflict(f"job {job.id} is {job.phase}; it cannot be shrunk")
    started = gang.started()
    taken = [task for task in started if task.index in tasks]
    if not taken or len(taken) != len(set(tasks)):
        raise Conflict(f"job {job.id} can only give up tasks that have started")
    rest = [task for task in started if task.index not in tasks]
    done = [task for task in gang.tasks if task.state is State.DONE]
    bound = not (job.satisfied and job.spec.match is Match.ONCE_SATISFIED)
    if bound and not gang.meets_minimum(rest + done):
        raise Conflict(f"job {job.id} would fall below its minimum; evict it whole instead")
    # Nothing of the gang would run on, so its checkpoints are those of a whole gang.
    if not rest and job.spec.restart is not Restart.NEVER:
        evict(tx, gang, eviction)
        return
    for task in taken:
        if is_unclaimed(tx, task):
            return_unclaimed(tx, gang, task, Move.SHRUNK)
        else:
            _request_stop(tx, gang, task, Move.SHRUNK)
    earlier = {} if job.attempt is None or job.attempt.shrink is None else job.attempt.shrink.lost
    tx.set_attempt(gang, shrunk_at=tx.now, shrink=Shrink(eviction.job or "", earlier))
    tx.record(JobShrunk(job.id, job.epoch, tasks, eviction.job or ""))
    _arm_stop_timeout(tx, gang)
    _conclude_shrink(tx, gang)


def _note_shrink_loss(tx: Changes, gang: Gang, task: Task) -> None:
    shrink = None if gang.job.attempt is None else gang.job.attempt.shrink
    if shrink is not None:
        lost = total([shrink.lost, lost_work(gang, [task])])
        tx.set_attempt(gang, shrink=replace(shrink, lost=lost))


def _charge_shrink(tx: Changes, gang: Gang) -> None:
    """Charge what the tasks that the gang gave up have lost, once all of them have stopped."""
    shrink = None if gang.job.attempt is None else gang.job.attempt.shrink
    if shrink is not None:
        tx.set_attempt(gang, shrink=None)
        charge_lost_work(tx, gang, causes.shrunk(shrink.job), shrink.lost)
