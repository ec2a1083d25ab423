"""The timers that a job's rows call for, for a leader that has just loaded them.

While a leader runs, each timer is set by the change that calls for it; these are the same ones.
"""

from collections.abc import Iterator

from phalanx.core.changes import Timer
from phalanx.core.events import (
    BackoffEnded,
    RegroupDue,
    ReservationExpired,
    ScheduleTimedOut,
    StallDue,
    StartTimedOut,
    StopTimedOut,
    TimeLimitReached,
)
from phalanx.core.gang import Gang
from phalanx.core.settings import Settings
from phalanx.core.spec import Micros
from phalanx.core.states import State


def timers_of(gang: Gang, settings: Settings, loaded_at: Micros) -> Iterator[Timer]:
    job, spec = gang.job, gang.job.spec
    if job.not_before > loaded_at:
        yield Timer(job.not_before, BackoffEnded(job.id))
    if job.waiting_since is not None and spec.schedule_timeout is not None:
        at = job.waiting_since + spec.schedule_timeout
        yield Timer(at, ScheduleTimedOut(job.id, job.waiting_since))
    if job.short_since is not None:
        yield Timer(job.short_since + settings.regroup_after, RegroupDue(job.id, job.short_since))
    yield from _task_timers(gang, settings, loaded_at)


def _task_timers(gang: Gang, settings: Settings, loaded_at: Micros) -> Iterator[Timer]:
    """One timer for all tasks of an epoch that are at the same point."""
    job, spec = gang.job.id, gang.job.spec
    reserved: dict[int, Micros] = {}
    released: dict[int, Micros] = {}
    running: dict[int, Micros] = {}
    stopping: dict[Micros, None] = {}
    for task in gang.tasks:
        if task.state is State.PREEMPTING and task.stopping_at is not None:
            stopping[task.stopping_at] = None
        elif task.state is State.RESERVED and task.released_at is None:
            reserved[task.epoch] = task.placed_at or loaded_at
        elif task.state in (State.RESERVED, State.RUNNING) and task.released_at is not None:
            running[task.epoch] = task.released_at
            if task.state is State.RESERVED:
                released[task.epoch] = task.released_at
    for epoch, at in reserved.items():
        yield Timer(at + settings.accept, ReservationExpired(job, epoch))
    for epoch, at in released.items():
        yield Timer(at + settings.start, StartTimedOut(job, epoch))
    for at in stopping:
        yield Timer(at + settings.stop_timeout(spec.grace), StopTimedOut(job))
    for epoch, at in running.items():
        if spec.time_limit is not None:
            yield Timer(at + spec.time_limit, TimeLimitReached(job, epoch))
        if spec.stall_after is not None:
            yield Timer(max(at, loaded_at) + spec.stall_after, StallDue(job, epoch))
