"""Pending gangs in buckets: gangs of one queue with equal requests and equal rights.

What is found for the first gang of a bucket holds for all of them, so the cost of a plan is bounded
by the number of buckets and not by the number of gangs.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping

from phalanx.core.reasons import Backoff, Reason
from phalanx.core.spec.job import PackMode
from phalanx.core.spec.schema import TASK_LIMIT
from phalanx.core.time_units import Micros
from phalanx.plan.model import (
    LONGEST_LIMIT,
    NEVER,
    OrderKey,
    PendingGang,
    PlannerPolicy,
    TaskRequest,
    comparable_limit,
)
from phalanx.plan.pending_order import QueueOrder
from phalanx.plan.placement.amounts import minimum_amounts, requested_amounts
from phalanx.plan.state.forkable import ForkableDict
from phalanx.plan.state.nodes import Floats, NodeTable
from phalanx.plan.state.time_index import TimeIndex

_Key = tuple[object, ...]

#: A request, and the label of the domains one of which must hold all of its tasks.
FitKey = tuple[TaskRequest, str | None]

#: The first key of most gangs of a queue: after overdue ones, before those that come last.
USUAL = 1


class BucketKey:
    """What the gangs of a bucket have in common. A gang can have a thousand roles, so the hash is
    computed once."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, parts: tuple[object, ...]) -> None:
        self._parts = parts
        self._hash = hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BucketKey) and self._parts == other._parts


class Bucket:
    __slots__ = (
        "_amounts",
        "_keys",
        "_shortest_first",
        "domains",
        "entries",
        "first",
        "fit_key",
        "key",
        "need",
        "never",
        "number",
        "owner",
        "request",
    )

    def __init__(
        self,
        key: BucketKey,
        number: int,
        first: PendingGang,
        owner: object,
        *,
        shortest_first: bool,
    ) -> None:
        self.key = key
        self.number = number  #: of buckets that are equal in every other way, the lowest is first
        #: The `PendingGangs` that may change this bucket; a fork copies it first.
        self.owner = owner
        self.first = first  #: one of its gangs, to read what they have in common
        self._shortest_first = shortest_first
        #: (created or aged, name, job, gang), in this order.
        self.entries: list[tuple[Micros, str, str, PendingGang]] = []
        self.request: TaskRequest = first.roles[0].request  #: of the first role
        #: Number of tasks of a single request that each gang needs; 0 if it needs more than that.
        self.need = first.need if is_simple(first) else 0
        #: The label of the domains one of which must hold all of these tasks; None: they may be
        #: anywhere.
        self.domains = required_domains(first)
        self.fit_key: FitKey = (self.request, self.domains)
        #: What the empty cluster lacks for its gangs, and the version of that cluster.
        self.never: tuple[object, Reason | None] | None = None
        #: The minimum and the request of a gang; the table and number of rows they are for.
        self._amounts: tuple[NodeTable, int, Floats, Floats] | None = None
        self._keys: tuple[Micros, _Key, _Key, Micros] | None = None

    def copy(self, owner: object) -> "Bucket":
        first, by_limit = self.first, self._shortest_first
        fork = Bucket(self.key, self.number, first, owner, shortest_first=by_limit)
        fork.entries = self.entries.copy()
        fork.never, fork._keys, fork._amounts = self.never, self._keys, self._amounts
        fork.share(self.fit_key)
        return fork

    def share(self, fit_key: FitKey) -> None:
        """Use the objects of a key that is equal to its own: they are looked up faster."""
        self.fit_key, self.request = fit_key, fit_key[0]

    @property
    def head(self) -> PendingGang:
        return self.entries[0][3]

    def gang(self, position: int) -> PendingGang | None:
        return self.entries[position][3] if position < len(self.entries) else None

    def gangs_from(self, position: int) -> Iterator[PendingGang]:
        return (entry[3] for entry in self.entries[position:])

    def position(self, gang: PendingGang) -> int:
        return bisect_left(self.entries, (self._at(gang), gang.name, gang.job))

    def _at(self, gang: PendingGang) -> Micros:
        return gang.aged_at if self._shortest_first else gang.created_at

    def add(self, gang: PendingGang) -> None:
        insort(self.entries, (self._at(gang), gang.name, gang.job, gang))
        self._keys = None

    def remove(self, gang: PendingGang) -> None:
        del self.entries[self.position(gang)]
        self._keys = None

    def amounts(self, table: NodeTable) -> tuple[Floats, Floats]:
        """Amounts of the minimum of each gang, and of all its pending tasks, by row."""
        known = self._amounts
        if known is None or known[0] is not table or known[1] != len(table.rows):
            minimum = minimum_amounts(self.first, table)
            requested = requested_amounts(self.first, table)
            known = self._amounts = (table, len(table.rows), minimum, requested)
        return known[2], known[3]

    def keys(self, policy: PlannerPolicy) -> tuple[Micros, _Key, _Key, Micros]:
        """When its first gang starves, the order key of that gang before and from then on, and the
        time from which it may be overdue, whatever the median wait is."""
        if self._keys is not None:
            return self._keys
        head = self.head
        starves_at = overdue_from = NEVER
        if head.since is not None:
            starves_at = head.since + policy.starve_after
            limit = comparable_limit(head.duration)
            overdue_from = max(starves_at, head.since + round(policy.max_wait * limit))
        before = (USUAL, *order_key(policy, head, -NEVER))
        after = (USUAL, *order_key(policy, head, NEVER))
        self._keys = (starves_at, before, after, overdue_from)
        return self._keys

    def keyed(self, policy: PlannerPolicy, now: Micros) -> "KeyedBucket":
        """The bucket with the order key of its first gang at a time."""
        starves_at, before, after, _ = self.keys(policy)
        return before if now < starves_at else after, self.number, self


