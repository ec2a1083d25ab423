"""What a plan means for one gang, and what would let the gang start.

Every alternative was tried with the planner: with fewer tasks, with a shorter time limit, or with a
higher priority. None of them is an estimate.
"""

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from phalanx.core import reasons as why
from phalanx.core.events import Placement
from phalanx.core.model import Assignment
from phalanx.core.reasons import Fragmented, HeldBack, Reason
from phalanx.core.time_units import SECOND, Micros
from phalanx.plan.cycle import decision_for, moves_not_allowed
from phalanx.plan.decisions import Evict, Gather, Plan, PlannedVictim, Reserve, ReservedStart
from phalanx.plan.model import PendingGang
from phalanx.plan.state.nodes import SLOTS
from phalanx.plan.state.planner_state import PlannerState

#: At most this many priorities are tried.
_PRIORITIES = 4


class Forecast(msgspec.Struct, frozen=True):
    """What happens to a gang if a plan is carried out."""

    places: tuple[Assignment, ...] = ()  #: where it starts, or the places that it gathers
    gathers: bool = False  #: it only gathers these places
    victims: tuple[PlannedVictim, ...] = ()  #: what is evicted for it first
    moves: tuple[Placement, ...] = ()  #: where the victims start again, if they are moved
    reserved_start: ReservedStart | None = None
    reason: Reason | None = None  #: why it stays pending

    @property
    def starts_now(self) -> bool:
        return bool(self.places) and not self.gathers and not self.victims


class Fewer(msgspec.Struct, frozen=True):
    """It would start now if it needed fewer tasks."""

    tasks: int
    of: int


class Shorter(msgspec.Struct, frozen=True):
    """It would start now with a shorter time limit."""

    limit: Micros


class Higher(msgspec.Struct, frozen=True):
    """It would evict others with a higher priority."""

    priority: int
    victims: tuple[PlannedVictim, ...]


class WithMoves(msgspec.Struct, frozen=True):
    """It would start if gangs were moved, but a queue does not allow it."""

    gangs: int
    queue: str


Alternative = Fewer | Shorter | Higher | WithMoves


def forecast(made: Plan, job: str) -> Forecast:
    """What the plan means for a job."""
    start = next((start for start in made.reserved_starts if start.job == job), None)
    found = Forecast(reserved_start=start, reason=made.reasons.get(job))
    for decision in made.decisions:
        match decision:
            case Reserve(placements):
                victims, moves, gathers = (), (), False
            case Evict(placements, victims, moves):
                gathers = False
            case Gather(placement):
                placements, victims, moves, gathers = (placement,), (), (), True
            case _:
                continue
        for placement in placements:
            if placement.job == job:
                places = placement.assignments
                found = replace(found, places=places, victims=victims, moves=moves, gathers=gathers)
    return found


def alternatives(
    state: PlannerState, now: Micros, job: str, reason: Reason | None, stop: Micros
) -> Iterator[Alternative]:
    """What would let a gang start that stays pending for this reason, the smallest change first.

    `stop` is how long its tasks may take to stop.
    """
    gang = state.pending.gangs.get(job)
    if gang is None or gang.ineligible is not None or gang.group or gang.nomination is not None:
        return
    trials = WhatIf(state, gang, now)
    if isinstance(reason, HeldBack) and reason.until is not None:
        yield from trials.shorter(reason.until, stop)
    yield from trials.fewer()
    yield from trials.higher()
    if isinstance(reason, Fragmented):
        moves = moves_not_allowed(state, now, job)
        if moves is not None:
            yield WithMoves(*moves)


