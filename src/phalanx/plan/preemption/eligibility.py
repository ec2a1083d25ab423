"""Eligibility for eviction: lower priorities of the preemptor's own queue, and what it may reclaim
from other queues."""

from collections.abc import Iterable, Mapping
from itertools import takewhile

from phalanx.core.model import PreemptWithin
from phalanx.plan.fairshare.quota_demand import QuotaDemand
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import OrderKey, PlannerPolicy, RunningGang
from phalanx.plan.placement.trial import PlacementTrial
from phalanx.plan.preemption.candidates import EvictionUnit
from phalanx.plan.preemption.preemptor import Preemptor
from phalanx.plan.preemption.reclaim import ReclaimRules
from phalanx.plan.preemption.usage_overlay import UsageOverlay
from phalanx.plan.state.nodes import EPSILON, Floats
from phalanx.plan.state.running import Occupancy


class EvictionEligibility:
    """What one preemptor may evict, before and after some victims have been chosen."""

    def __init__(
        self,
        shares: FairShares,
        preemptor: Preemptor,
        policy: PlannerPolicy,
        quota_demand: QuotaDemand,
    ) -> None:
        self._shares = shares
        self.preemptor = preemptor
        #: The keys of the order that precede the priority; a higher priority outranks the others.
        self._keys_before_priority = tuple(takewhile(OrderKey.PRIORITY.__ne__, policy.order))
        self.usage = UsageOverlay(shares, quota_demand, preemptor)
        self.reclaim = ReclaimRules(shares, preemptor, self.usage)
        #: By queue, priority, youth and age: whether such gangs may be preempted, or reclaimed.
        self._may_evict: dict[tuple[str, int, bool, bool], tuple[bool, bool]] = {}
        #: By queue, priority and age: whether such tasks are preempted.
        self._preempted: dict[tuple[str, int, bool], bool] = {}

    # Before any victim is chosen

    def may_evict(
        self, occupancy: Occupancy, priority: int, *, young: bool, whole: bool = False
    ) -> bool:
        """Whether tasks of this priority, or the whole gang, may be evicted. Young gangs are not
        reclaimed."""
        gang = occupancy.gang
        newer = gang.created_at > self.preemptor.created_at
        kind = (gang.queue, priority, young, newer)
        rights = self._may_evict.get(kind)
        if rights is None:
            rights = self._may_evict[kind] = (
                self._may_preempt(gang, priority),
                not young and self.reclaim.may_reclaim(gang, priority),
            )
        preempt, reclaim = rights
        if preempt and (not whole or self._precedes(gang)):
            return True
        return reclaim and not self.reclaim.is_protected(occupancy)

    def may_evict_any(self, units: Iterable[EvictionUnit]) -> bool:
        """Whether the preemptor is entitled to any of the units, as the shares are now."""
        listed = list(units)
        queues = {unit.gang.queue for unit in listed}
        return any(map(self.is_preemption, listed)) or any(map(self.reclaim.is_entitled, queues))

    def could_have_evicted(
        self, gang: RunningGang, priority: int, used: Mapping[str, Floats], *, young: bool
    ) -> bool:
        """Whether the preemptor could have evicted tasks that are stopping already.

        `used` is what each queue used before they were evicted.
        """
        if self._may_preempt(gang, priority):
            return True
        return not young and self.reclaim.could_have_reclaimed(gang, priority, used)

    def is_preemption(self, unit: EvictionUnit) -> bool:
        """Whether the unit is of the preemptor's queue and less important than the preemptor."""
        may_preempt = self._may_preempt(unit.gang, unit.priority)
        return may_preempt and (not unit.whole or self._precedes(unit.gang))

    def _precedes(self, gang: RunningGang) -> bool:
        """Whether the preemptor precedes a less important gang in the order of their queue.

        Else an eviction would undo the order in which the two were started.
        """
        preemptor = self.preemptor
        for key in self._keys_before_priority:
            if key is OrderKey.SIZE and preemptor.size != gang.size:
                return preemptor.size > gang.size
            if key is OrderKey.CREATED and preemptor.created_at != gang.created_at:
                return preemptor.created_at < gang.created_at
        return True

    def borrowed_quota(self, units: list[EvictionUnit]) -> list[EvictionUnit]:
        """The units of other queues, if they use quota of the preemptor's queue and there is a
        choice between them and units of its own queue; else none.

        Heuristic: a queue takes its quota back before it preempts its own gangs, which would
        reclaim that quota themselves in the next pass.
        """
        others = [unit for unit in units if not self.is_preemption(unit)]
        if len(others) == len(units):
            return []
        queues = {unit.gang.queue for unit in others}
        return others if any(map(self.reclaim.stays_within_quota, queues)) else []

    def _may_preempt(self, gang: RunningGang, priority: int) -> bool:
        """Whether a task of this priority is preempted: in the preemptor's queue, by priority."""
        kind = (gang.queue, priority, gang.created_at > self.preemptor.created_at)
        answer = self._preempted.get(kind)
        if answer is None:
            answer = self._preempted[kind] = self._is_less_important(*kind)
        return answer

    def _is_less_important(self, queue: str, priority: int, newer: bool) -> bool:
        preemptor = self.preemptor
        if all(pending.queue != queue for pending in preemptor.gangs):
            return False
        policy = self._shares.branches[queue].queue.preempt_within_queue
        if policy is PreemptWithin.NEVER:
            return False
        if priority < preemptor.priority:
            return True
        equal_counts = policy is PreemptWithin.LOWER_OR_NEWER_EQUAL
        return equal_counts and newer and priority == preemptor.priority

    # While victims are chosen

    def may_add(self, unit: EvictionUnit, same_gang: Iterable[EvictionUnit] = ()) -> bool:
        """Whether the unit may be evicted besides those chosen so far.

        `same_gang` are chosen units of the same gang, which the unit replaces.
        """
        return self.is_preemption(unit) or self.reclaim.may_add(unit, same_gang)

    def allows_start(self, chosen: Iterable[EvictionUnit]) -> bool:
        """Whether the preemptor would be within its limits, and entitled to what it reclaims, once
        the chosen units have stopped."""
        if not self.limits_hold():
            return False
        queues = {unit.gang.queue for unit in chosen if not self.is_preemption(unit)}
        if not queues:
            return True
        return all(map(self.reclaim.is_entitled, queues)) and self.usage.helps()

    def limits_hold(self) -> bool:
        """Whether the preemptor would be within all limits, once the chosen units have stopped."""
        return self._limits_hold(self.preemptor.amounts)

    def allows_result(self, chosen: Iterable[EvictionUnit]) -> bool:
        """Whether the preemptor is entitled to exactly the chosen units, and the queues get closer
        to what they are entitled to."""
        reclaimed = [unit for unit in chosen if not self.is_preemption(unit)]
        if not reclaimed:
            return True
        return self.reclaim.allows(reclaimed) and self.usage.is_fairer()

    def allows_placement(self, trials: Iterable[PlacementTrial]) -> bool:
        """Whether the limits hold for the tasks placed, which may be heavier than the lightest
        tasks that the minimum is reckoned with."""
        placed = ((trial.gang.queue, trial.amounts()) for trial in trials)
        return self._limits_hold(self._shares.tree.sum_up(placed))

    def _limits_hold(self, amounts: Mapping[str, Floats]) -> bool:
        """Whether every queue stays within its limit with these amounts and without the victims."""
        if not self._shares.limits.limited:
            return True
        for name, need in amounts.items():
            branch = self._shares.branches.get(name, self._shares.root)
            after = self.usage.used(branch) + need
            if bool(((after > branch.limit + EPSILON) & (need > 0)).any()):
                return False
        return True