#: The order key of the first gang of a bucket, the number of the bucket, and the bucket.
KeyedBucket = tuple[_Key, int, Bucket]


class PendingGangs:
    def __init__(self, *, shortest_first: bool = False) -> None:
        """`shortest_first`: equal gangs are ordered by their time limits too."""
        self._shortest_first = shortest_first
        #: Backoffs that end after this time have not ended.
        self.now: Micros = 0
        self.gangs: ForkableDict[PendingGang] = ForkableDict()
        self.buckets: dict[BucketKey, Bucket] = {}
        self._bucket_keys: ForkableDict[BucketKey] = ForkableDict()
        #: Gangs that must not be placed now, whatever is free: for a reason of their own, or
        #: because their backoff has not ended.
        self.ineligible: ForkableDict[PendingGang] = ForkableDict()
        self.backing_off: ForkableDict[PendingGang] = ForkableDict()
        #: Gangs that start with others; the same by name.
        self.grouped: ForkableDict[PendingGang] = ForkableDict()
        self.by_name: ForkableDict[PendingGang] = ForkableDict()
        #: Gangs that run and have room to grow.
        self.growing: ForkableDict[PendingGang] = ForkableDict()
        #: Gangs that have gathered places; for which capacity is kept.
        self.gathering: ForkableDict[PendingGang] = ForkableDict()
        self.nominated: ForkableDict[PendingGang] = ForkableDict()
        #: By queue and resource: what the gangs in buckets and the growing ones request.
        self.requested: dict[str, dict[str, int]] = {}
        self._backoff_ends = TimeIndex()
        self._expiries = TimeIndex()
        self._owner = object()
        self._owns_buckets = True
        self._last_number = 0
        #: One of all equal keys of buckets; forks share them.
        self._fit_keys: dict[FitKey, FitKey] = {}
        #: By queue: the order of its buckets; and by number, the buckets that have changed since.
        #: None: the bucket was removed.
        self._orders: dict[str, QueueOrder] = {}
        self._reordered: dict[str, dict[int, Bucket | None]] = {}

    def fork(self) -> "PendingGangs":
        """Equal gangs. Later changes of either side do not show in the other."""
        fork = PendingGangs.__new__(PendingGangs)
        fork.now, fork._shortest_first = self.now, self._shortest_first  # noqa: SLF001
        for name in _INDEXES:
            setattr(fork, name, getattr(self, name).fork())
        fork.requested = self.requested.copy()
        fork.buckets = self.buckets
        fork._owns_buckets = self._owns_buckets = False  # noqa: SLF001
        fork._owner, self._owner = object(), object()  # noqa: SLF001
        fork._last_number, fork._fit_keys = self._last_number, self._fit_keys  # noqa: SLF001
        fork._orders = self._orders.copy()  # noqa: SLF001
        fork._reordered = {q: some.copy() for q, some in self._reordered.items()}  # noqa: SLF001
        return fork

    def at(self, now: Micros) -> "PendingGangs":
        """The gangs at a time: itself, or a fork where a backoff ends between then and its own."""
        if not self._backoff_ends.between(*sorted((self.now, now))):
            return self
        fork = self.fork()
        fork.advance(now)
        return fork

    def advance(self, now: Micros) -> None:
        """Set the time: gangs whose backoff ends by then are eligible."""
        moved = [self.gangs[job] for job in self._backoff_ends.between(*sorted((self.now, now)))]
        for gang in moved:
            self._withdraw(gang)
        self.now = now
        for gang in moved:
            self._admit(gang)

    def put(self, gang: PendingGang) -> None:
        if gang.job in self.gangs:
            self.remove(gang.job)
        self.gangs[gang.job] = gang
        if gang.expires_at is not None:
            self._expiries.add(gang.expires_at, gang.job)
        if gang.gathered:
            self.gathering[gang.job] = gang
        if gang.nomination is not None:
            self.nominated[gang.job] = gang
        if gang.not_before and gang.ineligible is None:
            self._backoff_ends.add(gang.not_before, gang.job)
        self._admit(gang)

    def remove(self, job: str) -> None:
        gang = self.gangs.pop(job)
        if gang.expires_at is not None:
            self._expiries.remove(gang.expires_at, job)
        if gang.gathered:
            del self.gathering[job]
        if gang.nomination is not None:
            del self.nominated[job]
        if gang.not_before and gang.ineligible is None:
            self._backoff_ends.remove(gang.not_before, job)
        self._withdraw(gang)

    def expired(self, now: Micros) -> list[PendingGang]:
        """Gangs whose schedule timeout has ended."""
        return [self.gangs[job] for job in self._expiries.until(now)]

    def own_reason(self, gang: PendingGang) -> Reason | None:
        """Why a gang must not be placed, whatever is free."""
        if gang.ineligible is not None:
            return gang.ineligible
        if gang.not_before <= self.now:
            return None
        return Backoff(gang.not_before, gang.backoff_because)

    def bucket_of(self, gang: PendingGang) -> Bucket | None:
        """The bucket of a gang that is in one."""
        key = self._bucket_keys.get(gang.job)
        return None if key is None else self.buckets[key]

    def in_order(self, policy: PlannerPolicy, now: Micros) -> Mapping[str, QueueOrder]:
        """By queue: its buckets in their order at a time. Computed anew only for queues whose
        buckets have changed, or one of whose gangs has begun to starve."""
        for queue, order in [*self._orders.items()]:
            if not order.holds_at(now) and queue not in self._reordered:
                self._orders[queue] = order.after((), (), policy, now)
        for queue, changed in self._reordered.items():
            known = self._orders.pop(queue, None) or QueueOrder()
            present = filter(None, changed.values())
            order = known.after(changed, present, policy, now)
            if order.keyed:
                self._orders[queue] = order
        self._reordered.clear()
        return self._orders

    def _admit(self, gang: PendingGang) -> None:
        """Put a gang where its state says."""
        if gang.ineligible is not None:
            self.ineligible[gang.job] = gang
        elif gang.not_before > self.now:
            self.backing_off[gang.job] = gang
        elif gang.need == 0:
            self.growing[gang.job] = gang
            self._request(gang, 1)
        elif gang.group:
            self.grouped[gang.job] = self.by_name[gang.name] = gang
        else:
            bucket = self._writable_bucket(bucket_key(gang), gang)
            bucket.add(gang)
            # The key of the bucket itself: a lookup with an equal one compares every role.
            self._bucket_keys[gang.job] = bucket.key
            self._request(gang, 1)

    def _withdraw(self, gang: PendingGang) -> None:
        """Undo `_admit`."""
        if gang.ineligible is not None:
            del self.ineligible[gang.job]
        elif gang.not_before > self.now:
            del self.backing_off[gang.job]
        elif gang.need == 0:
            del self.growing[gang.job]
            self._request(gang, -1)
        elif gang.group:
            del self.grouped[gang.job], self.by_name[gang.name]
        else:
            key = self._bucket_keys.pop(gang.job)
            bucket = self._writable_bucket(key, gang)
            bucket.remove(gang)
            self._request(gang, -1)
            if not bucket.entries:
                del self.buckets[key]
                self._reordered[gang.queue][bucket.number] = None

    def _writable_bucket(self, key: BucketKey, gang: PendingGang) -> Bucket:
        """The bucket of a gang, copied if a fork shares it, or a new one."""
        if not self._owns_buckets:
            self.buckets, self._owns_buckets = self.buckets.copy(), True
        bucket = self.buckets.get(key)
        if bucket is None:
            self._last_number += 1
            by_limit = self._shortest_first
            bucket = Bucket(key, self._last_number, gang, self._owner, shortest_first=by_limit)
            self.buckets[key] = bucket
            if len(self._fit_keys) > 2 * len(self.buckets):
                # Most of them are of buckets that are gone.
                self._fit_keys = {each.fit_key: each.fit_key for each in self.buckets.values()}
            bucket.share(self._fit_keys.setdefault(bucket.fit_key, bucket.fit_key))
        elif bucket.owner is not self._owner:
            bucket = self.buckets[bucket.key] = bucket.copy(self._owner)
        self._reordered.setdefault(gang.queue, {})[bucket.number] = bucket
        return bucket

    def _request(self, gang: PendingGang, sign: int) -> None:
        requested = dict(self.requested.get(gang.queue, {}))
        for role in gang.roles:
            for resource, amount in role.request.resources:
                more = sign * amount * len(role.tasks)
                requested[resource] = requested.get(resource, 0) + more
        self.requested[gang.queue] = requested


