"""Stopping a gang so that it can go back to waiting, or end, as one.

Every way out goes through here: `drain` tells all tasks to stop, `settle` gives the verdict in the
same commit in which the last of them has stopped. A gang that has nothing to stop settles at once.
"""

from msgspec.structs import replace

from phalanx.core import causes
from phalanx.core.causes import Cause, CauseKind
from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict
from phalanx.core.events import Evicted, Shrunk, StopTimedOut, TimeLimitReached
from phalanx.core.gang import Gang
from phalanx.core.handlers.checkpoint import drop_saved, settle_checkpoints
from phalanx.core.handlers.holds import let_go
from phalanx.core.handlers.lost_work import lose
from phalanx.core.handlers.requeue import forgive, wait_again
from phalanx.core.handlers.reserve import give_back, with_mates
from phalanx.core.model import Drain, Phase, Task
from phalanx.core.records import (
    GangStopped,
    GangStopping,
    JobEnded,
    JobEvicted,
    JobShrunk,
    TaskStopTimedOut,
    about,
)
from phalanx.core.spec.job import Match, Restart
from phalanx.core.states import PLACED, TERMINAL, WAITING, Move, State

#: Verdicts that follow from the cause alone.
_VERDICTS = {
    CauseKind.COMPLETE: Phase.DONE,
    CauseKind.CANCEL: Phase.CANCELLED,
    CauseKind.SCHEDULE_TIMEOUT: Phase.TIMED_OUT,
    CauseKind.DEPENDENCY: Phase.FAILED,
    CauseKind.TIME_LIMIT: Phase.TIMED_OUT,
}


def drain(tx: Changes, gang: Gang, cause: Cause, *, counted: bool = False) -> None:
    """Stop every task of the gang. A drain that is open only takes over a higher cause."""
    job = gang.job
    if job.drain is not None:
        if cause.outranks(job.drain.cause):
            tx.set_job(gang, drain=replace(job.drain, cause=cause))
        return
    forgive(tx, gang)
    let_go(tx, gang)
    tx.set_job(gang, nomination=None, drain=Drain(cause, job.epoch, tx.now, counted))
    if gang.unreleased():
        mates = with_mates(tx, gang)[1:]
        give_back(tx, gang, Move.DRAIN_BEGAN)
        for mate in mates:
            wait_again(tx, mate, setbacks=0)
    stopping = gang.started()
    lose(tx, gang, cause, stopping, [t for t in gang.tasks if t.state is State.PREEMPTED])
    for task in stopping:
        _tell_to_stop(tx, gang, task, Move.DRAIN_BEGAN)
    if stopping or gang.count(State.PREEMPTED):
        tx.record(
            GangStopping(job.id, job.epoch, cause.kind, str(cause), len(stopping), cause.task)
        )
    if stopping:
        _arm_stop_timeout(tx, gang)
    settle(tx, gang)


def _tell_to_stop(tx: Changes, gang: Gang, task: Task, move: Move) -> None:
    tx.move(gang, task, move, State.PREEMPTING, stopping_at=tx.now)
    tx.wake_worker_of(task)


def _arm_stop_timeout(tx: Changes, gang: Gang) -> None:
    grace = tx.base.settings.stop_timeout(gang.job.spec.grace)
    tx.timer(tx.now + grace, StopTimedOut(gang.job.id))


def task_stopped(tx: Changes, gang: Gang, task: Task) -> None:
    """A task has become `preempted`; its gang, or the task alone, may settle."""
    if gang.job.drain is not None:
        settle(tx, gang)
        return
    drop_saved(tx, gang, task)
    task = gang.tasks[task.index]
    if task.exit is not None and task.exit.is_success:
        tx.move(gang, task, Move.SHRINK_SETTLED, State.DONE, ended_at=tx.now)
    else:
        tx.rest(gang, task, Move.SHRINK_SETTLED)
    complete_if_done(tx, gang)


def complete_if_done(tx: Changes, gang: Gang) -> None:
    """End the job if its work is done; what still runs is stopped."""
    if gang.job.verdict is None and gang.job.drain is None and gang.is_complete:
        cause = causes.complete()
        _end(tx, gang, Phase.DONE, cause)
        drain(tx, gang, cause)


def _end(tx: Changes, gang: Gang, verdict: Phase, cause: Cause) -> None:
    tx.set_job(gang, verdict=verdict, cause=cause)
    tx.verdicts.append(gang.job.id)
    tx.record(JobEnded(gang.job.id, verdict, str(cause)))


def settle(tx: Changes, gang: Gang) -> None:
    """If the last task has stopped: the verdict, and every task to where it leads."""
    job = gang.job
    if job.drain is None or not gang.is_idle:
        return
    cause, counted = job.drain.cause, job.drain.counted
    verdict = job.verdict or _verdict(gang)
    settle_checkpoints(tx, gang)
    had_stopped = gang.count(State.PREEMPTED) > 0
    keep = verdict is not None or gang.can_go_on_alone
    for task in list(gang.tasks):
        if task.state not in TERMINAL:
            _settle_task(tx, gang, task, verdict, keep=keep)
    tx.set_job(
        gang,
        drain=None,
        healthy_since=None,
        short_since=None,
        shrunk_at=None,
        safe_at=None,
        waiting_since=None,
    )
    if had_stopped:
        seconds = (tx.now - job.drain.began_at) / 1_000_000
        tx.record(GangStopped(job.id, job.drain.epoch, verdict or Phase.PENDING, seconds))
    if verdict is None:
        wait_again(tx, gang, setbacks=gang.job.failures if counted else 0)
    elif job.verdict is None:
        _end(tx, gang, verdict, cause)


