"""Alarms: abnormal values that tasks report, and what the job's `watch` rules make of them.

In a synchronous gang an abnormal value of one rank reaches all ranks within a step, and their
reports arrive in any order. So the first alarm of an attempt only starts a short delay. Then the
alarms are judged together: the worker of the rank with the earliest step is suspected, and the
strongest action of all rules is taken. A stop of the gang for any other cause judges them at once.
"""

from phalanx.core import causes
from phalanx.core.causes import Cause, CauseKind
from phalanx.core.changes import Changes
from phalanx.core.events import AbnormalValue, AlarmsDue, ValuesAbnormal
from phalanx.core.gang import Gang, GangProgress, rank_in
from phalanx.core.handlers.requeue import forgive
from phalanx.core.handlers.suspicion import blame
from phalanx.core.model import RaisedAlarm, SuspicionKind, Task
from phalanx.core.records import TaskValueAbnormal, WorkerSuspected, about
from phalanx.core.settings import ALARM_DELAY
from phalanx.core.spec.watch import ACTIONS, WatchAction
from phalanx.core.states import State

#: Alarms that are judged together, at most. Of more, those with the earliest steps are kept.
_MOST_ALARMS = 64


def values_abnormal(tx: Changes, event: ValuesAbnormal) -> None:
    gang, task = tx.attempt(event.task, event.epoch)
    if gang.job.end is not None or task.state not in (State.RUNNING, State.PREEMPTING):
        return
    rank = rank_in(gang.tasks, task.index)
    for value in event.values:
        rules = gang.job.spec.watch.get(value.name)
        action = None if rules is None else rules.action(value.kind)
        if action is not None and _is_new(gang, task, value):
            what = value.name, value.kind, value.step
            record = TaskValueAbnormal(*about(task), rank, *what, value.value, value.median)
            tx.record(record)
            alarm = RaisedAlarm(task.index, rank, value.step, record.text, action, tx.now)
            _raise(tx, gang, alarm)


def _is_new(gang: Gang, task: Task, value: AbnormalValue) -> bool:
    """Note the alarm in memory; false if the same report has arrived before."""
    progress = gang.progress or GangProgress(0, {})
    key = (task.index, value.name, value.kind)
    last = progress.alarms.get(key)
    if last is not None and last >= value.step:
        return False
    alarms = progress.alarms | {key: value.step}
    gang.progress = GangProgress(progress.at, progress.steps, alarms)
    return True


def _raise(tx: Changes, gang: Gang, alarm: RaisedAlarm) -> None:
    attempt = gang.job.attempt
    earlier = () if attempt is None else attempt.alarms
    if not earlier:
        tx.timer(tx.now + ALARM_DELAY, AlarmsDue(gang.job.id))
    alarms = sorted((*earlier, alarm), key=lambda each: (each.step, each.at, each.task))
    kept = alarms[:_MOST_ALARMS]
    strongest = _strongest(alarms)
    if strongest not in kept:
        kept[-1] = strongest
    tx.set_attempt(gang, alarms=tuple(kept))


def _strongest(alarms: list[RaisedAlarm] | tuple[RaisedAlarm, ...]) -> RaisedAlarm:
    """The earliest alarm with the strongest action."""
    return max(alarms, key=lambda alarm: ACTIONS.index(alarm.action))


def has_alarms(gang: Gang) -> bool:
    return gang.job.attempt is not None and bool(gang.job.attempt.alarms)


def are_due(gang: Gang, tx: Changes) -> bool:
    """Whether there are alarms, and the delay after the first of them is over."""
    alarms = () if gang.job.attempt is None else gang.job.attempt.alarms
    return bool(alarms) and min(a.at for a in alarms) + ALARM_DELAY <= tx.now


def judge_alarms(tx: Changes, gang: Gang) -> Cause | None:
    """Settle the alarms of the attempt: suspect the worker where they began. The cause for which
    the gang has to stop, if any."""
    attempt = gang.job.attempt
    if attempt is None or not attempt.alarms:
        return None
    alarms = attempt.alarms
    strongest = _strongest(alarms)
    is_event = strongest.action is WatchAction.EVENT
    if not _is_repeated(gang, alarms):
        forgive(tx, gang)
    # From here on the attempt is not healthy, so what follows is not forgiven at once.
    healthy_since = tx.now if is_event and attempt.healthy_since is not None else None
    tx.set_attempt(gang, alarms=(), healthy_since=healthy_since)
    _suspect_origin(tx, gang, alarms)
    if is_event:
        return None
    tx.set_job(gang, abnormal_step=alarms[0].step)
    if strongest.action is WatchAction.RESTART:
        tx.set_job(gang, resume_step=gang.job.saved_step)
    is_final = strongest.action is WatchAction.FAIL
    return causes.abnormal_value(strongest.task, strongest.what, is_final=is_final)


def _is_repeated(gang: Gang, alarms: tuple[RaisedAlarm, ...]) -> bool:
    """Whether the gang has come no further than to the abnormal value of an earlier attempt. Such a
    job would start again forever, if the time in between counted as healthy."""
    last = gang.job.abnormal_step
    return last is not None and alarms[0].step <= last


def _suspect_origin(tx: Changes, gang: Gang, alarms: tuple[RaisedAlarm, ...]) -> None:
    """Suspect the worker of the earliest step. If ranks of several workers have the same step, the
    program is at fault rather than a worker."""
    first = [alarm for alarm in alarms if alarm.step == alarms[0].step]
    tasks = [gang.tasks[alarm.task] for alarm in first]
    is_one = len({task.worker for task in tasks}) == 1
    if is_one and blame(tx, gang, tasks[0], SuspicionKind.VALUE):
        tx.record(WorkerSuspected(*about(tasks[0]), first[0].rank, first[0].step))


def is_after_alarm(gang: Gang, step: int | None) -> bool:
    """Whether work that is saved now includes an abnormal value and must not be used. `step` is the
    saved one; None is the present one."""
    job = gang.job
    if job.stopping is not None and job.stopping.cause.kind is CauseKind.ROLLBACK:
        return True
    alarms = () if job.attempt is None else job.attempt.alarms
    harmful = [alarm.step for alarm in alarms if alarm.action is not WatchAction.EVENT]
    return bool(harmful) and (step is None or step >= min(harmful))
