"""The first gang of every queue, and the gangs that have been pending for too long."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from phalanx.core.time_units import Micros
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.groups import last_member
from phalanx.plan.model import NEVER, PendingGang
from phalanx.plan.pending import Bucket, KeyedBucket, is_starving
from phalanx.plan.state.planner_state import Moment

#: A gang, or the gangs of a group.
_Gangs = tuple[PendingGang, ...]

#: The overdue gang or group of a queue that has been pending for longest, and the others in order.
OverdueInQueue = tuple[_Gangs, Iterator[_Gangs]]


class QueueSurvey(NamedTuple):
    #: By queue: its buckets in their order, except those whose gangs must not start.
    keyed: dict[str, list[KeyedBucket]]
    firsts: list[Bucket]  #: the first gang of every queue, as its bucket
    overdue_in: list[OverdueInQueue]  #: of every queue that has any

    @property
    def overdue(self) -> set[str]:
        """Jobs that are overdue: of each queue the oldest gang, or the gangs of a group."""
        return {gang.job for oldest, _ in self.overdue_in for gang in oldest}


def survey(
    state: Moment, never_start: Collection[Bucket], groups: Iterable[_Gangs] = ()
) -> QueueSurvey:
    """Find the first gang of every queue, and the oldest gang or group that is overdue.

    Of gangs with equal requests only the first counts. `groups` are complete and fit the cluster.
    """
    restricted = {bucket.first.queue for bucket in never_start}
    keyed: dict[str, list[KeyedBucket]] = {}
    grouped: dict[str, list[_Gangs]] = {}
    for gangs in groups:
        grouped.setdefault(last_member(gangs).queue, []).append(gangs)
    may_be_overdue = dict.fromkeys(grouped)
    for queue, order in state.in_order().items():
        keyed[queue] = order.keyed
        if queue in restricted:
            keyed[queue] = [each for each in order.keyed if each[2] not in never_start]
        if state.now >= order.overdue_from:
            may_be_overdue[queue] = None
    overdue_in: list[OverdueInQueue] = []
    for queue in may_be_overdue:
        others = _overdue_in(state, keyed.get(queue, ()), grouped.get(queue, ()))
        overdue_in += ((oldest, others) for oldest in islice(others, 1))
    return QueueSurvey(keyed, first_of_each(keyed.values()), overdue_in)


def _overdue_in(
    state: Moment, keyed: Iterable[KeyedBucket], groups: Iterable[_Gangs]
) -> Iterator[_Gangs]:
    """The overdue gangs and groups of a queue, the one that has been pending for longest first."""
    policy, now = state.policy, state.now
    since: list[tuple[Micros, int, _Gangs]] = [
        (bucket.head.since or 0, number, (bucket.head,))
        for _, number, bucket in keyed
        if now >= bucket.keys(policy)[3]
    ]
    since += ((_pending_since(gangs) or 0, NEVER, gangs) for gangs in groups)
    since.sort(key=lambda each: each[:2])
    return (gangs for _, _, gangs in since if is_overdue(state, gangs))


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


def is_overdue(state: Moment, gangs: Sequence[PendingGang]) -> bool:
    """Whether a gang has been pending for longer than `max_wait` allows; a group for longer than
    any of its members may be."""
    at = overdue_at(state, gangs)
    return at is not None and state.now >= at


def overdue_at(state: Moment, gangs: Sequence[PendingGang]) -> Micros | None:
    """When a gang or a group has been pending for as long as `max_wait` allows; None: it is never
    overdue."""
    policy, since = state.policy, _pending_since(gangs)
    if not policy.max_wait or since is None:
        return None
    bounds = (state.wait_times.bound(policy, gang.size, gang.duration) for gang in gangs)
    return since + max(bounds)


def _pending_since(gangs: Sequence[PendingGang]) -> Micros | None:
    """When the last of the gangs became eligible; None if one of them is not."""
    since = [gang.since for gang in gangs if gang.since is not None]
    return max(since) if len(since) == len(gangs) else None