class WhatIf:
    """Variants of one pending gang, tried on a fork of the planner state."""

    def __init__(self, state: PlannerState, gang: PendingGang, now: Micros) -> None:
        self._state = state.fork()
        self._gang = gang
        self._widest = max(gang.roles, key=lambda role: len(role.tasks))
        self._now = now

    def decision(self, **changes: object) -> Reserve | Evict | Gather | None:
        """What the planner would decide for the gang with these changes."""
        self._state.put_pending(replace(self._gang, **changes))
        return decision_for(self._state, self._now, self._gang.job)

    def shorter(self, until: Micros, stop: Micros) -> Iterator[Shorter]:
        """A time limit with which the gang would end before a reserved start. The time that its
        tasks take to stop comes on top of the limit."""
        limit = (until - self._now - stop) // SECOND * SECOND
        if limit > 0 and isinstance(self.decision(duration=limit + stop), Reserve):
            yield Shorter(limit)

    def fewer(self) -> Iterator[Fewer]:
        """The largest number of tasks with which the gang would start now. Tasks of the widest role
        are left out."""
        need, widest = self._gang.need, self._widest
        low, high = 1, min(need, len(widest.tasks)) - 1
        if high < 1 or not self._may_fit_without(high) or not self._starts_without(high):
            return
        while low < high:
            middle = (low + high) // 2
            if self._starts_without(middle):
                high = middle
            else:
                low = middle + 1
        yield Fewer(need - low, need)

    def _may_fit_without(self, count: int) -> bool:
        """Whether a gang of a single role could fit now, at a glance. In a plan, capacity becomes
        free only where gathered places are released."""
        moment, gang = self._state.at(self._now), self._gang
        if len(gang.roles) > 1 or moment.pending.gathering:
            return True
        return moment.present.total_fit(self._widest.request) >= gang.need - count

    def _starts_without(self, count: int) -> bool:
        roles = tuple(
            replace(role, need=max(0, role.need - count)) if role is self._widest else role
            for role in self._gang.roles
        )
        need = self._gang.need - count
        return isinstance(self.decision(roles=roles, need=need, evicts_from=None), Reserve)

    def higher(self) -> Iterator[Higher]:
        """The lowest priority with which the gang would evict others of its queue."""
        gang = self._gang
        if gang.evicts_from is None:
            return
        running = (occupancy.gang for occupancy in self._state.running.by_job.values())
        above = {other.priority for other in running if other.queue == gang.queue}
        for priority in sorted(p + 1 for p in above if p >= gang.priority)[:_PRIORITIES]:
            decision = self.decision(priority=priority, evicts_from=0)
            if isinstance(decision, Evict) and decision.victims:
                yield Higher(priority, decision.victims)
                return


#: What would have to change; a gang with any other reason only needs time.
_REMEDIES: dict[type, str] = {
    why.OnHold: "release the job",
    why.QueueStopped: "start queue {queue}",
    why.WaitingForMembers: "submit the missing members",
    why.WaitingForGroup: "submit the missing jobs, or submit this job again without its group",
    why.NoNodeMatches: "add a worker with these labels, or change node_selector",
    why.NoNodeSatisfies: "add a node that satisfies them, or change the pod",
    why.NeverFits: "add workers with more {resources}, or request less",
    why.QueueLimit: "wait for jobs of queue {queue} to end, or raise its {unit} limit",
    why.QueueQuota: "wait for jobs of queue {queue} that are not preemptible to end, raise its"
    " {unit} quota, or submit the job again as preemptible",
    why.BelowMinResources: "wait for {resources} to become free, or submit the job again with lower"
    " min_resources",
    why.NotEnough: "wait for {resources} to become free, or add workers",
    why.Gathering: "wait for the missing places, or add workers",
    why.AboveMinimum: "wait for capacity to become free, or add workers",
    why.Fragmented: "wait for a {domain} with enough free capacity, or request smaller tasks",
}


def remedy(reason: Reason) -> str | None:
    """What would have to change, if anything but time."""
    if isinstance(reason, why.WaitingForMembers) and reason.uncounted:
        return "submit the job again with a match policy that counts running and done members"
    if isinstance(reason, why.NeverFits) and reason.short_of == SLOTS and not reason.largest:
        return "start a worker"
    if isinstance(reason, why.QueueLimit | why.QueueQuota) and reason.want is not None:
        is_limit = isinstance(reason, why.QueueLimit)
        others = "" if is_limit else "let the job be preemptible, "
        bound = "limit" if is_limit else "quota"
        return f"{others}request less, or raise that {bound}"
    template = _REMEDIES.get(type(reason))
    return None if template is None else remedy_text(template, reason)


def remedy_text(template: str, reason: Reason) -> str:
    """The template with the fields of the reason, and with its resource in words: `{resources}`
    stands for some amount of it, `{unit}` for its name before another noun."""
    fields = msgspec.structs.asdict(reason)
    resource = fields.get("resource") or fields.get("short_of") or ""
    words = {"resources": why.resource_in_words(resource), "unit": why.unit_in_words(resource)}
    return template.format(**fields, **words)
