"""Reclaim between queues: from which queues, and which of their gangs, a preemptor may take.

A queue takes back what it deserves from queues that use more than they deserve. The sum of what
queues use above what they deserve must fall, so that nothing is reclaimed back and forth.
"""

from collections.abc import Iterable, Mapping

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

    # Before any victim is chosen

    def open_queues(self) -> set[str]:
        """The queues that the preemptor may reclaim from."""
        return {
            queue
            for queue in self._shares.queues_above_share(self._preemptor.short_of)
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
                _, victim_side = self._shares.tree.sides(queue, gang.queue)
                if all(self._exceeds(b, used.get(b.queue.name, 0.0)) for b in victim_side):
                    return self.stays_within_share(gang.queue)
        return False

    def is_protected(self, occupancy: Occupancy) -> bool:
        """Whether the quota of its queue protects the gang."""
        total = occupancy.total
        protected = self._protected_rows(occupancy.gang.queue)
        return any(0 < total[row] <= quota for row, quota in protected)

    def unprotected(self, queue: str, totals: Floats) -> Bools:
        """Mask of the gangs of a queue, given by their amounts, that its quota does not protect."""
        mask = np.ones(len(totals), np.bool_)
        for row, quota in self._protected_rows(queue):
            mask &= (totals[:, row] <= 0) | (totals[:, row] > quota)
        return mask

    # While victims are chosen

    def may_add(self, unit: EvictionUnit, same_gang: Iterable[EvictionUnit]) -> bool:
        """Whether the unit may be evicted besides those chosen so far.

        Every queue on the victim's side must exceed what it deserves and must keep its quota.
        `same_gang` are chosen units of the same gang: the unit replaces them, so what they free
        does not count against it.
        """
        replaced = sum((other.amounts for other in same_gang), np.zeros(len(self._shares.shared)))
        _, victim_side = self._shares.tree.sides(self._queues[0], unit.gang.queue)
        return all(
            self._exceeds(branch, self._usage.used(branch) + replaced)
            and not self._breaks_quota(branch, unit, replaced)
            for branch in victim_side
        )

    def stays_within_share(self, queue: str) -> bool:
        """Whether every queue on the preemptor's side, up to where it meets the given queue,
        deserves what it would use of each resource that the preemptor takes."""
        shares = self._shares
        for own in self._queues:
            for branch in shares.tree.sides(own, queue)[0]:
                need = self._preemptor.amounts[branch.queue.name]
                takes = (need > 0) & shares.shared
                after = self._usage.used(branch) + need
                if bool((after > branch.deserved + EPSILON)[takes].any()):
                    return False
        return True

    def stays_within_quota(self, queue: str) -> bool:
        """Whether the preemptor's side, below where it meets the given queue, keeps its quota."""
        for own, need in self._preemptor.needs:
            side, _ = self._shares.tree.sides(own, queue)
            takes = (need > 0) & self._shares.shared
            if not side or bool((side[-1].used + need > side[-1].quota + EPSILON)[takes].any()):
                return False
        return True

    # Rules

    def _is_open(self, queue: str, victim_queue: str) -> bool:
        """Whether one queue may reclaim from another, all of whose side exceeds its share."""
        is_open = self._open.get((queue, victim_queue))
        if is_open is None:
            _, victim_side = self._shares.tree.sides(queue, victim_queue)
            is_open = self._open[queue, victim_queue] = self._policies_allow(
                queue, victim_queue
            ) and all(self._exceeds(branch, self._usage.used(branch)) for branch in victim_side)
        return is_open

    def _policies_allow(self, queue: str, victim_queue: str) -> bool:
        """Whether the settings of both queues permit reclaim. Queues above each other never do."""
        policy = self._shares.branches[queue].queue.reclaim_from_siblings
        if queue == victim_queue or policy is ReclaimFrom.NEVER:
            return False
        side, victim_side = self._shares.tree.sides(queue, victim_queue)
        return bool(side) and all(branch.queue.reclaimable for branch in victim_side)

    def _priority_allows(self, queue: str, priority: int) -> bool:
        """Whether the queue reclaims from tasks of this priority."""
        policy = self._shares.branches[queue].queue.reclaim_from_siblings
        return policy is not ReclaimFrom.LOWER_PRIORITY or priority < self._preemptor.priority

    def _exceeds(self, branch: QueueBranch, used: Floats | float) -> bool:
        """Whether a queue that uses so much has more than it deserves of what is short."""
        above = used > branch.deserved + EPSILON
        return bool((above & self._preemptor.short_of).any())

    def _breaks_quota(self, branch: QueueBranch, unit: EvictionUnit, replaced: Floats) -> bool:
        """Whether the eviction would take a queue below its quota of a resource that is short.

        A gang that is larger than the quota by itself may be evicted all the same: the queue could
        keep it only by exceeding its quota.
        """
        evicted = unit.amounts
        counts = (branch.quota > 0) & self._preemptor.short_of & (evicted > 0)
        left = self._usage.used(branch) - evicted + (replaced if unit.whole else 0.0)
        below = left < branch.quota - EPSILON
        fits_quota = unit.occupancy.total <= branch.quota + EPSILON
        return bool((counts & below & fits_quota).any())

    def _protected_rows(self, queue: str) -> list[tuple[int, float]]:
        """The resources of which the victim's side uses no more than its quota, and the quota.

        A gang that has some of them may be evicted only if it exceeds the quota by itself.
        """
        rows = self._protected.get(queue)
        if rows is None:
            _, victim_side = self._shares.tree.sides(self._queues[0], queue)
            rows = self._protected[queue] = [
                (row, float(branch.quota[row]))
                for branch in victim_side
                for row in np.flatnonzero(self._preemptor.short_of & (branch.quota > 0)).tolist()
                if branch.used[row] - EPSILON <= branch.quota[row]
            ]
        return rows
