"""The order in which gangs are served: that queue goes next whose first gang is due first.

Queues are compared level by level, from the root down. Only queues whose usage or first gang has
changed are compared again.
"""

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from functools import partial
from operator import attrgetter
from typing import NamedTuple, Protocol

import numpy as np
from msgspec.structs import replace

from phalanx.core.time_units import HOUR, Micros
from phalanx.plan.fairshare.queue_tree import QueueBranch
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.fairshare.user_shares import UserShares
from phalanx.plan.groups import last_member
from phalanx.plan.model import WHOLE_SHARE_LATER, OrderKey, PendingGang, PlannerPolicy
from phalanx.plan.pending import USUAL, Bucket, KeyedBucket, is_starving, order_key
from phalanx.plan.placement.amounts import minimum_amounts
from phalanx.plan.state.nodes import Floats

_Key = tuple[object, ...]

#: The turn of gangs that are not overdue.
_USUAL_TURN = 3

_AGED_AT, _CREATED_AT = attrgetter("aged_at"), attrgetter("created_at")


class Candidate(NamedTuple):
    """A gang that is to be served, or the gangs of a group."""

    gangs: tuple[PendingGang, ...]
    last: PendingGang  #: the last member in the order; the group is served with its queue
    bucket: Bucket | None = None
    position: int = 0  #: of the gang in its bucket

    @property
    def queue(self) -> str:
        return self.last.queue


def group_candidate(gangs: tuple[PendingGang, ...]) -> Candidate:
    return Candidate(gangs, last_member(gangs))


class Prospect(Enum):
    """What is to be expected for a candidate when its turn comes."""

    OPEN = "open"  #: it is served
    HOPELESS = "hopeless"  #: nothing can be done for it, nor for the rest of its bucket
    HELD_BACK = "held back"  #: as above, but a shorter gang of its bucket could be placed


class _Entry(NamedTuple):
    """A candidate in the heap of its queue."""

    key: _Key
    number: int
    candidate: Candidate
    #: Where gangs are ordered by user: the key for a share of the user.
    key_for: Callable[[tuple[float, ...]], _Key] | None = None


def _candidate(entry: _Entry | KeyedBucket) -> Candidate:
    """The candidate of an entry; of a bucket, its first gang. Most entries are left out before it
    is needed."""
    candidate = entry[2]
    if isinstance(candidate, Candidate):
        return candidate
    head = candidate.head
    return Candidate((head,), head, candidate, 0)


class _QueueCandidates:
    """The candidates of one queue: buckets in reverse order, and a heap of all others."""

    __slots__ = ("buckets", "heap")

    def __init__(self) -> None:
        self.buckets: list[KeyedBucket] = []
        self.heap: list[_Entry | KeyedBucket] = []

    def first(self) -> _Entry | KeyedBucket | None:
        buckets, heap = self.buckets, self.heap
        if buckets and (not heap or buckets[-1][:2] < heap[0][:2]):
            return buckets[-1]
        return heap[0] if heap else None

    def remove_first(self) -> None:
        if self.buckets and self.first() is self.buckets[-1]:
            self.buckets.pop()
        else:
            heapq.heappop(self.heap)

    def __contains__(self, bucket: Bucket) -> bool:
        return any(each is bucket for each in self.all_buckets())

    def all_buckets(self) -> Iterator[Bucket | None]:
        """The bucket of every candidate; None: a group, or a gang that grows."""
        for _, _, bucket in self.buckets:
            yield bucket
        for entry in self.heap:
            candidate = entry[2]
            yield candidate.bucket if isinstance(candidate, Candidate) else candidate


def due_time(policy: PlannerPolicy, gangs: tuple[PendingGang, ...], share: float) -> Micros:
    """The time by which a queue is compared with others: when the last of its next gangs was
    submitted, where the shortest go first as if that had been later; and later by the part of its
    share that the queue uses."""
    at = _AGED_AT if OrderKey.SHORTEST in policy.order else _CREATED_AT
    submitted: Micros = max(map(at, gangs))
    return submitted + round(share * WHOLE_SHARE_LATER)


