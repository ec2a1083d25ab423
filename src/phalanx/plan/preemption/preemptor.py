"""The gang, or the group of gangs, for which others may be evicted."""

from collections.abc import Sequence

import numpy as np

from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import PendingGang
from phalanx.plan.placement.amounts import minimum_amounts
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.nodes import Bools


class Preemptor:
    """Gangs that start together, with the rights of the least important and newest of them."""

    def __init__(
        self, gangs: Sequence[PendingGang], shares: FairShares, capacity: FreeCapacity
    ) -> None:
        self.gangs = gangs
        self.priority = min(gang.priority for gang in gangs)
        self.created_at = max(gang.created_at for gang in gangs)
        self.size = sum(gang.size for gang in gangs)
        #: Each gang's queue and the amounts of its minimum.
        self.needs = [(gang.queue, minimum_amounts(gang, shares.table)) for gang in gangs]
        #: By queue: the amounts that the gangs take of it and of the queues below it.
        self.amounts = shares.tree.sum_up(self.needs)
        #: The resources that have to be freed.
        self.short_of = self._short_of(shares, capacity)

    def _short_of(self, shares: FairShares, capacity: FreeCapacity) -> Bools:
        """The resources of which too little is free in the whole cluster.

        If there is enough of each in sum, it is only fragmented: all resources that are needed.
        """
        total = np.asarray(sum(need for _, need in self.needs))
        free = np.maximum(capacity.free[:, capacity.table.open], 0).sum(axis=1)
        needed = (total > 0) & shares.shared
        short: Bools = needed & (total > free)
        return short if short.any() else needed
