"""What each queue demands of its own quota."""

from functools import cached_property

import numpy as np

from phalanx.plan.fairshare.queue_tree import QueueBranch
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.pending import Bucket, PendingGangs
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
        running = self._running_totals.get(name)
        if running:
            totals = np.array(running)
            amounts += totals[(totals <= quota)[:, named].all(axis=1)].sum(axis=0)
        buckets = self._buckets.get(name, [])
        gangs = [(*bucket.amounts(table), len(bucket.entries)) for bucket in buckets]
        for gang in self._pending.grouped.values():
            if gang.queue == name:
                gangs.append((minimum_amounts(gang, table), requested_amounts(gang, table), 1))
        if gangs:
            minimums, requests, counts = map(np.array, zip(*gangs, strict=True))
            is_within = (minimums <= quota)[:, named].all(axis=1)
            amounts += (counts * is_within) @ requests
        return amounts

    @cached_property
    def _running_totals(self) -> dict[str, list[Floats]]:
        """By queue: the amounts of each running gang."""
        totals: dict[str, list[Floats]] = {}
        for occupancy in self._running.by_job.values():
            totals.setdefault(occupancy.gang.queue, []).append(occupancy.total)
        return totals

    @cached_property
    def _buckets(self) -> dict[str, list[Bucket]]:
        """By queue: the buckets of its pending gangs."""
        buckets: dict[str, list[Bucket]] = {}
        for bucket in self._pending.buckets.values():
            buckets.setdefault(bucket.first.queue, []).append(bucket)
        return buckets