_INDEXES = (
    "gangs",
    "_bucket_keys",
    "ineligible",
    "backing_off",
    "grouped",
    "by_name",
    "growing",
    "gathering",
    "nominated",
    "_backoff_ends",
    "_expiries",
)


def is_simple(gang: PendingGang) -> bool:
    """Whether it starts if and only if enough tasks of one request fit anywhere, or in one of the
    domains that it requires."""
    return (
        len(gang.roles) == 1
        and gang.strict
        and not gang.gate
        and gang.domain is None
        and gang.nomination is None
        and not gang.gathered
        and gang.roles[0].request.per_node is None
        and gang.roles[0].request.traits is None
    )


def required_domains(gang: PendingGang) -> str | None:
    """The label of the domains one of which must hold the whole minimum of a gang."""
    pack = gang.pack
    return pack.by if pack is not None and pack.mode is PackMode.REQUIRE else None


def bucket_key(gang: PendingGang) -> BucketKey:
    """Equal for gangs of which either all fit now or none does.

    They may differ in how long they take: whether a start would delay a reserved one is decided
    gang by gang. Only gangs with the longest limits, or none, are apart: among others they would
    hardly ever be first, so that no gang would see that they are overdue.
    """
    state = (gang.gathered, gang.nomination, gang.avoid, gang.domain, gang.placed_on)
    if gang.is_repair or any(state):
        return BucketKey((gang.job,))
    return BucketKey(
        (
            gang.queue,
            gang.priority,
            gang.size,
            gang.need,
            tuple((role.name, role.request, len(role.tasks), role.need) for role in gang.roles),
            gang.strict,
            gang.gate,
            gang.pack,
            gang.spread,
            gang.evicts_from,
            gang.preemptible,
            gang.user,
            comparable_limit(gang.duration) == LONGEST_LIMIT,
        )
    )


def order_key(
    policy: PlannerPolicy, gang: PendingGang, now: Micros, user_share: tuple[float, ...] = ()
) -> _Key:
    """The gang's place in the order of its queue.

    Repairs go before new gangs of their priority. Starving gangs count as large, so that their age
    decides.
    """
    key: list[object] = [] if OrderKey.PRIORITY in policy.order else [not gang.is_repair]
    for by in policy.order:
        if by is OrderKey.PRIORITY:
            key += (-gang.priority, not gang.is_repair)
        elif by is OrderKey.SIZE:
            key.append(-TASK_LIMIT if is_starving(policy, gang, now) else -gang.size)
        elif by is OrderKey.USER:
            key += user_share
        elif by is OrderKey.SHORTEST:
            key.append(gang.aged_at)
        else:
            key.append(gang.created_at)
    return (*key, gang.created_at, gang.name)


def is_starving(policy: PlannerPolicy, gang: PendingGang, now: Micros) -> bool:
    return gang.since is not None and now - gang.since >= policy.starve_after
