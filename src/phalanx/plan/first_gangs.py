"""The first gang of every queue, and the gangs that have been pending for too long."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from phalanx.core.time_units import Micros
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import PendingGang
from phalanx.plan.pending import Bucket, KeyedBucket, is_starving
from phalanx.plan.state.planner_state import Moment


class QueueSurvey(NamedTuple):
    #: By queue: its buckets in their order, except those whose gangs must not start.
    keyed: dict[str, list[KeyedBucket]]
    firsts: list[Bucket]  #: the first gang of every queue, as its bucket
    overdue: set[str]  #: jobs that are overdue, at most one of each queue


def survey(state: Moment, never_start: Collection[Bucket]) -> QueueSurvey:
    """Find the first gang of every queue, and the oldest one that is overdue.

    Of gangs with equal requests only the first counts.
    """
    restricted = {bucket.first.queue for bucket in never_start}
    keyed: dict[str, list[KeyedBucket]] = {}
    overdue: set[str] = set()
    for queue, order in state.in_order().items():
        keyed[queue] = order.keyed
        if queue in restricted:
            keyed[queue] = [each for each in order.keyed if each[2] not in never_start]
        may_be_overdue = state.now >= order.overdue_from
        if may_be_overdue and (gang := _oldest_overdue(state, keyed[queue])) is not None:
            overdue.add(gang.job)
    return QueueSurvey(keyed, first_of_each(keyed.values()), overdue)


def _oldest_overdue(state: Moment, keyed: Iterable[KeyedBucket]) -> PendingGang | None:
    """The overdue gang of a queue that has been pending for longest, if there is one."""
    policy, now = state.policy, state.now
    since = sorted(
        (bucket.head.since or 0, number, bucket)
        for _, number, bucket in keyed
        if now >= bucket.keys(policy)[3]
    )
    heads = (bucket.head for _, _, bucket in since)
    return next((gang for gang in heads if is_overdue(state, gang)), None)


def first_of_each(queues: Iterable[list[KeyedBucket]]) -> list[Bucket]:
    """The bucket with the first gang of every queue."""
    return [keyed[0][2] for keyed in queues if keyed]


def deserve_starving(shares: FairShares, state: Moment, firsts: list[Bucket]) -> None:
    """Let every queue whose first gang is starving deserve at least that gang."""
    if shares.is_contended:
        for bucket in firsts:
            if is_starving(state.policy, bucket.head, state.now):
                minimum, _ = bucket.amounts(state.table)
                shares.deserve_at_least(bucket.first.queue, minimum)


def is_overdue(state: Moment, gang: PendingGang) -> bool:
    """Whether a gang has been pending for longer than `max_wait` allows."""
    at = overdue_at(state, gang)
    return at is not None and state.now >= at


def overdue_at(state: Moment, gang: PendingGang) -> Micros | None:
    """When a gang has been pending for as long as `max_wait` allows; None: it is never overdue."""
    if not state.policy.max_wait or gang.since is None:
        return None
    return gang.since + state.wait_times.bound(state.policy, gang.size, gang.duration)
