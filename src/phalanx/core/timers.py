"""The timers that follow from the rows, for a leader that has just loaded them.

While a leader runs, the handlers set the same timers when they make the changes.
"""

from collections.abc import Iterator

from phalanx.core.changes import Timer
from phalanx.core.events import (
    AlarmsDue,
    BackoffEnded,
    CronDue,
    CronReplacementDue,
    LongRunDue,
    NominationEnded,
    RegroupDue,
    ReservationExpired,
    ScheduleTimedOut,
    StallDue,
    StartTimedOut,
    StopTimedOut,
    TimeLimitReached,
)
from phalanx.core.gang import Gang
from phalanx.core.lost_work import long_run
from phalanx.core.model import Cron
from phalanx.core.settings import ALARM_DELAY, CoreSettings
from phalanx.core.states import PLACED, State
from phalanx.core.time_units import Micros


def timers_of(gang: Gang, settings: CoreSettings, loaded_at: Micros) -> Iterator[Timer]:
    job = gang.job
    pending, attempt = job.pending, job.attempt
    if pending is not None and pending.not_before > loaded_at:
        yield Timer(pending.not_before, BackoffEnded(job.id))
    for timeout in job.timeouts:
        yield Timer(timeout.at, ScheduleTimedOut(job.id, timeout.at))
    if pending is not None and pending.nomination is not None:
        yield Timer(pending.nomination.until, NominationEnded(job.id, pending.nomination.at))
    if attempt is not None and attempt.short_since is not None:
        at = attempt.short_since + settings.regroup_after
        yield Timer(at, RegroupDue(job.id, attempt.short_since))
    if attempt is not None and attempt.alarms:
        at = min(alarm.at for alarm in attempt.alarms)
        yield Timer(at + ALARM_DELAY, AlarmsDue(job.id))
    yield from _task_timers(gang, settings, loaded_at)


def _task_timers(gang: Gang, settings: CoreSettings, loaded_at: Micros) -> Iterator[Timer]:
    """One timer for all tasks of an epoch that are in the same state.

    Workers could not report while there was no leader, so their deadlines start again.
    """
    job, spec = gang.job.id, gang.job.spec
    unreleased = {task.epoch for task in gang.unreleased()}
    starting = {t.epoch for t in gang.tasks if t.state is State.RESERVED and t.released}
    for epoch in sorted(unreleased):
        yield Timer(loaded_at + settings.accept_timeout(spec), ReservationExpired(job, epoch))
    for epoch in sorted(starting):
        yield Timer(loaded_at + settings.start, StartTimedOut(job, epoch))
    if gang.count(State.PREEMPTING):
        yield Timer(loaded_at + settings.stop_timeout(spec.grace), StopTimedOut(job))
    attempts = {t.epoch: t.released_at for t in gang.tasks if t.state in PLACED}
    for epoch, at in attempts.items():
        if at is not None and spec.time_limit is not None:
            yield Timer(at + spec.time_limit, TimeLimitReached(job, epoch))
        if at is not None and (long_running := long_run(spec, settings)) is not None:
            yield Timer(at + long_running, LongRunDue(job, epoch))
        if at is not None and spec.stall_after is not None:
            yield Timer(max(at, loaded_at) + spec.stall_after, StallDue(job, epoch))


def cron_timers(cron: Cron) -> Iterator[Timer]:
    if cron.next_at is not None:
        yield Timer(cron.next_at, CronDue(cron.key, cron.next_at))
    if cron.replacing_at is not None and not cron.unfinished:
        yield Timer(cron.replacing_at, CronReplacementDue(cron.key, cron.replacing_at))
