"""When a pending gang is due: the time by which its queue is compared with others."""

import msgspec

from phalanx.core.reasons import (
    BelowMinResources,
    Fragmented,
    Gathering,
    HeldBack,
    NotEnough,
    QueueLimit,
    QueueQuota,
    Reason,
)
from phalanx.core.time_units import Micros
from phalanx.plan.cycle import order_of_queues
from phalanx.plan.first_gangs import overdue_at
from phalanx.plan.groups import group_of
from phalanx.plan.state.planner_state import Moment

#: The reasons of gangs whose turn depends on the order. All others wait for something else.
_ORDERED = (
    BelowMinResources,
    Fragmented,
    Gathering,
    HeldBack,
    NotEnough,
    QueueLimit,
    QueueQuota,
)


class QueueDueTime(msgspec.Struct, frozen=True):
    """The time by which a queue is compared with its siblings if the gang is its next one."""

    queue: str
    at: Micros
    used_share: float  #: the part of its share that the queue uses, at most 1


class DueTimes(msgspec.Struct, frozen=True):
    queues: tuple[QueueDueTime, ...]  #: the queue of the gang, and each queue above it
    overdue_at: Micros | None  #: when it comes before all queues; None: never


def due_times(state: Moment, job: str, reason: Reason | None) -> DueTimes | None:
    """When a gang is due that is pending for this reason; None if it waits for something else than
    its turn."""
    gang = state.pending.gangs.get(job)
    if gang is None or not isinstance(reason, _ORDERED):
        return None
    if isinstance(reason, QueueLimit | QueueQuota) and reason.want is not None:
        return None
    gangs = group_of(gang, state.pending).members
    found = order_of_queues(state).due_times(gangs)
    queues = tuple(QueueDueTime(queue, at, share) for queue, share, at in found)
    return DueTimes(queues, overdue_at(state, gangs))
