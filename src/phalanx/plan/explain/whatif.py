"""What a plan holds for one gang, and what it would take for that gang to start.

Every alternative is a plan that was made: with fewer tasks, with a shorter time limit, or with a
higher priority. Nothing is guessed. The state is a scratch one; it is not left as it was.
"""

from collections.abc import Iterator

import msgspec
import numpy as np
from msgspec.structs import replace

from phalanx.core import reasons as why
from phalanx.core.model import Assignment
from phalanx.core.reasons import HeldBack, Reason
from phalanx.core.spec.job import SECOND, Micros
from phalanx.core.spec.quantities import printed
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Evict, Gather, Plan, PlannedVictim, Reserve, ReservedStart
from phalanx.plan.fairshare.demand import settle_shares
from phalanx.plan.fairshare.queue_tree import with_unlisted
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import PendingGang
from phalanx.plan.placement.amounts import minimum_amounts
from phalanx.plan.state.nodes import SLOTS
from phalanx.plan.state.planner_state import Moment, PlannerState

#: How many priorities are tried at most.
_PRIORITIES = 4


class Forecast(msgspec.Struct, frozen=True):
    """What becomes of a gang if a plan is carried out."""

    places: tuple[Assignment, ...] = ()  #: where it starts, or gathers
    holds: bool = False  #: it only gathers these places
    victims: tuple[PlannedVictim, ...] = ()  #: who gives way first
    head: ReservedStart | None = None  #: when and where its start is kept free
    reason: Reason | None = None  #: why it waits

    @property
    def starts_now(self) -> bool:
        return bool(self.places) and not self.holds and not self.victims

    @property
    def lost_gpu_s(self) -> float:
        return sum(victim.lost for victim in self.victims)


class Fewer(msgspec.Struct, frozen=True):
    """It would start at once if it needed fewer tasks."""

    tasks: int
    of: int


class Shorter(msgspec.Struct, frozen=True):
    """It would start at once if it were sure to end in time."""

    limit: Micros


class Higher(msgspec.Struct, frozen=True):
    """It could start if it were more important, because others would give way."""

    priority: int
    victims: tuple[PlannedVictim, ...]


Alternative = Fewer | Shorter | Higher


class BeyondShare(msgspec.Struct, frozen=True):
    """It takes more at once than its queue, or one above that, deserves."""

    queue: str
    resource: str
    want: int
    deserved: int

    def __str__(self) -> str:
        want, deserved = (printed(self.resource, amount) for amount in (self.want, self.deserved))
        return f"queue {self.queue} deserves {deserved} {self.resource} now, and it takes {want}"


def beyond_share(state: Moment, job: str) -> BeyondShare | None:
    claim, table = state.pending.gangs.get(job), state.table
    if claim is None:
        return None
    shares = FairShares(with_unlisted(state.queues, state.queues_in_use()), table)
    hopeless = [line for line in state.pending.buckets.values() if state.never_fits(line)]
    settle_shares(shares, state, hopeless, (), ())
    need = minimum_amounts(claim, table)
    for branch in shares.branches[claim.queue].path():
        over = np.flatnonzero((need > branch.deserved + 1) & shares.shared)
        if len(over) and branch.parent is not None:
            resource = list(table.rows)[int(over[0])]
            amounts = int(need[over[0]]), int(branch.deserved[over[0]])
            return BeyondShare(branch.queue.name, resource, *amounts)
    return None


def forecast(made: Plan, job: str) -> Forecast:
    """What the plan says of the job."""
    head = next((head for head in made.reserved_starts if head.job == job), None)
    found = Forecast(head=head, reason=made.reasons.get(job))
    for decision in made.decisions:
        match decision:
            case Reserve(placements):
                victims, holds = (), False
            case Evict(placements, victims):
                holds = False
            case Gather(placement):
                placements, victims, holds = (placement,), (), True
            case _:
                continue
        for placement in placements:
            if placement.job == job:
                places = placement.assignments
                found = replace(found, places=places, victims=victims, holds=holds)
    return found


