"""Reclaim between queues: from which queues, and which of their gangs, a preemptor may take.

A queue takes back what it deserves from queues that use more than they deserve. A queue that stays
within its quota may also take it from queues that use more than their quota, even if they deserve
it: otherwise a quota would be worth nothing on nodes that are fragmented. `UsageOverlay` has the
proof that nothing is reclaimed back and forth.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from phalanx.core.model import ReclaimFrom
from phalanx.plan.fairshare.queue_tree import QueueBranch
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import RunningGang
from phalanx.plan.preemption.candidates import EvictionUnit
from phalanx.plan.preemption.preemptor import Preemptor
from phalanx.plan.preemption.usage_overlay import UsageOverlay
from phalanx.plan.state.nodes import EPSILON, Bools, Floats
from phalanx.plan.state.running import Occupancy


class ReclaimRules:
    """The rules for one preemptor. `usage` changes as victims are chosen."""

    def __init__(self, shares: FairShares, preemptor: Preemptor, usage: UsageOverlay) -> None:
        self._shares = shares
        self._preemptor = preemptor
        self._usage = usage
        #: The queues of the preemptor.
        self._queues = list(dict.fromkeys(queue for queue, _ in preemptor.needs))
        #: By preemptor's queue and victim's queue: whether the first may reclaim from the second.
        self._open: dict[tuple[str, str], bool] = {}
        #: By victim's queue: the resources that its quota protects, and that quota.
        self._protected: dict[str, list[tuple[int, float]]] = {}
        #: The rows of the resources that have to be freed.
        self._short_rows: list[int] = np.flatnonzero(preemptor.short_of).tolist()
        #: By queue: the rows and amounts that the preemptor takes of it.
        self._taken: dict[str, list[tuple[int, float]]] = {}
        for queue, need in preemptor.amounts.items():
            rows = np.flatnonzero((need > 0) & shares.shared).tolist()
            self._taken[queue] = [(row, float(need[row])) for row in rows]
        #: Whether an eviction must leave each queue its quota, and whether that excluded any gang.
        self._keeps_quotas = True
        self._has_protected = False

    def stop_keeping_quotas(self) -> bool:
        """Let evictions take queues below their quota from now on; False if that changes nothing.

        A queue that exceeds its share may lose a gang that takes it below its quota, but only if
        there are no other victims.
        """
        changes = self._keeps_quotas and self._has_protected
        self._keeps_quotas = False
        return changes

    # Before any victim is chosen

    def open_queues(self) -> set[str]:
        """The queues that the preemptor may reclaim from."""
        return {
            queue
            for queue in self._shares.queues_above_entitlement(self._preemptor.short_of)
            if any(self._is_open(own, queue) for own in self._queues)
        }

    def may_reclaim(self, gang: RunningGang, priority: int) -> bool:
        """Whether the preemptor may reclaim tasks of this priority from the gang's queue."""
        return any(
            self._is_open(queue, gang.queue) and self._priority_allows(queue, priority)
            for queue in self._queues
        )

    def could_have_reclaimed(
        self, gang: RunningGang, priority: int, used: Mapping[str, Floats]
    ) -> bool:
        """Whether the preemptor could have reclaimed tasks that are stopping already.

        `used` is what each queue used before they were evicted.
        """
        for queue in self._queues:
            if not self._priority_allows(queue, priority):
                continue
            if self._policies_allow(queue, gang.queue):
                side = self._victim_side(gang.queue)
                nothing = np.zeros(len(self._shares.shared))
                had = [(b, used.get(b.queue.name, nothing).tolist()) for b in side]
                if all(self._exceeds_share(*each) for each in had):
                    return self.stays_within_share(gang.queue)
                if all(self._exceeds_quota(*each) for each in had):
                    return self.stays_within_quota(gang.queue)
        return False

    def is_protected(self, occupancy: Occupancy) -> bool:
        """Whether the quota of its queue protects the gang."""
        total = occupancy.total
        protected = self._protected_rows(occupancy.gang.queue)
        return any(0 < total[row] <= quota for row, quota in protected)

    def unprotected(self, queue: str, totals: Floats) -> Bools:
        """Mask of the gangs of a queue, given by their amounts, that its quota does not protect."""
        return unprotected(totals, self._protected_rows(queue))

    # While victims are chosen

    def may_add(self, unit: EvictionUnit, same_gang: Iterable[EvictionUnit]) -> bool:
        """Whether the unit may be evicted besides those chosen so far.

        `same_gang` are chosen units of the same gang: the unit replaces them, so what they free
        does not count against it.
        """
        replaced: Floats | float = sum(other.amounts for other in same_gang)
        side = self._victim_side(unit.gang.queue)
        breaks_quota = any(self._breaks_quota(branch, unit, replaced) for branch in side)
        if breaks_quota and self._keeps_quotas:
            self._has_protected = True
            return False
        used = [(branch, self._used_with(branch, replaced)) for branch in side]
        if all(self._exceeds_share(*each) for each in used):
            return True
        exceed_quota = all(self._exceeds_quota(*each) for each in used)
        return exceed_quota and not breaks_quota and self.stays_within_quota(unit.gang.queue)

    def _used_with(self, branch: QueueBranch, more: Floats | float) -> list[float]:
        """What a queue uses without the victims, and more, by row."""
        if isinstance(more, float | int):
            return self._usage.amounts(branch)
        amounts: list[float] = (self._usage.used(branch) + more).tolist()
        return amounts

    def is_entitled(self, queue: str) -> bool:
        """Whether the preemptor stays within its share or its quota, compared with a queue."""
        return self.stays_within_share(queue) or self.stays_within_quota(queue)

    def allows(self, units: Iterable[EvictionUnit]) -> bool:
        """Whether the preemptor is entitled to all of these units, which are chosen."""
        by_queue: dict[str, list[EvictionUnit]] = {}
        for unit in units:
            by_queue.setdefault(unit.gang.queue, []).append(unit)
        return all(
            (self.stays_within_share(queue) and self._exceeded_share(queue, evicted))
            or (self.stays_within_quota(queue) and self._has_quota(queue, evicted))
            for queue, evicted in by_queue.items()
        )

    def _exceeded_share(self, queue: str, evicted: Iterable[EvictionUnit]) -> bool:
        """Whether the victim's side exceeded its share before each of these gangs was evicted, in
        some order: before the last of them.

        Single tasks of a gang count as one victim: the whole gang would be evicted otherwise.
        """
        by_gang: dict[str, Floats] = {}
        for unit in evicted:
            by_gang[unit.gang.job] = by_gang.get(unit.gang.job, 0.0) + unit.amounts
        side = self._victim_side(queue)
        return any(
            all(self._exceeds_share(b, self._used_with(b, last)) for b in side)
            for last in by_gang.values()
        )

    def _has_quota(self, queue: str, evicted: Iterable[EvictionUnit]) -> bool:
        """Whether the victim's side has its quota without the chosen units, or could have kept them
        only above its quota."""
        short = self._preemptor.short_of
        for branch in self._victim_side(queue):
            below = (self._usage.used(branch) < branch.quota - EPSILON) & short
            rows = np.flatnonzero(below).tolist()
            if rows and not all(self._exceeds_alone(unit, branch, rows) for unit in evicted):
                return False
        return True

    def stays_within_share(self, queue: str) -> bool:
        """Whether every queue on the preemptor's side, up to where it meets the given queue,
        deserves what it would use of each resource that the preemptor takes."""
        for branch, needs in self._own_side(queue):
            used, deserved = self._usage.amounts(branch), branch.deserved.tolist()
            if any(used[row] + need > deserved[row] + EPSILON for row, need in needs):
                return False
        return True

    def stays_within_quota(self, queue: str) -> bool:
        """Whether every queue on the preemptor's side, up to where it meets the given queue, would
        be within its quota; of a resource without a quota, within its share."""
        has_quota = False
        for branch, needs in self._own_side(queue):
            used, deserved = self._usage.amounts(branch), branch.deserved.tolist()
            quota, is_named = branch.quota.tolist(), branch.has_quota.tolist()
            for row, need in needs:
                allowed = quota[row] if is_named[row] else deserved[row]
                if used[row] + need > allowed + EPSILON:
                    return False
                has_quota = has_quota or is_named[row]
        return has_quota

    # Rules

    def _own_side(self, queue: str) -> Iterator[tuple[QueueBranch, list[tuple[int, float]]]]:
        """The queues from the preemptor's up to where they meet the given queue, and the rows and
        amounts that the preemptor takes of each of them."""
        for own in self._queues:
            for branch in self._shares.tree.sides(own, queue)[0]:
                yield branch, self._taken[branch.queue.name]

    def _victim_side(self, queue: str) -> list[QueueBranch]:
        """The queues from a victim's queue up to where it meets the preemptor's."""
        return self._shares.tree.sides(self._queues[0], queue)[1]

    def _is_open(self, queue: str, victim_queue: str) -> bool:
        """Whether one queue may reclaim from another, all of whose side exceeds its share or its
        quota."""
        is_open = self._open.get((queue, victim_queue))
        if is_open is None:
            _, victim_side = self._shares.tree.sides(queue, victim_queue)
            used = [(branch, self._usage.amounts(branch)) for branch in victim_side]
            exceeds = all(self._exceeds_share(*each) for each in used) or (
                all(self._exceeds_quota(*each) for each in used)
                and self.stays_within_quota(victim_queue)
            )
            is_open = exceeds and self._policies_allow(queue, victim_queue)
            self._open[queue, victim_queue] = is_open
        return is_open

    def _policies_allow(self, queue: str, victim_queue: str) -> bool:
        """Whether the settings of both queues permit reclaim; a queue spares those below it."""
        policy = self._shares.branches[queue].queue.reclaim_from_siblings
        if queue == victim_queue or policy is ReclaimFrom.NEVER:
            return False
        side, victim_side = self._shares.tree.sides(queue, victim_queue)
        return bool(side) and all(branch.queue.reclaimable for branch in victim_side)

    def _priority_allows(self, queue: str, priority: int) -> bool:
        """Whether the queue reclaims from tasks of this priority."""
        policy = self._shares.branches[queue].queue.reclaim_from_siblings
        return policy is not ReclaimFrom.LOWER_PRIORITY or priority < self._preemptor.priority

    def _exceeds_share(self, branch: QueueBranch, used: Sequence[float]) -> bool:
        """Whether a queue that uses so much has more than it deserves of what is short."""
        deserved = branch.deserved.tolist()
        return any(used[row] > deserved[row] + EPSILON for row in self._short_rows)

    def _exceeds_quota(self, branch: QueueBranch, used: Sequence[float]) -> bool:
        """Whether a queue that uses so much has more than its quota of what is short."""
        quota = branch.quota.tolist()
        return any(used[row] > quota[row] + EPSILON for row in self._short_rows)

    def _breaks_quota(
        self, branch: QueueBranch, unit: EvictionUnit, replaced: Floats | float
    ) -> bool:
        """Whether the eviction would take a queue below its quota of a resource that is short."""
        quota, evicted = branch.quota.tolist(), unit.amounts.tolist()
        used = self._used_with(branch, replaced if unit.whole else 0.0)
        below = [
            row
            for row in self._short_rows
            if evicted[row] > 0 and used[row] - evicted[row] < quota[row] - EPSILON
        ]
        return bool(below) and not self._exceeds_alone(unit, branch, below)

    def _exceeds_alone(self, unit: EvictionUnit, branch: QueueBranch, rows: Sequence[int]) -> bool:
        """Whether the gang of a unit is by itself larger than the quota of each of these resources:
        the queue could keep it only by exceeding its quota."""
        total, quota = unit.occupancy.total.tolist(), branch.quota.tolist()
        return all(total[row] > quota[row] + EPSILON for row in rows)

    def _protected_rows(self, queue: str) -> list[tuple[int, float]]:
        """The resources of which the victim's side uses no more than its quota, and the quota.

        A gang that has some of them may be evicted only if it exceeds the quota by itself.
        """
        rows = self._protected.get(queue)
        if rows is None:
            side = self._victim_side(queue)
            rows = self._protected[queue] = protected_rows(side, self._preemptor.short_of)
        return rows


def protected_rows(side: Iterable[QueueBranch], short: Bools) -> list[tuple[int, float]]:
    """Of the resources that are short: those of which a queue uses no more than its quota, and the
    quota."""
    # Few resources are short: plain numbers are faster here than arrays.
    rows = [row for row, is_short in enumerate(short.tolist()) if is_short]
    protected: list[tuple[int, float]] = []
    for branch in side:
        quota, used = branch.quota.tolist(), branch.used.tolist()
        protected += (
            (row, quota[row])
            for row in rows
            if quota[row] > 0 and used[row] - EPSILON <= quota[row]
        )
    return protected


def unprotected(totals: Floats, protected: Iterable[tuple[int, float]]) -> Bools:
    """Mask of the gangs, given by their amounts, that have nothing of the protected resources, or
    more than the quota by themselves."""
    mask = np.ones(len(totals), np.bool_)
    for row, quota in protected:
        mask &= (totals[:, row] <= 0) | (totals[:, row] > quota)
    return mask
