"""The first gang of every queue, and the gangs that have been pending for too long."""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import PendingGang
from phalanx.plan.pending import Bucket, KeyedBucket, is_starving
from phalanx.plan.state.planner_state import Moment


class QueueSurvey(NamedTuple):
    keyed: list[KeyedBucket]  #: all buckets, except those whose gangs must not start
    firsts: list[Bucket]  #: the first gang of every queue, as its bucket
    overdue: set[str]  #: jobs that are overdue, at most one of each queue


def survey(state: Moment, never_start: Collection[Bucket]) -> QueueSurvey:
    """Find the first gang of every queue, and the oldest overdue one.

    Of gangs with equal requests only the first counts. While gangs of a queue run that were
    overdue, another gang of that queue is overdue only later.
    """
    policy, now, running = state.policy, state.now, state.running.by_job
    ran = Counter(running[job].gang.queue for job in state.overdue if job in running)
    keyed: list[KeyedBucket] = []
    oldest: dict[str, PendingGang] = {}
    for number, bucket in enumerate(state.pending.buckets.values()):
        if never_start and bucket in never_start:
            continue
        starves_at, before, after, overdue_from = bucket.keys(policy)
        keyed.append((before if now < starves_at else after, number, bucket))
        if now < overdue_from:
            continue
        queue, head = bucket.first.queue, bucket.head
        other = oldest.get(queue)
        is_oldest = other is None or (head.since or 0) < (other.since or 0)
        if is_oldest and is_overdue(state, head, beside=ran[queue]):
            oldest[queue] = head
    overdue = {gang.job for gang in oldest.values()}
    return QueueSurvey(keyed, first_of_each_queue(keyed), overdue)


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


def is_overdue(state: Moment, gang: PendingGang, *, beside: int = 0) -> bool:
    """Whether a gang has been pending for longer than `max_wait` allows, and half as long again for
    each overdue gang of its queue that it would run beside."""
    policy = state.policy
    if not policy.max_wait or gang.since is None:
        return False
    bound = state.wait_times.bound(policy, gang.size, gang.duration)
    return state.now - gang.since >= bound + beside * bound // 2
