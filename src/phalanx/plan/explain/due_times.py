"""When a pending gang is due: the time by which its queue is compared with others."""

import math

import msgspec
import numpy as np

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
from phalanx.plan.cycle import order_of_queues, settled_shares
from phalanx.plan.fairshare.shares import FairShares
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
    counted_share: float  #: the part of its share by which the time is computed, at most 1
    #: The part of its share that the queue uses; None if it deserves nothing of a resource that it
    #: uses or the gang needs.
    used_share: float | None


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
    shares = settled_shares(state)
    found = order_of_queues(state).due_times(gangs)
    queues = tuple(
        QueueDueTime(queue, at, counted, _used_share(shares, queue, counted))
        for queue, counted, at in found
    )
    return DueTimes(queues, overdue_at(state, gangs))


def _used_share(shares: FairShares, queue: str, counted: float) -> float | None:
    """The part of its share that a queue uses, however much that is."""
    part, used = shares.usage(shares.branches[queue], np.zeros(len(shares.capacity)))
    return None if part < counted or math.isinf(used) else used
