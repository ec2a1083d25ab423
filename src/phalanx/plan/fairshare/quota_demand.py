"""What each queue demands of its own quota."""

from functools import cached_property

import numpy as np

from phalanx.plan.fairshare.queue_tree import QueueBranch
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import PendingGang
from phalanx.plan.pending import PendingGangs
from phalanx.plan.placement.amounts import minimum_amounts, requested_amounts
from phalanx.plan.state.nodes import EPSILON, Floats
from phalanx.plan.state.running import RunningGangs


class QuotaDemand:
    """The demand of each queue that its quota could meet, at most the quota.

    A gang that exceeds the quota of its queue by itself can only run on borrowed capacity, so it is
    no demand of the quota. Evicting a gang or starting one does not change the result.
    """

    def __init__(self, shares: FairShares, running: RunningGangs, pending: PendingGangs) -> None:
        self._shares = shares
        self._running = running
        self._pending = pending
        self._by_queue: dict[str, Floats] = {}

    def of(self, branch: QueueBranch) -> Floats:
        """The demand of a queue. Queues with children, whose gangs are demand of the children, and
        queues without a quota have none."""
        name = branch.queue.name
        demand = self._by_queue.get(name)
        if demand is None:
            demand = np.zeros(len(branch.quota))
            if branch.has_quota.any() and not branch.children:
                demand = np.minimum(self._of_gangs_within(branch), branch.settled_demand)
            demand = self._by_queue[name] = np.minimum(demand, branch.quota)
        return demand

    def _of_gangs_within(self, branch: QueueBranch) -> Floats:
        """Amounts of all gangs of a queue that do not exceed its quota by themselves."""
        named, quota, table = branch.has_quota, branch.quota + EPSILON, self._shares.table
        name, amounts = branch.queue.name, np.zeros(len(quota))
        for total in self._running_totals.get(name, ()):
            if (total <= quota)[named].all():
                amounts += total
        for gang, count in self._pending_gangs.get(name, ()):
            if (minimum_amounts(gang, table) <= quota)[named].all():
                amounts += requested_amounts(gang, table) * count
        return amounts

    @cached_property
    def _running_totals(self) -> dict[str, list[Floats]]:
        """By queue: the amounts of each running gang."""
        totals: dict[str, list[Floats]] = {}
        for occupancy in self._running.by_job.values():
            totals.setdefault(occupancy.gang.queue, []).append(occupancy.total)
        return totals

    @cached_property
    def _pending_gangs(self) -> dict[str, list[tuple[PendingGang, int]]]:
        """By queue: pending gangs, and how many of each there are."""
        gangs: dict[str, list[tuple[PendingGang, int]]] = {}
        for bucket in self._pending.buckets.values():
            gangs.setdefault(bucket.first.queue, []).append((bucket.first, len(bucket.entries)))
        for gang in self._pending.grouped.values():
            gangs.setdefault(gang.queue, []).append((gang, 1))
        return gangs
