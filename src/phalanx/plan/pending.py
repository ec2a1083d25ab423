"""Who waits, in lines: gangs of one queue that ask for the same with the same rights.

What is found out for the first of a line holds for all of it, so the cost of a plan is bounded by
the number of lines and not by how many gangs stand in them.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from phalanx.core.reasons import Backoff, Reason
from phalanx.core.spec.job import Micros
from phalanx.core.spec.schema import TASK_LIMIT
from phalanx.plan.model import OrderKey, PendingGang, PlannerPolicy, TaskRequest

#: (created, name, job): the order inside a line.
_Seat = tuple[Micros, str, str]
_LineKey = tuple[object, ...]


class Bucket:
    __slots__ = ("claims", "first", "key", "key_until", "need", "never", "seats")

    def __init__(self, first: PendingGang) -> None:
        self.first = first  #: one of its gangs, to read what they have in common
        self.claims: dict[str, PendingGang] = {}
        self.seats: list[_Seat] = []
        #: What even the empty cluster lacks for it.
        self.never: Reason | None = None
        #: How many tasks of a single request it takes; 0 where it is not as simple as that.
        self.need = first.need if is_simple(first) else 0
        #: Where the first stands in its queue, and how long that holds; None if it has changed.
        self.key: tuple[object, ...] | None = None
        self.key_until: Micros = 0

    @property
    def head(self) -> PendingGang:
        return self.claims[self.seats[0][2]]

    def add(self, claim: PendingGang) -> None:
        self.claims[claim.job] = claim
        insort(self.seats, _seat(claim))
        self.key = None

    def remove(self, claim: PendingGang) -> None:
        del self.claims[claim.job]
        del self.seats[bisect_left(self.seats, _seat(claim))]
        self.key = None

    def claim(self, position: int) -> PendingGang | None:
        if position >= len(self.seats):
            return None
        return self.claims[self.seats[position][2]]

    def after(self, position: int) -> Iterator[PendingGang]:
        return (self.claims[seat[2]] for seat in self.seats[position:])


def _seat(claim: PendingGang) -> _Seat:
    return (claim.created_at, claim.name, claim.job)


class PendingGangs:
    def __init__(self) -> None:
        self.gangs: dict[str, PendingGang] = {}
        self.buckets: dict[_LineKey, Bucket] = {}
        #: Lines by what the first part of their gangs asks for.
        self.by_ask: dict[TaskRequest, dict[Bucket, None]] = {}
        #: Lines that have come since they were last looked at.
        self.new_buckets: list[Bucket] = []
        #: Gangs that may not be placed now, whatever is free; and of those the ones that only
        #: their backoff keeps.
        self.idle: dict[str, PendingGang] = {}
        self.resting: dict[str, PendingGang] = {}
        #: Gangs that start with others; the same by name.
        self.grouped: dict[str, PendingGang] = {}
        self.named: dict[str, PendingGang] = {}
        #: Gangs that run and could use more than they need.
        self.growing: dict[str, PendingGang] = {}
        #: Gangs that give up at some time; that hold places; that victims make room for.
        self.impatient: dict[str, PendingGang] = {}
        self.holders: dict[str, PendingGang] = {}
        self.nominated: dict[str, PendingGang] = {}
        #: By queue and resource: what all that stand in line, or could grow, want.
        self.wanted: dict[str, dict[str, int]] = {}

    def put(self, claim: PendingGang, now: Micros) -> None:
        if claim.job in self.gangs:
            self.remove(claim.job)
        self.gangs[claim.job] = claim
        if claim.expires_at is not None:
            self.impatient[claim.job] = claim
        if claim.gathered:
            self.holders[claim.job] = claim
        if claim.nomination is not None:
            self.nominated[claim.job] = claim
        if claim.ineligible is not None or claim.not_before > now:
            self.idle[claim.job] = claim
            if claim.ineligible is None:
                self.resting[claim.job] = claim
        elif claim.need == 0:
            self.growing[claim.job] = claim
            self._want(claim, 1)
        elif claim.group:
            self.grouped[claim.job] = self.named[claim.name] = claim
        else:
            self._line_up(claim)

    def remove(self, job: str) -> None:
        claim = self.gangs.pop(job)
        for some in (self.impatient, self.holders, self.nominated, self.resting):
            some.pop(job, None)
        if job in self.grouped:
            del self.named[claim.name]
        if self.growing.pop(job, None) is not None:
            self._want(claim, -1)
        elif self.idle.pop(job, None) is None and self.grouped.pop(job, None) is None:
            self._leave(claim)

    def _line_up(self, claim: PendingGang) -> None:
        key = line_key(claim)
        line = self.buckets.get(key)
        if line is None:
            line = self.buckets[key] = Bucket(claim)
            self.new_buckets.append(line)
            self.by_ask.setdefault(claim.roles[0].request, {})[line] = None
        line.add(claim)
        self._want(claim, 1)

    def _leave(self, claim: PendingGang) -> None:
        key = line_key(claim)
        line = self.buckets[key]
        line.remove(claim)
        self._want(claim, -1)
        if not line.seats:
            del self.buckets[key]
            ask = claim.roles[0].request
            del self.by_ask[ask][line]
            if not self.by_ask[ask]:
                del self.by_ask[ask]

    def _want(self, claim: PendingGang, sign: int) -> None:
        wanted = self.wanted.setdefault(claim.queue, {})
        for part in claim.roles:
            for resource, amount in part.request.resources:
                more = sign * amount * len(part.tasks)
                wanted[resource] = wanted.get(resource, 0) + more

    def wake(self, now: Micros) -> None:
        """Those whose backoff has ended stand in line from now on."""
        ready = [claim for claim in self.resting.values() if claim.not_before <= now]
        for claim in ready:
            self.put(claim, now)

    def reason_of_idle(self, claim: PendingGang) -> Reason:
        return claim.ineligible if claim.ineligible is not None else Backoff(claim.not_before)


def is_simple(claim: PendingGang) -> bool:
    """Whether it starts if and only if enough tasks of one request fit anywhere."""
    return (
        len(claim.roles) == 1
        and claim.strict
        and claim.pack is None
        and claim.nomination is None
        and not claim.gathered
        and claim.roles[0].request.per_node is None
    )


def line_key(claim: PendingGang) -> _LineKey:
    """Equal for gangs of which either all find a place now or none does.

    They may differ in how long they take: who is in a head's way is looked at one by one.
    """
    state = (claim.gathered, claim.nomination, claim.avoid, claim.domain, claim.placed_on)
    if claim.is_repair or any(state):
        return (claim.job,)
    return (
        claim.queue,
        claim.priority,
        claim.size,
        claim.need,
        tuple((part.name, part.request, len(part.tasks), part.need) for part in claim.roles),
        claim.strict,
        claim.pack,
        claim.spread,
        claim.evicts_from,
    )


def order_key(policy: PlannerPolicy, claim: PendingGang, now: Micros) -> tuple[object, ...]:
    """Where a gang stands in its queue.

    Repairs go before new gangs of their priority. Who has waited too long goes by age alone.
    """
    key: list[object] = [] if OrderKey.PRIORITY in policy.order else [not claim.is_repair]
    for by in policy.order:
        if by is OrderKey.PRIORITY:
            key += (-claim.priority, not claim.is_repair)
        elif by is OrderKey.SIZE:
            key.append(-TASK_LIMIT if is_starving(policy, claim, now) else -claim.size)
        else:
            key.append(claim.created_at)
    return (*key, claim.created_at, claim.name)


def is_starving(policy: PlannerPolicy, claim: PendingGang, now: Micros) -> bool:
    return claim.since is not None and now - claim.since >= policy.starve_after
