"""Who waits, in lines: gangs of one queue that ask for the same with the same rights.

What is found out for the first of a line holds for all of it, so the cost of a plan is bounded by
the number of lines and not by how many gangs stand in them.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from phalanx.core.reasons import Backoff, Reason
from phalanx.core.schema import TASK_LIMIT
from phalanx.core.spec import Micros
from phalanx.plan.model import Claim, Key, Policy

#: (created, name, job): the order inside a line.
_Seat = tuple[Micros, str, str]


class Line:
    __slots__ = ("claims", "first", "never", "seats")

    def __init__(self, first: Claim) -> None:
        self.first = first  #: one of its gangs, to read what they have in common
        self.claims: dict[str, Claim] = {}
        self.seats: list[_Seat] = []
        #: What even the empty cluster lacks for it, and of which cluster that is true.
        self.never: tuple[int, Reason | None] = (-1, None)

    def add(self, claim: Claim) -> None:
        self.claims[claim.job] = claim
        insort(self.seats, _seat(claim))

    def remove(self, claim: Claim) -> None:
        del self.claims[claim.job]
        at = bisect_left(self.seats, _seat(claim))
        del self.seats[at]

    def claim(self, position: int) -> Claim | None:
        if position >= len(self.seats):
            return None
        return self.claims[self.seats[position][2]]

    def after(self, position: int) -> Iterator[Claim]:
        return (self.claims[seat[2]] for seat in self.seats[position:])


def _seat(claim: Claim) -> _Seat:
    return (claim.created_at, claim.name, claim.job)


_LineKey = tuple[object, ...]


class Waiting:
    def __init__(self) -> None:
        self.claims: dict[str, Claim] = {}
        self.lines: dict[_LineKey, Line] = {}
        #: Gangs that may not be placed now, whatever is free: blocked, or in their backoff.
        self.idle: dict[str, Claim] = {}
        #: Gangs that start with others, by job and by name.
        self.grouped: dict[str, Claim] = {}
        #: Gangs that give up at some time; that hold places; that victims make room for.
        self.impatient: dict[str, Claim] = {}
        self.holders: dict[str, Claim] = {}
        self.nominated: dict[str, Claim] = {}
        #: Gangs that run and could use more than they need.
        self.growing: dict[str, Claim] = {}

    def put(self, claim: Claim, now: Micros) -> None:
        if claim.job in self.claims:
            self.remove(claim.job)
        self.claims[claim.job] = claim
        if claim.gives_up_at is not None:
            self.impatient[claim.job] = claim
        if claim.held:
            self.holders[claim.job] = claim
        if claim.nomination is not None:
            self.nominated[claim.job] = claim
        if claim.blocked is not None or claim.not_before > now:
            self.idle[claim.job] = claim
        elif claim.need == 0:
            self.growing[claim.job] = claim
        elif claim.group:
            self.grouped[claim.job] = claim
        else:
            self._line_up(claim)

    def remove(self, job: str) -> None:
        claim = self.claims.pop(job)
        for some in (self.impatient, self.holders, self.nominated):
            some.pop(job, None)
        apart = [some.pop(job, None) for some in (self.idle, self.growing, self.grouped)]
        if not any(apart):
            key = line_key(claim)
            line = self.lines[key]
            line.remove(claim)
            if not line.seats:
                del self.lines[key]

    def wake(self, now: Micros) -> None:
        """Those whose backoff has ended stand in line from now on."""
        ready = [c for c in self.idle.values() if c.blocked is None and c.not_before <= now]
        for claim in ready:
            self.put(claim, now)

    def _line_up(self, claim: Claim) -> None:
        key = line_key(claim)
        line = self.lines.get(key)
        if line is None:
            line = self.lines[key] = Line(claim)
        line.add(claim)

    def reason_of_idle(self, claim: Claim) -> Reason:
        return claim.blocked if claim.blocked is not None else Backoff(claim.not_before)


def line_key(claim: Claim) -> _LineKey:
    """Equal for gangs of which either all find a place now or none does."""
    singular = (
        claim.repairs
        or claim.held
        or claim.nomination
        or claim.avoid
        or claim.domain
        or claim.there
    )
    if singular:
        return (claim.job,)
    return (
        claim.queue,
        claim.priority,
        claim.size,
        claim.need,
        tuple((part.role, part.ask, len(part.tasks), part.need) for part in claim.parts),
        claim.strict,
        claim.pack,
        claim.spread,
        claim.evicts_from,
        claim.lasts,
    )


def order_key(policy: Policy, claims: Iterable[Claim], now: Micros) -> tuple[object, ...]:
    """Where a claimant stands in its queue; a group by its lowest priority and latest creation.

    Repairs go before new gangs of their priority. Who has waited too long goes by age alone.
    """
    members = list(claims)
    priority = min(claim.priority for claim in members)
    created = max(claim.created_at for claim in members)
    size = sum(claim.size for claim in members)
    fresh = not any(claim.repairs for claim in members)
    starving = any(is_starving(policy, claim, now) for claim in members)
    values: dict[Key, tuple[int, ...]] = {
        Key.PRIORITY: (-priority, fresh),
        Key.SIZE: (-TASK_LIMIT if starving else -size,),
        Key.CREATED: (created,),
    }
    lead = () if Key.PRIORITY in policy.order else (fresh,)
    return (*lead, *(n for key in policy.order for n in values[key]), created, members[0].name)


def is_starving(policy: Policy, claim: Claim, now: Micros) -> bool:
    return claim.since is not None and now - claim.since >= policy.starve_after
