"""What each queue demands of its own quota."""

from collections.abc import Iterator
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
            if branch.has_quota.any() and not self._shares.tree.below(branch):
                demand = np.minimum(self._of_gangs_within(branch), branch.settled_demand)
            demand = self._by_queue[name] = np.minimum(demand, branch.quota)
        return demand

    def _of_gangs_within(self, branch: QueueBranch) -> Floats:
        """Amounts of the gangs of a queue that do not exceed its quota by themselves: of all of
        them, or of the first that use up the quota together."""
        named, quota = branch.has_quota, branch.quota + EPSILON
        amounts = np.zeros(len(quota))
        for minimums, requests in self._gangs(branch.queue.name):
            amounts += requests[(minimums <= quota)[:, named].all(axis=1)].sum(axis=0)
            if bool((amounts >= branch.quota)[named].all()):
                break
        return amounts

    def _gangs(self, queue: str) -> Iterator[tuple[Floats, Floats]]:
        """The minimums and the requests of gangs of a queue, one row for each, in several parts:
        of the running gangs, of those that wait for a group, and of the buckets."""
        table, running = self._shares.table, self._running_totals.get(queue)
        if running:
            totals = np.array(running)
            yield totals, totals
        for gang in self._pending.grouped.values():
            if gang.queue == queue:
                yield minimum_amounts(gang, table)[None], requested_amounts(gang, table)[None]
        for bucket in self._buckets.get(queue, ()):
            minimum, requested = bucket.amounts(table)
            yield minimum[None], requested[None] * len(bucket.entries)

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