def alternatives(state: PlannerState, job: str, now: Micros, stop: Micros) -> Iterator[Alternative]:
    """What the planner has tried for a gang that waits, the nearest first. `stop` is how long its
    tasks may take to stop."""
    claim = state.pending.gangs.get(job)
    if claim is None or claim.ineligible is not None or claim.group or claim.nomination is not None:
        return
    trial = _Trial(state, claim, now)
    reason = trial.of().reason
    if isinstance(reason, HeldBack) and reason.until is not None:
        yield from trial.shorter(reason.until, stop)
    yield from trial.fewer()
    yield from trial.higher()


class _Trial:
    def __init__(self, state: PlannerState, claim: PendingGang, now: Micros) -> None:
        self._state = state
        self._claim = claim
        self._widest = max(claim.roles, key=lambda part: len(part.tasks))
        self._now = now

    def of(self, **changes: object) -> Forecast:
        """What would become of the gang if these things were different."""
        self._state.put_pending(replace(self._claim, **changes))
        found = forecast(plan(self._state, self._now), self._claim.job)
        self._state.put_pending(self._claim)
        return found

    def shorter(self, until: Micros, stop: Micros) -> Iterator[Shorter]:
        """What it lasts includes the time that its stop may take."""
        limit = (until - self._now - stop) // SECOND * SECOND
        if limit > 0 and self.of(duration=limit + stop).starts_now:
            yield Shorter(limit)

    def fewer(self) -> Iterator[Fewer]:
        """The largest number of tasks that would start now; the widest role gives way."""
        need, widest = self._claim.need, self._widest
        low, high = 1, min(need, len(widest.tasks)) - 1
        if high < 1 or not self._starts_without(high):
            return
        while low < high:
            middle = (low + high) // 2
            if self._starts_without(middle):
                high = middle
            else:
                low = middle + 1
        yield Fewer(need - low, need)

    def _starts_without(self, count: int) -> bool:
        parts = tuple(
            replace(part, need=max(0, part.need - count)) if part is self._widest else part
            for part in self._claim.roles
        )
        need = self._claim.need - count
        return self.of(roles=parts, need=need, evicts_from=None).starts_now

    def higher(self) -> Iterator[Higher]:
        """The lowest priority with which others of its queue would give way."""
        claim = self._claim
        if claim.evicts_from is None:
            return
        tenants = [occupancy.gang for occupancy in self._state.running.by_job.values()]
        above = {t.priority for t in tenants if t.queue == claim.queue}
        for priority in sorted(p + 1 for p in above if p >= claim.priority)[:_PRIORITIES]:
            found = self.of(priority=priority, evicts_from=0)
            if found.victims:
                yield Higher(priority, found.victims)
                return


#: What would have to change; a gang with any other reason only has to wait.
_REMEDIES: dict[type, str] = {
    why.OnHold: "release it",
    why.QueueStopped: "start queue {queue} again",
    why.WaitingForMembers: "submit what is missing of it",
    why.WaitingForGroup: "submit those that are missing, or submit it again without the group",
    why.NoNodeMatches: "bring a worker with these labels, or ask for others",
    why.NeverFits: "bring workers with more {short_of}, or ask for less",
    why.QueueLimit: "wait for jobs of queue {queue} to end, or raise its limit of {resource}",
    why.NotEnough: "wait for {short_of} to become free, or bring workers that have it",
    why.Fragmented: "wait for a {domain} with room for it, or ask for smaller tasks",
}


def remedy(reason: Reason) -> str | None:
    """What would have to change, if anything but time."""
    if isinstance(reason, why.WaitingForMembers) and reason.uncounted:
        return "submit it again with a match policy that counts those that run or are done"
    if isinstance(reason, why.NeverFits) and reason.short_of == SLOTS and not reason.largest:
        return "start a worker"
    told = _REMEDIES.get(type(reason))
    return None if told is None else told.format(**msgspec.structs.asdict(reason))