def _verdict(gang: Gang) -> Phase | None:
    """How the job ends, or None if it waits again."""
    job = gang.job
    if job.drain is None:
        raise AssertionError(f"bug: job {job.id} settles without a drain")
    verdict = _VERDICTS.get(job.drain.cause.kind)
    if verdict is not None:
        return verdict
    if gang.is_complete:
        return Phase.DONE
    spec = job.spec
    exhausted = job.failures >= spec.max_retries
    # A reservation that was given back is no attempt.
    spent = spec.restart is Restart.NEVER and gang.count(State.PREEMPTED) > 0
    if exhausted or spent or not gang.can_start_again:
        return Phase.FAILED
    return None


def _settle_task(tx: Changes, gang: Gang, task: Task, verdict: Phase | None, *, keep: bool) -> None:
    """Tasks that ended well by themselves are done, if what they did is kept."""
    waits = task.state in WAITING
    ended_well = not waits and task.exit is not None and task.exit.is_success
    if verdict is None:
        if ended_well and keep:
            tx.move(gang, task, Move.DRAIN_SETTLED, State.DONE)
        elif not waits:
            tx.rest(gang, task, Move.DRAIN_SETTLED)
        return
    if not waits and (ended_well or verdict is Phase.DONE):
        target = State.DONE
    elif verdict is Phase.FAILED or (verdict is Phase.TIMED_OUT and not waits):
        target = State.FAILED
    else:
        # Also a task of a completed job that never had a place: it was not needed.
        target = State.CANCELLED
    tx.move(gang, task, Move.DRAIN_SETTLED, target, ended_at=task.ended_at or tx.now)


def stop_timed_out(tx: Changes, event: StopTimedOut) -> None:
    base = tx.base.gangs.get(event.job)
    if base is None or not base.count(State.PREEMPTING):
        return
    gang = tx.gang(event.job)
    timeout = tx.base.settings.stop_timeout(gang.job.spec.grace)
    late = [
        task
        for task in gang.tasks
        if task.state is State.PREEMPTING and (task.stopping_at or 0) + timeout <= tx.now
    ]
    for task in late:
        stopped = tx.move(gang, task, Move.STOP_TIMED_OUT, State.PREEMPTED, ended_at=tx.now)
        tx.linger(task)
        tx.record(TaskStopTimedOut(*about(task)))
        # Siblings may have settled the gang already; a shrunk task settles alone.
        if gang.job.drain is None:
            task_stopped(tx, gang, stopped)
    settle(tx, gang)


def time_limit_reached(tx: Changes, event: TimeLimitReached) -> None:
    base = tx.base.gangs.get(event.job)
    if base is None or base.job.verdict is not None:
        return
    limit = base.job.spec.time_limit
    over = [
        task
        for task in base.tasks
        if task.epoch == event.epoch and task.state in PLACED and task.released
    ]
    if limit is None or not over or tx.now < (over[0].released_at or 0) + limit:
        return
    drain(tx, tx.gang(event.job), causes.time_limit_exceeded(limit))


def evicted(tx: Changes, event: Evicted) -> None:
    gang = tx.gang(event.job)
    job = gang.job
    if job.verdict is not None or job.drain is not None or gang.is_idle:
        raise Conflict(f"job {job.id} is {job.phase}; only a job that has a place can be evicted")
    tx.record(JobEvicted(job.id, job.epoch, event.by, event.why))
    drain(tx, gang, causes.evicted(event.why, event.by))


def shrunk(tx: Changes, event: Shrunk) -> None:
    gang = tx.gang(event.job)
    job = gang.job
    if job.verdict is not None or job.drain is not None:
        raise Conflict(f"job {job.id} is {job.phase}; it cannot give tasks now")
    started = gang.started()
    taken = [task for task in started if task.index in event.tasks]
    if not taken or len(taken) != len(set(event.tasks)):
        raise Conflict(f"job {job.id} can only give tasks that have started")
    rest = [task for task in started if task.index not in event.tasks]
    rest += [task for task in gang.tasks if task.state is State.DONE]
    bound = not (job.satisfied and job.spec.match is Match.ONCE_SATISFIED)
    if bound and not gang.meets_minimum(rest):
        raise Conflict(f"job {job.id} would fall below its minimum; evict it whole instead")
    lose(tx, gang, causes.shrunk(event.by), taken)
    for task in taken:
        _tell_to_stop(tx, gang, task, Move.SHRUNK)
    tx.set_job(gang, shrunk_at=tx.now)
    tx.record(JobShrunk(job.id, job.epoch, event.tasks, event.by))
    _arm_stop_timeout(tx, gang)
