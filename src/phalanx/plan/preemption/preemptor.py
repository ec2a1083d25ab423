"""The gang, or the group of gangs, for which others may be evicted."""

from collections.abc import Sequence

import numpy as np

from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import PendingGang
from phalanx.plan.placement.amounts import minimum_amounts
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.nodes import Bools, Floats


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
        total = np.asarray(sum(need for _, need in self.needs))
        self.short_of = resources_short(total, capacity, shares.shared)


def resources_short(total: Floats, capacity: FreeCapacity, shared: Bools) -> Bools:
    """The resources of which too little is free in the whole cluster for these amounts.

    If there is enough of each in sum, it is only fragmented: all resources that are needed.
    """
    free, amounts = capacity.free_in_sum().tolist(), total.tolist()
    counts = shared.tolist()
    needed = [row for row, amount in enumerate(amounts) if amount > 0 and counts[row]]
    mask: Bools = np.zeros(len(amounts), np.bool_)
    mask[[row for row in needed if amounts[row] > free[row]] or needed] = True
    return mask
