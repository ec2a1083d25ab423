"""One pass over all that waits. The recipe is `plan`; each step is told where it is done.

A gang that cannot start stands in nobody's way, unless they would delay the start it was promised.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from phalanx.core.events import Placement
from phalanx.core.queues import stopped_by
from phalanx.core.reasons import (
    HeldBack,
    QueueLimit,
    QueueStopped,
    Reason,
    WaitingForGroup,
    WaitingForVictims,
)
from phalanx.core.spec.job import Micros
from phalanx.plan.decisions import (
    Decision,
    Evict,
    Hold,
    LetGo,
    Plan,
    Reserve,
    ReservedStart,
    TimeOut,
)
from phalanx.plan.elastic import ElasticGrowth
from phalanx.plan.explain import shortage
from phalanx.plan.explain.reasons import PendingReasons
from phalanx.plan.fairshare.demand import settle_shares
from phalanx.plan.fairshare.queue_tree import with_unlisted
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.fairshare.starvation import StarvationReserve
from phalanx.plan.groups import assembled, groups_of
from phalanx.plan.model import PendingGang, RoleRequest, TaskRequest
from phalanx.plan.order import Candidate, ServingOrder
from phalanx.plan.pending import Bucket, is_simple, is_starving
from phalanx.plan.placement.amounts import gathered_amounts, minimum_amounts
from phalanx.plan.placement.gathered import deadlocked, gathered_occupancy
from phalanx.plan.placement.headroom import Headroom
from phalanx.plan.placement.trial import PlacementTrial, place_all, undo_all
from phalanx.plan.preemption.candidates import VictimSet
from phalanx.plan.preemption.search import VictimSearch
from phalanx.plan.preemption.victim_set import SearchSpace
from phalanx.plan.reservations import StartReservations
from phalanx.plan.state.nodes import Floats
from phalanx.plan.state.pass_capacity import PassCapacity
from phalanx.plan.state.planner_state import Moment, PlannerState


def plan(state: PlannerState, now: Micros) -> Plan:
    """What to do now, and why everybody else waits."""
    work = _Pass(state.at(now))
    work.give_up()
    work.break_deadlocks()
    work.divide()
    work.line_up()
    while (turn := work.order.pop()) is not None:
        work.serve(turn)
    work.grow()
    return work.result()


class _Pass:
    def __init__(self, state: Moment) -> None:
        self.state = state
        self.now = state.now
        self.policy = state.policy
        self.table = state.table
        self.pending = state.pending
        tenants = state.running
        self.queues = with_unlisted(state.queues, state.queues_in_use())
        self.shares = FairShares(self.queues, self.table)
        self.order = ServingOrder(self.policy, self.shares, self.now, self._is_in_vain)
        self.room = PassCapacity(state)
        self.reservations = StartReservations(state, self.room)
        self.starvation = StarvationReserve(self.shares, tenants, self.now)
        holders = [gathered_occupancy(c, self.table) for c in self.pending.gathering.values()]
        self.search = VictimSearch(tenants, holders, self.shares, self.now, self.policy.min_runtime)
        #: The tasks that make room, in this pass or since an earlier one.
        self.stopping = [*tenants.stopping_tasks()]
        self.searches = 0
        self.skipped = 0
        self.starts: list[tuple[PlacementTrial, ...]] = []
        self.decisions: list[Decision] = []
        self.reasons = PendingReasons(self.pending.fork())
        self.stopped = {
            name: by for name in self.queues if (by := stopped_by(self.queues, name)) is not None
        }
        #: By request: no more tasks fit than this.
        self.most: dict[TaskRequest, int] = {}
        #: Lines that are served although they do not fit: others may have to leave, or to wait.
        self.served_anyway: set[Bucket] = set()
        #: Lines that may not start, or never could.
        self.hopeless = {
            line: reason
            for line in self.pending.buckets.values()
            if (reason := self._stopped(line.first) or state.never_fits(line)) is not None
        }
        for line, reason in self.hopeless.items():
            self.reasons.of_bucket(line, 0, reason)
        self.out: set[str] = set()  #: gave up or gave way in this pass

    # 1. Who has waited long enough, and who waits in vain

    def give_up(self) -> None:
        for claim in self.pending.expired(self.now):
            for mate in assembled(claim, self.pending).members:
                self._give_up(mate)

    def _give_up(self, claim: PendingGang) -> None:
        since = claim.since if claim.strict else claim.gathered_since
        if claim.job not in self.out:
            self.out.add(claim.job)
            self.decisions.append(TimeOut(claim.job, since or 0))
            self.room.let_go(claim)

    def break_deadlocks(self) -> None:
        holders = [c for j, c in self.pending.gathering.items() if j not in self.out]
        for claim in deadlocked(holders, self.state.empty, self.shares) if holders else ():
            self.decisions.append(LetGo(claim.job, claim.version))
            self._keep_out(claim.job)
            self.room.let_go(claim)

    # 2. What everybody deserves

    def divide(self) -> None:
        stopped = [c for c in self.pending.growing.values() if c.queue in self.stopped]
        settle_shares(self.shares, self.state, self.hopeless, self.out, stopped)

    def _stopped(self, claim: PendingGang) -> QueueStopped | None:
        queue = self.stopped.get(claim.queue)
        return None if queue is None else QueueStopped(queue)

    # 3. Who stands where

    def line_up(self) -> None:
        """Free room only shrinks in a pass, so whoever does not fit now will not fit later in it.
        Of those only the first few are served: for them others may have to leave, or to wait."""
        fitting: list[Bucket] = []
        short: list[Bucket] = []
        most, total_fit = self.most, self.room.present.total_fit
        for line in self.pending.buckets.values():
            ask = line.first.roles[0].request
            room = most.get(ask)
            if room is None:
                room = most[ask] = total_fit(ask)
            if line not in self.hopeless:
                (short if line.need > room else fitting).append(line)
        self.served_anyway = set(self._worth_serving([*fitting, *short]))
        self.order.add_lines(fitting, [line for line in short if line in self.served_anyway])
        for group in groups_of(self.pending):
            self._line_up_group(group.members, group.missing)

    def _worth_serving(self, lines: list[Bucket]) -> list[Bucket]:
        """The first of all, and of every queue, for whom something can be done although they do
        not fit."""
        ends = bool(self.state.running.ending) and self.policy.backfill
        worth = [line for line in lines if ends or self._has_rights(line.head)]
        most = 2 * self.policy.heads + self.policy.searches + self.state.cursor
        worth.sort(key=self.order.key_of)
        firsts = {line.first.queue: line for line in reversed(worth)}
        return [*firsts.values(), *worth[:most]]

    def _has_rights(self, claim: PendingGang) -> bool:
        if is_starving(self.policy, claim, self.now):
            return True
        return self._may_evict(claim) and self.search.might_find(claim.queue, claim.priority)

    def _line_up_group(self, members: tuple[PendingGang, ...], missing: tuple[str, ...]) -> None:
        reason: Reason | None = WaitingForGroup(missing) if missing else None
        for member in members:
            reason = reason or self._stopped(member)
        reason = reason or shortage.never(members, self.state.empty)
        if reason is None:
            self.order.add_group(members)
            return
        for member in members:
            self.reasons.explicit[member.job] = reason

    # 4. Whose turn it is

    def _is_in_vain(self, turn: Candidate) -> bool:
        """Whether nothing can be done for a gang for which too little is left.

        Most gangs that wait are dealt with here.
        """
        line, claim = turn.line, turn.last
        if line is None or self._has_room(claim.roles[0].request, line.need):
            return False
        if line in self.served_anyway and self._can_be_helped(claim):
            return False
        self.reasons.of_bucket(line, turn.position, None)
        return True

    def _can_be_helped(self, claim: PendingGang) -> bool:
        """Whether others might leave, or be kept waiting, for a gang that does not fit."""
        return self.reservations.count < self.policy.heads or self._has_rights(claim)

    def serve(self, turn: Candidate) -> None:
        claims = turn.claims
        if any(claim.job in self.out for claim in claims):
            self._next(turn)
            return
        promised = [claim for claim in claims if claim.nomination is not None]
        for claim in promised:
            self.room.give(claim.job)
            self.shares.use(claim.queue, -minimum_amounts(claim, self.table))
        behind = None if promised else self.starvation.delayed_by(claims)
        if behind is None and (self._start(claims) or self._evict(claims) or self._hold(claims)):
            self._next(turn)
            return
        reason = self._explain(claims, behind)
        for claim in promised:
            reason = self._keep_promise(claim) or reason
        self._stay(turn, reason)
        if isinstance(reason, HeldBack):
            self._try_shorter(turn)

    def _next(self, turn: Candidate) -> None:
        if turn.line is not None:
            self.reasons.is_served(turn.line, turn.position)
            self.order.add_line(turn.line, turn.position + 1)

    def _try_shorter(self, turn: Candidate) -> None:
        """Of those behind a gang that would delay a head, who ends sooner may not."""
        line, lasts = turn.line, turn.last.duration
        if line is None:
            return
        for position, gang in enumerate(line.gangs_from(turn.position + 1), turn.position + 1):
            other = gang.duration
            if other is not None and (lasts is None or other < lasts):
                self.order.add_line(line, position)
                return

    def _stay(self, turn: Candidate, reason: Reason | None) -> None:
        """What keeps the first of a line from starting keeps all of it."""
        if turn.line is None:
            for claim in turn.claims:
                self.reasons.explicit[claim.job] = self._own(claim, turn.claims, reason)
            return
        if reason is None:
            self.reasons.of_bucket(turn.line, turn.position, None)
        else:
            self.reasons.of_bucket(turn.line, turn.position, reason)

    def _own(
        self, claim: PendingGang, claims: Sequence[PendingGang], reason: Reason | None
    ) -> Reason:
        """A member's share of why its group waits."""
        if isinstance(reason, WaitingForVictims | HeldBack | QueueLimit):
            return reason
        return shortage.short(claims, claim, self.room.views)

    def _keep_promise(self, claim: PendingGang) -> Reason | None:
        self.room.keep(claim.job)
        self.shares.use(claim.queue, minimum_amounts(claim, self.table))
        victims = claim.nomination.victims if claim.nomination is not None else ()
        left = self.state.running.stopping_tasks().intersection(victims)
        return WaitingForVictims(tuple(sorted(left))) if left else None

    def _start(self, claims: Sequence[PendingGang]) -> bool:
        """Place the claimant now: all of its minimum, within the limits, delaying no head."""
        if self._limit(self._needs(claims)) is not None:
            return False
        if len(claims) == 1 and not self._might_fit(claims[0]):
            return False
        trials = place_all([self._trial(claim) for claim in claims])
        if trials is None or self._limit(taken := [(t.gang.queue, t.amounts()) for t in trials]):
            undo_all(trials)
            return False
        self.starts.append(trials)
        for trial, (_, amounts) in zip(trials, taken, strict=True):
            self.search.exclude(trial.gang.job)
            self._use(trial.gang, amounts)
            self.reservations.add_started(trial.gang.duration, trial.occupants())
        return True

    def _trial(self, claim: PendingGang) -> PlacementTrial:
        heads = self.reservations.capacities_during(claim.duration)
        return PlacementTrial(claim, (*self.room.views, *heads), self.reservations.allowed_nodes())

    def _might_fit(self, claim: PendingGang) -> bool:
        """Cheaper than a trial: whether there are enough places for some part at all."""
        needed = claim.roles[0].need or (claim.need if len(claim.roles) == 1 else 0)
        return self._has_room(claim.roles[0].request, needed - len(claim.gathered))

    def _has_room(self, ask: TaskRequest, wanted: int) -> bool:
        if wanted <= self.most.get(ask, wanted):
            self.most[ask] = self.room.present.total_fit(ask)
        return wanted <= self.most[ask]

    def _use(self, claim: PendingGang, amounts: Floats) -> None:
        self.shares.use(claim.queue, amounts)
        self.order.changed(claim.queue)

    def _needs(self, claims: Sequence[PendingGang]) -> list[tuple[str, Floats]]:
        """By queue what the claimant takes, if the lightest tasks are enough."""
        return [(claim.queue, minimum_amounts(claim, self.table)) for claim in claims]

    def _limit(self, needs: list[tuple[str, Floats]]) -> QueueLimit | None:
        """The limit that keeps queues from using so much more, all of it together."""
        if not any(queue in self.shares.limits.limited for queue, _ in needs):
            return None
        bound = self.shares.limits.binding(needs)
        return None if bound is None else QueueLimit(*bound)

    # 5. Who has to give way

    def _evict(self, claims: Sequence[PendingGang]) -> bool:
        worth = any(self.search.might_find(claim.queue, claim.priority) for claim in claims)
        if not worth or not all(self._may_evict(claim) for claim in claims):
            return False
        if not self.search.is_entitled(claims) or not self._may_search():
            return False
        later = self.reservations.capacities_during(claims[0].duration)
        self.room.look_ahead()
        space = SearchSpace((self.room.soon, *later), self.reservations.allowed_nodes())
        found = self.search.find(claims, space)
        if found is None:
            return False
        if self._free_holds(found):
            return self._start(claims)
        victims = found.victims()
        self.search.evict(found)
        for unit in found.units:
            tenant = unit.occupancy.gang
            self._keep_out(tenant.job)
            for view in (self.room.soon, *later):
                view.vacate(unit.occupants())
            self.shares.use(tenant.queue, -unit.amounts)
            self.order.changed(tenant.queue)
        self.decisions.append(Evict(tuple(map(_placement, found.trials)), victims))
        tasks = tuple(task for unit in found.units for task in unit.task_ids())
        self.stopping += tasks
        # Without victims of its own, it waits for those of others.
        tasks = tasks or tuple(sorted(self.stopping))
        for trial in found.trials:
            self.search.exclude(trial.gang.job)
            self._use(trial.gang, trial.amounts())
            self.reasons.explicit[trial.gang.job] = WaitingForVictims(tasks)
        return True

    def _keep_out(self, job: str) -> None:
        """Who gives way does not get anything in the same pass."""
        self.out.add(job)
        if (claim := self.pending.gangs.get(job)) is not None:
            self.reasons.explicit[job] = shortage.short((claim,), claim, self.room.views)

    def _free_holds(self, found: VictimSet) -> bool:
        """Whoever only holds places lets go of them at once. Whether nobody else has to leave."""
        holders = [unit for unit in found.units if unit.occupancy.gang.only_gathered]
        if not holders:
            return False
        for unit in holders:
            claim = self.pending.gangs[unit.occupancy.gang.job]
            self.decisions.append(LetGo(claim.job, claim.version))
            self._keep_out(claim.job)
            self.search.exclude(claim.job)
            self.room.let_go(claim)
            self._use(claim, -gathered_amounts(claim, self.table))
        self.most.clear()
        found.undo()
        return True

    def _may_evict(self, claim: PendingGang) -> bool:
        since = claim.evicts_from
        return since is not None and since <= self.now and claim.nomination is None

    def _may_search(self) -> bool:
        """Searches are dear, so a pass has only so many; the next one begins where it ended."""
        if self.skipped < self.state.cursor:
            self.skipped += 1
            return False
        self.searches += 1
        return self.searches <= self.policy.searches

    def _hold(self, claims: Sequence[PendingGang]) -> bool:
        if len(claims) > 1 or claims[0].strict:
            return False
        claim = claims[0]
        views = (*self.room.views, *self.reservations.capacities_during(None))
        trial = PlacementTrial(claim, views)
        if not trial.gather(self._headroom(claim)):
            return False
        new = tuple(a for a in trial.assignments() if a.task not in trial.gathered)
        self._use(claim, trial.amounts())
        self.decisions.append(Hold(Placement(claim.job, claim.version, new)))
        self.reasons.explicit[claim.job] = shortage.short(claims, claim, views)
        return True

    def _headroom(self, claim: PendingGang) -> Headroom:
        limits = self.shares.limits.headroom(claim.queue)
        return Headroom(np.minimum(limits, self.starvation.headroom(claim.queue)), self.table)

    # 6. Who cannot start yet, and what is kept for them

    def _explain(
        self, claims: Sequence[PendingGang], behind: ReservedStart | None
    ) -> Reason | None:
        """Why it cannot start; None if it is only that too little is free."""
        limit = self._limit(self._needs(claims))
        if limit is not None:
            return limit
        held_back = self.reservations.held_back(claims, behind)
        if held_back is not None:
            return held_back
        claim = claims[0]
        simple = len(claims) == 1 and is_simple(claim) and len(self.room.views) == 1
        reason = None if simple else shortage.short(claims, claim, self.room.views)
        if all(each.strict and each.nomination is None for each in claims):
            head = self.reservations.reserve(claims)
            if len(claims) == 1 and is_starving(self.policy, claim, self.now):
                self.starvation.reserve(claim, None if head is None else head.at)
        return reason

    # 7. What is left over

    def grow(self) -> None:
        """Tasks beyond the minimum, in the same order."""
        here = [c for c in self.pending.growing.values() if c.job not in self.out]
        growing = [claim for claim in here if self._stopped(claim) is None]
        growth = ElasticGrowth(self.order, self.policy, self.now, self.room.views)
        running = growth.trials(growing)
        growth.share_out([*chain(*self.starts), *running], self._give)
        self.decisions += (Reserve(tuple(map(_placement, trials))) for trials in self.starts)
        self.decisions += (Reserve((_placement(trial),)) for trial in running if trial.count)

    def _give(self, trial: PlacementTrial, part: RoleRequest, most: int) -> int:
        """What was promised or kept since the gang was placed binds what it gets beyond that."""
        later = self.reservations.capacities_during(trial.gang.duration)
        trial.continue_on((*self.room.views, *later), self.reservations.allowed_nodes())
        before = trial.amounts()
        placed = trial.grow(part, self._headroom(trial.gang).allows(part, most))
        self._use(trial.gang, trial.amounts() - before)
        return placed

    # 8. What comes out of it

    def result(self) -> Plan:
        limits = self.shares.limits.remaining()
        self.reasons.shortage = shortage.Shortage(self.room.present, self.most, limits)
        done = self.searches <= self.policy.searches
        cursor = 0 if done else self.state.cursor + self.policy.searches
        decisions, starts = tuple(self.decisions), self.reservations.starts()
        return Plan(self.now, decisions, self.reasons, starts, cursor)


def _placement(trial: PlacementTrial) -> Placement:
    return Placement(trial.gang.job, trial.gang.version, trial.assignments())
