"""The search for victims: the cheapest set of gangs without which a preemptor could start.

Free capacity and victims are searched together. Tasks above the minimum of elastic gangs go first,
then whole gangs: the lowest priority, then the least work lost, then the fewest gangs. Without a
set that makes the preemptor fit, nothing is evicted.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from phalanx.core.model import PreemptWithin
from phalanx.plan.fairshare.quota_demand import QuotaDemand
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import PendingGang
from phalanx.plan.placement.amounts import minimum_amounts
from phalanx.plan.preemption.candidates import (
    CandidatePool,
    EvictionCost,
    EvictionUnit,
    VictimSet,
    units_above_minimum,
    whole_gang,
)
from phalanx.plan.preemption.eligibility import EvictionEligibility
from phalanx.plan.preemption.evictable_gangs import EvictableGangs
from phalanx.plan.preemption.preemptor import Preemptor, resources_short
from phalanx.plan.preemption.search_budget import SearchBudget
from phalanx.plan.preemption.variants import candidate_pools, domain_variants
from phalanx.plan.preemption.victim_set import SearchSpace, VictimSetSearch
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.nodes import Bools
from phalanx.plan.state.planner_state import Moment
from phalanx.plan.state.running import Occupancy


class VictimSearch:
    """The searches of one pass."""

    def __init__(
        self,
        state: Moment,
        gathered: Iterable[Occupancy],
        shares: FairShares,
    ) -> None:
        """`gathered` are the places of non-strict gangs: the first to go, and without cost."""
        self._gangs = EvictableGangs(state, gathered, shares)
        self._shares = shares
        self._now = state.now
        self._policy = state.policy
        self._quota_demand = QuotaDemand(shares, state.running, state.pending)
        self.budget = SearchBudget(state.policy.search_work << state.cursor.doubled)
        #: By queue and priority: the answers of `might_find` and `has_lower`.
        self._might_find: dict[tuple[str, int], bool] = {}
        self._lower: dict[tuple[str, int], bool] = {}
        self._priorities: dict[str, tuple[int, ...]] = {}
        #: By needed amounts: the resources that are short, and the capacity that they are short of.
        self._short: dict[bytes, Bools] = {}
        self._short_in: tuple[FreeCapacity, int] | None = None

    # Cheap questions before a search

    def might_find(self, queue: str, priority: int) -> bool:
        """Whether a gang of this queue and priority might be entitled to any victim.

        Answered once per pass. A gang for which it is false is never worth a search.
        """
        if not self._gangs.lowest_priority:
            return False
        answer = self._might_find.get((queue, priority))
        if answer is None:
            answer = self.has_lower(queue, priority) or self._might_reclaim(queue)
            self._might_find[queue, priority] = answer
        return answer

    def is_entitled(self, gangs: Sequence[PendingGang]) -> bool:
        """Whether there is a lower priority to preempt, or the gangs stay within their share or
        their quota."""
        shares = self._shares
        for gang in gangs:
            if self.has_lower(gang.queue, gang.priority):
                return True
        for gang in gangs:
            branch, need = shares.branches[gang.queue], minimum_amounts(gang, shares.table)
            within_share = shares.stays_within_share(branch, need)
            if not within_share and not shares.stays_within_quota(branch, need):
                return False
        return True

    def has_victims(self, gangs: Sequence[PendingGang], short: Bools) -> bool:
        """Whether there are tasks that gangs which are short of these resources might evict, or
        that are stopping already."""
        if self._gangs.stopping or self._gangs.has_reclaimable(short):
            return True
        return any(self.has_lower(gang.queue, gang.priority) for gang in gangs)

    def has_lower(self, queue: str, priority: int) -> bool:
        """Whether the queue has tasks that a gang of this priority may preempt."""
        answer = self._lower.get((queue, priority))
        if answer is None:
            answer = self._lower[queue, priority] = self._find_lower(queue, priority)
        return answer

    def _find_lower(self, queue: str, priority: int) -> bool:
        policy = self._shares.branches[queue].queue.preempt_within_queue
        equal_counts = policy is PreemptWithin.LOWER_OR_NEWER_EQUAL
        lowest = self._gangs.lowest_priority.get(queue)
        return lowest is not None and lowest < priority + equal_counts

    def _might_reclaim(self, queue: str) -> bool:
        """Whether the queue has less than it deserves, or less than its quota, while gangs of other
        queues could be reclaimed or are stopping."""
        gangs = self._gangs
        if not gangs.stopping and not gangs.any_was_reclaimable:
            return False
        others = any(other != queue for other in gangs.lowest_priority)
        return others and not self._shares.has_full_share(self._shares.branches[queue])

    # The search

    def find(
        self,
        gangs: Sequence[PendingGang],
        soon: FreeCapacity,
        space_for: Callable[[], SearchSpace],
    ) -> VictimSet | None:
        """Victims for a preemptor, with its places taken in all capacities.

        None, and all capacities as before, if nothing makes the preemptor fit. Capacity that is
        becoming free anyway is used first, so the set may be empty. `soon` is what is free once all
        stopping tasks have stopped. `space_for` is called only if there are candidates.
        """
        if not self.has_victims(gangs, self._short_of(gangs, soon)):
            return None
        preemptor = Preemptor(gangs, self._shares, soon)
        eligibility = EvictionEligibility(self._shares, preemptor, self._policy, self._quota_demand)
        victims = self._find(eligibility, space_for)
        if victims is None and eligibility.reclaim.stop_keeping_quotas():
            victims = self._find(eligibility, space_for)
        return victims

    def _short_of(self, gangs: Sequence[PendingGang], soon: FreeCapacity) -> Bools:
        """The resources that gangs are short of. Computed once for equal needs, until something
        else is free."""
        if self._short_in != (soon, soon.version):
            self._short, self._short_in = {}, (soon, soon.version)
        shares = self._shares
        total = minimum_amounts(gangs[0], shares.table)
        for gang in gangs[1:]:
            total = total + minimum_amounts(gang, shares.table)
        key = total.tobytes()
        short = self._short.get(key)
        if short is None:
            short = self._short[key] = resources_short(total, soon, shares.shared)
        return short

    def _find(
        self, eligibility: EvictionEligibility, space_for: Callable[[], SearchSpace]
    ) -> VictimSet | None:
        """Victims by the rules as they are now."""
        tasks, whole = self._candidates(eligibility)
        # Capacity that is becoming free is promised only to gangs that are entitled to evict.
        if not eligibility.may_evict_any(tasks + whole) and not self._was_entitled(eligibility):
            return None
        space = space_for()
        for units in (tasks, tasks + whole):
            self._sort(units)
            for pool in (eligibility.borrowed_quota(units), units):
                victims = self._cheapest(eligibility, pool, space) if pool else None
                if victims is not None:
                    return victims
        # Without candidates, what is becoming free may still be enough.
        return None if tasks or whole else self._cheapest(eligibility, [], space)

    def _candidates(
        self, eligibility: EvictionEligibility
    ) -> tuple[list[EvictionUnit], list[EvictionUnit]]:
        """The single tasks and the whole gangs that the preemptor may evict."""
        gangs = eligibility.preemptor.gangs
        own = {gang.queue for gang in gangs if self.has_lower(gang.queue, gang.priority)}
        tasks: list[EvictionUnit] = []
        whole: list[EvictionUnit] = []
        for occupancy in self._gangs.open_to(own, eligibility):
            young = self._gangs.is_young(occupancy)
            if not eligibility.may_evict(occupancy, occupancy.lowest, young=young):
                continue
            if occupancy.gang.has_tasks_above_minimum:
                tasks += (
                    unit
                    for unit in units_above_minimum(occupancy, self._now)
                    if eligibility.may_evict(occupancy, unit.priority, young=young)
                )
            if not occupancy.is_preemptible or occupancy.gang.only_gathered:
                continue
            if self._gangs.was_overdue(occupancy):
                continue
            if eligibility.may_evict(occupancy, occupancy.highest, young=young, whole=True):
                whole.append(whole_gang(occupancy, self._now))
        self.budget.look_at(len(tasks) + len(whole))
        return tasks, whole

    def _was_entitled(self, eligibility: EvictionEligibility) -> bool:
        """Whether the preemptor could have evicted a gang that is stopping already."""
        for occupancy, positions in self._gangs.stopping:
            priority = min(occupancy.priorities[position] for position in positions)
            young, used = self._gangs.is_young(occupancy), self._gangs.used_before
            if eligibility.could_have_evicted(occupancy.gang, priority, used, young=young):
                return True
        return False

    def _sort(self, units: list[EvictionUnit]) -> None:
        """Sort candidates, the first to be evicted first.

        Heuristic: single tasks before whole gangs, then the lowest priority, then the least work
        lost; of equal ones those of the least important queue, the smallest, and the newest.
        """
        if not units:
            return
        sizes = self._shares.dominant_shares(np.array([unit.amounts for unit in units])).tolist()
        ranks = []
        for size, unit in zip(sizes, units, strict=True):
            gang = unit.gang
            queue = self._queue_priorities(gang.queue)
            ranks.append(
                (unit.whole, unit.priority, unit.cost, queue, size, -gang.created_at, gang.job)
            )
        order = sorted(range(len(units)), key=ranks.__getitem__)
        units[:] = [units[number] for number in order]

    def _queue_priorities(self, queue: str) -> tuple[int, ...]:
        """The priorities of a queue and the queues above it, the highest queue first."""
        priorities = self._priorities.get(queue)
        if priorities is None:
            path = self._shares.branches[queue].path()
            priorities = tuple(branch.queue.priority for branch in path)[::-1]
            self._priorities[queue] = priorities
        return priorities

    def _cheapest(
        self, eligibility: EvictionEligibility, units: list[EvictionUnit], space: SearchSpace
    ) -> VictimSet | None:
        """The cheapest set of all pools of candidates and all domains, with its places taken."""
        best: tuple[EvictionCost, VictimSetSearch] | None = None
        gangs, rows = eligibility.preemptor.gangs, len(self._shares.table.rows)
        for some in candidate_pools(eligibility, units):
            pool = CandidatePool(some, rows)
            for variant in domain_variants(gangs, space, pool):
                if not self.budget.allows_more():
                    break
                search = VictimSetSearch(variant, eligibility, pool, space, self.budget)
                victims = search.run()
                if victims is None:
                    continue
                victims.undo()
                if best is None or victims.cost < best[0]:
                    best = (victims.cost, search)
        return None if best is None else best[1].repeat()

    # What the pass decided

    def exclude(self, job: str) -> None:
        """Do not evict this job in this pass."""
        self._gangs.exclude(job)

    def evict(self, victims: VictimSet) -> None:
        """Count the victims as stopping for the rest of the pass."""
        self._gangs.evict(victims)