class LineupView(Protocol):
    """What the order asks about the gangs of a pass."""

    @property
    def overdue(self) -> Collection[str]:
        """Jobs that come before all others: of each queue at most two gangs or groups."""

    @property
    def stuck(self) -> Collection[str]:
        """Those of them that are stuck."""

    @property
    def ahead(self) -> Collection[str]:
        """Those of them that come before the stuck ones of all queues."""

    @property
    def promised(self) -> Mapping[str, Micros]:
        """Those of them that have a reserved start, and its time: they come first, so that no other
        overdue gang delays them again and again."""

    def has_places(self, bucket: Bucket) -> bool:
        """Whether enough may be free for a gang of the bucket."""

    def prospect(self, candidate: Candidate) -> Prospect: ...

    def drop_hopeless(self, buckets: list[KeyedBucket]) -> None:
        """Remove the last buckets as long as nothing can be done for their gangs."""


class ServingOrder:
    def __init__(
        self,
        policy: PlannerPolicy,
        shares: FairShares,
        now: Micros,
        lineup: LineupView,
        users: UserShares | None = None,
    ) -> None:
        """Candidates that have no prospect when their turn comes are left out, and overdue gangs
        come first. `users` are given where gangs are ordered by user."""
        self._overdue, self._promised = lineup.overdue, lineup.promised
        self._stuck, self._ahead = lineup.stuck, lineup.ahead
        self._has_places = lineup.has_places
        self._prospect = lineup.prospect
        self._drop_hopeless = lineup.drop_hopeless
        self._policy = policy
        self._shares = shares
        self._now = now
        self._users = users
        self._candidates = {name: _QueueCandidates() for name in shares.branches}
        #: The last number of an entry that is no bucket: those come after buckets of equal keys.
        self._count = 1 << 62
        #: By queue: the next candidate of it and of the queues below it, once it was needed.
        self._next: dict[str, Candidate | None] = {}
        #: By queue: the rank and the next candidate of every child that has one; and the children
        #: whose entry is not up to date.
        self._below: dict[str, dict[str, tuple[_Key, Candidate]]] = {}
        self._stale: dict[str, dict[QueueBranch, None]] = {}
        self._last: set[Bucket | None] = set()
        #: Queues of which a user has freed something.
        self._freed: set[str] = set()

    def __contains__(self, bucket: Bucket) -> bool:
        """Whether a gang of the bucket is still to be served."""
        return bucket in self._candidates[bucket.first.queue]

    def is_exhausted(self) -> bool:
        """Whether too little is free for all candidates that are left."""
        has_places = self._has_places
        for own in self._candidates.values():
            for bucket in own.all_buckets():
                if bucket is None or has_places(bucket):
                    return False
        return True

    def left(self) -> Iterator[Candidate]:
        """The candidates that are left, except first gangs of buckets."""
        for own in self._candidates.values():
            for entry in own.heap:
                if isinstance(candidate := entry[2], Candidate):
                    yield candidate

    def add_buckets(
        self, fitting: Mapping[str, list[KeyedBucket]], short: Collection[KeyedBucket]
    ) -> None:
        """Add the first gangs of all buckets that are served, before anything else is added.

        `fitting` are by queue and in order. If several queues request something, a gang that does
        not fit and is larger than the share of its queue comes last, so that its queue is not
        compared by it.
        """
        shares = self._shares
        for _, _, bucket in short if shares.is_contended else ():
            need, _ = bucket.amounts(shares.table)
            if not shares.share_could_hold(bucket.first.queue, need):
                self._last.add(bucket)
        others = list(short)
        for queue, in_order in fitting.items():
            if self._users is not None:
                others += in_order
            elif self._overdue:
                overdue = [each for each in in_order if each[2].head.job in self._overdue]
                self._candidates[queue].buckets = [e for e in in_order[::-1] if e not in overdue]
                others += overdue
            else:
                self._candidates[queue].buckets = in_order[::-1]
        for key, number, bucket in others:
            head, line = bucket.head, self._line(bucket.head, bucket)
            entry: _Entry | KeyedBucket = ((line, *key[1:]), number, bucket)
            if self._users is not None:
                candidate = Candidate((head,), head, bucket, 0)
                entry = self._entry(candidate, partial(self._key, line, head))
            heapq.heappush(self._candidates[head.queue].heap, entry)
        self._next.clear()
        self._below.clear()

    def add_bucket(self, bucket: Bucket, position: int) -> None:
        """Add the gang at a position of a bucket, if there is one."""
        gang = bucket.gang(position)
        if gang is not None:
            self._add(Candidate((gang,), gang, bucket, position), gang)

    def add_shorter(self, candidate: Candidate) -> None:
        """Add the next gang of the bucket that ends sooner than this one, which would delay a
        reserved start: the shorter one may not delay it."""
        bucket, duration = candidate.bucket, candidate.last.duration
        if bucket is None:
            return
        first = candidate.position + 1
        for position, gang in enumerate(bucket.gangs_from(first), first):
            if gang.duration is not None and (duration is None or gang.duration < duration):
                self.add_bucket(bucket, position)
                return

    def add_group(self, gangs: tuple[PendingGang, ...]) -> None:
        """Add a group. It is ordered by the lowest priority and the latest creation in it."""
        candidate = group_candidate(gangs)
        size = sum(gang.size for gang in gangs)
        created = max(gang.created_at for gang in gangs)
        self._add(candidate, replace(candidate.last, size=size, created_at=created))

    def add_growing(self, gang: PendingGang, key: _Key) -> None:
        """Add a gang that could grow, with an order key of its own, after its priority and the
        share of its user."""
        priority = -gang.priority if OrderKey.PRIORITY in self._policy.order else 0
        self._push(Candidate((gang,), gang), lambda share: (priority, *share, *key))

    def _add(self, candidate: Candidate, ordered_as: PendingGang) -> None:
        line = self._line(candidate.last, candidate.bucket)
        self._push(candidate, partial(self._key, line, ordered_as))

    def _line(self, gang: PendingGang, bucket: Bucket | None) -> int:
        """The first key of a gang in its queue: overdue gangs, the others, and those that come
        last."""
        turn, _ = self._turn(gang)
        if turn < _USUAL_TURN:
            return USUAL - 2 * (_USUAL_TURN - turn) - (gang.job in self._stuck)
        return USUAL + 1 if bucket in self._last else USUAL

    def _turn(self, gang: PendingGang) -> tuple[int, Micros]:
        """Whether a gang comes before all queues, and the time of its reserved start if that
        decides: overdue gangs with a reserved start, those that go before stuck ones, others."""
        job = gang.job
        if job not in self._overdue:
            return _USUAL_TURN, 0
        if job in self._promised:
            return 0, self._promised[job]
        return 1 if job in self._ahead else 2, 0

    def _key(self, line: int, ordered_as: PendingGang, share: tuple[float, ...]) -> _Key:
        return line, *order_key(self._policy, ordered_as, self._now, share)

    def _push(self, candidate: Candidate, key_for: Callable[[tuple[float, ...]], _Key]) -> None:
        heapq.heappush(self._candidates[candidate.queue].heap, self._entry(candidate, key_for))
        self.changed(candidate.queue)

    def _entry(self, candidate: Candidate, key_for: Callable[[tuple[float, ...]], _Key]) -> _Entry:
        self._count += 1
        if self._users is None:
            return _Entry(key_for(()), self._count, candidate)
        share = self._users.with_gang(candidate.last)
        return _Entry(key_for(share), self._count, candidate, key_for)

    def changed(self, queue: str, *, freed: bool = False) -> None:
        """Compare the queue again: its usage or its first gang has changed. `freed`: a user has
        less of it."""
        if freed:
            self._freed.add(queue)
        for branch in self._shares.branches[queue].path():
            name, parent = branch.queue.name, branch.parent
            self._next.pop(name, None)
            if parent is not None and parent.queue.name in self._below:
                self._stale[parent.queue.name][branch] = None

    def pop(self) -> Candidate | None:
        candidate = self._first(self._shares.root)
        if candidate is None:
            return None
        self._candidates[candidate.queue].remove_first()
        self.changed(candidate.queue)
        return candidate

    def _first(self, branch: QueueBranch) -> Candidate | None:
        """The next candidate of a queue and the queues below it."""
        name = branch.queue.name
        if name in self._next:
            return self._next[name]
        best = self._first_of(name) if name in self._candidates else None
        if self._shares.tree.below(branch):
            best = self._best(branch, best)
        self._next[name] = best
        return best

    def _first_of(self, queue: str) -> Candidate | None:
        """The next candidate of a queue itself."""
        own = self._candidates[queue]
        while True:
            self._drop_hopeless(own.buckets)
            if own.heap and self._users is not None:
                self._update_keys(queue, own.heap, self._users)
            first = own.first()
            if first is None:
                return None
            candidate = _candidate(first)
            prospect = self._prospect(candidate)
            if prospect is Prospect.OPEN:
                return candidate
            own.remove_first()
            if prospect is Prospect.HELD_BACK:
                self.add_shorter(candidate)

    def _best(self, branch: QueueBranch, own: Candidate | None) -> Candidate | None:
        """The candidate of the child that is served worst. Gangs of the queue itself, of which
        `own` is the first, compete with those as a child would."""
        below = self._firsts_below(branch)
        if own is None:
            return min(below.values())[1] if below else None
        return min([*below.values(), (self._rank(branch, own), own)])[1] if below else own

    def _firsts_below(self, branch: QueueBranch) -> dict[str, tuple[_Key, Candidate]]:
        """The rank and the next candidate of every child that has one."""
        name = branch.queue.name
        below = self._below.get(name)
        if below is None:
            below = self._below[name] = {}
            self._stale[name] = dict.fromkeys(self._shares.tree.below(branch))
        stale = self._stale[name]
        while stale:
            child, _ = stale.popitem()
            first = self._first(child)
            if first is None:
                below.pop(child.queue.name, None)
            else:
                below[child.queue.name] = (self._rank(child, first), first)
        return below

    def _update_keys(self, queue: str, heap: list[_Entry | KeyedBucket], users: UserShares) -> None:
        """Bring the keys up to date as far as the first candidate depends on them.

        A share that has grown moves candidates back, so only the first one has to be looked at; a
        share that has shrunk may have moved any of them forward.
        """
        if queue in self._freed:
            self._freed.remove(queue)
            heap[:] = [self._with_share(entry, users) for entry in heap]
            heapq.heapify(heap)
        while (entry := self._with_share(heap[0], users))[0] != heap[0][0]:
            heapq.heapreplace(heap, entry)

    def _with_share(self, entry: _Entry | KeyedBucket, users: UserShares) -> _Entry | KeyedBucket:
        """The entry with the present share of its user."""
        if not isinstance(entry, _Entry) or entry.key_for is None:
            return entry
        return entry._replace(key=entry.key_for(users.with_gang(_candidate(entry).last)))

    def _need(self, branch: QueueBranch, candidate: Candidate) -> Floats:
        """What a candidate takes of a queue and the queues below it."""
        shares = self._shares
        if candidate.bucket is not None:
            return candidate.bucket.amounts(shares.table)[0]
        if len(candidate.gangs) == 1:
            return minimum_amounts(candidate.last, shares.table)
        inside = [g for g in candidate.gangs if branch in shares.branches[g.queue].path()]
        need: Floats = np.sum([minimum_amounts(gang, shares.table) for gang in inside], axis=0)
        return need

    def _rank(self, branch: QueueBranch, candidate: Candidate) -> _Key:
        """The place of a queue among its siblings, if it is served next for a candidate."""
        need = self._need(branch, candidate)
        share, ratio = self._shares.usage(branch, need)
        due = due_time(self._policy, candidate.gangs, share)
        return (
            self._turn(candidate.last),
            self._exceeds(branch, candidate, need),
            due // HOUR,
            -branch.queue.priority,
            ratio,
            min(gang.created_at for gang in candidate.gangs),
            branch.queue.name,
        )

    def due_times(self, gangs: tuple[PendingGang, ...]) -> Iterator[tuple[str, float, Micros]]:
        """For the queue with which gangs are served that start together, and each queue above it:
        its name, the part of its share that it uses now, and the time by which it is compared."""
        candidate = group_candidate(gangs)
        for branch in self._shares.branches[candidate.queue].path():
            if branch is not self._shares.root:
                share, _ = self._shares.usage(branch, self._need(branch, candidate))
                yield branch.queue.name, share, due_time(self._policy, gangs, share)

    def _exceeds(self, branch: QueueBranch, candidate: Candidate, need: Floats) -> bool:
        """Whether a queue would use more than it deserves with a gang; with a starving gang, also
        more than its quota."""
        shares = self._shares
        if shares.stays_within_share(branch, need):
            return False
        is_new = not is_starving(self._policy, candidate.last, self._now)
        return is_new or not shares.stays_within_quota(branch, need)
