"""The first gang of every queue, and the gangs that have been pending for too long."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import PendingGang
from phalanx.plan.pending import Bucket, KeyedBucket, is_starving
from phalanx.plan.state.planner_state import Moment

#: A queue is compared with others by a late gang as if it deserved so many times as much.
SHARES_IF_LATE = 2.5


class QueueSurvey(NamedTuple):
    keyed: list[KeyedBucket]  #: all buckets, except those whose gangs must not start
    firsts: list[Bucket]  #: the first gang of every queue, as its bucket
    late: set[str]  #: jobs that are late, at most one of each queue
    overdue: set[str]  #: those of them that are overdue


def survey(state: Moment, never_start: Collection[Bucket]) -> QueueSurvey:
    """Find the first gang of every queue, and the oldest late one.

    Of gangs with equal requests only the first counts.
    """
    policy, now = state.policy, state.now
    keyed: list[KeyedBucket] = []
    oldest: dict[str, PendingGang] = {}
    for number, bucket in enumerate(state.pending.buckets.values()):
        if never_start and bucket in never_start:
            continue
        starves_at, before, after, late_from = bucket.keys(policy)
        keyed.append((before if now < starves_at else after, number, bucket))
        if now < late_from:
            continue
        queue, head = bucket.first.queue, bucket.head
        other = oldest.get(queue)
        is_oldest = other is None or (head.since or 0) < (other.since or 0)
        if is_oldest and is_late(state, head):
            oldest[queue] = head
    late = {gang.job for gang in oldest.values()}
    overdue = {gang.job for gang in oldest.values() if is_overdue(state, gang)}
    return QueueSurvey(keyed, first_of_each_queue(keyed), late, overdue)


def first_of_each_queue(keyed: Iterable[KeyedBucket]) -> list[Bucket]:
    """The bucket with the first gang of every queue."""
    firsts: dict[str, KeyedBucket] = {}
    for each in keyed:
        queue = each[2].first.queue
        first = firsts.get(queue)
        if first is None or each[0] < first[0]:
            firsts[queue] = each
    return [bucket for _, _, bucket in firsts.values()]


def deserve_starving(shares: FairShares, state: Moment, firsts: list[Bucket]) -> None:
    """Let every queue whose first gang is starving deserve at least that gang."""
    if shares.is_contended:
        for bucket in firsts:
            if is_starving(state.policy, bucket.head, state.now):
                minimum, _ = bucket.amounts(state.table)
                shares.deserve_at_least(bucket.first.queue, minimum)


def is_late(state: Moment, gang: PendingGang) -> bool:
    """Whether a gang has been pending for more than half as long as `max_wait` allows."""
    if not state.policy.max_wait or gang.since is None:
        return False
    after = state.wait_times.late_after(state.policy, gang.size, gang.duration)
    return state.now - gang.since >= after


def is_overdue(state: Moment, gang: PendingGang) -> bool:
    """Whether a gang has been pending for longer than `max_wait` allows."""
    if not state.policy.max_wait or gang.since is None:
        return False
    bound = state.wait_times.bound(state.policy, gang.size, gang.duration)
    return state.now - gang.since >= bound
