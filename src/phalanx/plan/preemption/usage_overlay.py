"""Usage of the queues without the victims chosen so far. The shares themselves do not change."""

from functools import cached_property

import numpy as np

from phalanx.plan.fairshare.queue_tree import QueueBranch
from phalanx.plan.fairshare.quota_demand import QuotaDemand
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.preemption.candidates import EvictionUnit
from phalanx.plan.preemption.preemptor import Preemptor
from phalanx.plan.state.nodes import EPSILON, Floats

#: Changes of sums over queues are rounded to so many digits.
_DIGITS = 9


class UsageOverlay:
    """Amounts freed by chosen victims, laid over the shares of a pass."""

    def __init__(self, shares: FairShares, quota_demand: QuotaDemand, preemptor: Preemptor) -> None:
        self._shares = shares
        self._quota_demand = quota_demand
        self._preemptor = preemptor
        #: By queue: amounts freed in it and in the queues below it.
        self._freed: dict[str, Floats] = {}
        #: By queue: the answers of `amounts`.
        self._amounts: dict[str, list[float]] = {}

    def evict(self, unit: EvictionUnit) -> None:
        """Count the unit as a victim."""
        self._add(unit.gang.queue, unit.amounts)

    def restore(self, unit: EvictionUnit) -> None:
        """Count the unit as running again."""
        self._add(unit.gang.queue, -unit.amounts)

    def _add(self, queue: str, amounts: Floats) -> None:
        """Add to what is freed in the queue and in every queue above it."""
        for branch in self._shares.branches[queue].path():
            name = branch.queue.name
            self._freed[name] = self._freed.get(name, 0.0) + amounts
            self._amounts.pop(name, None)

    def used(self, branch: QueueBranch) -> Floats:
        """What a queue uses without the victims."""
        return branch.used - self._freed.get(branch.queue.name, 0.0)

    def amounts(self, branch: QueueBranch) -> list[float]:
        """The same, by row. Few resources are compared: plain numbers are faster than arrays."""
        name = branch.queue.name
        amounts = self._amounts.get(name)
        if amounts is None:
            amounts = self._amounts[name] = self.used(branch).tolist()
        return amounts

    def is_fairer(self) -> bool:
        """Whether the queues get closer to what they are entitled to, once the victims have stopped
        and the preemptor runs.

        Two sums over all queues without children are compared: what they lack of the demand of
        their quotas, and what they use above what they deserve. The first one must fall; or else it
        must not rise, and the second one must fall.

        This is why reclaim ends. Victims are pending again, so neither the demand of a queue, nor
        what it deserves, nor its demand of its quota change with an eviction or a start. The two
        sums are therefore functions of what runs. Every reclaim makes the pair of them smaller, in
        lexicographic order. A finite number of gangs can run in a finite number of ways, so no
        sequence of reclaims goes on for ever, and none comes back to where it began.

        There is one exception: a queue deserves at least its first gang if that is starving, and no
        longer once it has started. So the sums may change with that start. But there is one
        starving gang less then, and victims are not starving: they become pending now. The number
        of starving gangs precedes the two sums in the lexicographic order. That the queues may
        deserve more than the cluster together makes no difference to the argument.
        """
        unmet, excess = self._changes()
        return unmet < 0 or (unmet == 0 and excess < 0)

    def helps(self) -> bool:
        """Whether either of the two sums falls. Victims that are not needed may still be chosen,
        and without them the other one may fall or stay as it is."""
        unmet, excess = self._changes()
        return unmet < 0 or excess < 0

    def _changes(self) -> tuple[float, float]:
        """By how much the sums change: what queues lack of the demand of their quotas, and what
        they use above what they deserve."""
        leaves = self._leaves
        after = leaves.used + leaves.need
        for name, freed in self._freed.items():
            row = leaves.rows.get(name)
            if row is not None:
                after[row] -= freed
        unmet = leaves.parts_above(leaves.demand, after) - leaves.unmet
        excess = leaves.parts_above(after, leaves.deserved) - leaves.excess
        return round(unmet, _DIGITS), round(excess, _DIGITS)

    @cached_property
    def _leaves(self) -> "_LeafQueues":
        return _LeafQueues(self._shares, self._quota_demand, self._preemptor)


class _LeafQueues:
    """The queues without children, one row for each, as they are before any victim is chosen."""

    def __init__(self, shares: FairShares, quota_demand: QuotaDemand, preemptor: Preemptor) -> None:
        leaves = [branch for branch in shares.branches.values() if not shares.tree.below(branch)]
        names = [branch.queue.name for branch in leaves]
        nothing = np.zeros(len(shares.capacity))
        self.rows = {name: row for row, name in enumerate(names)}
        self.used = np.array([branch.used for branch in leaves])
        self.need = np.array([preemptor.amounts.get(name, nothing) for name in names])
        self.deserved = np.array([branch.deserved for branch in leaves])
        self.demand = np.array([quota_demand.of(branch) for branch in leaves])
        counts = shares.shared & (shares.capacity > 0)
        self._parts = np.where(counts, 1 / np.maximum(shares.capacity, 1), 0.0)
        self.unmet = self.parts_above(self.demand, self.used)
        self.excess = self.parts_above(self.used, self.deserved)

    def parts_above(self, amounts: Floats, others: Floats) -> float:
        """By how much amounts exceed others, in sum, as parts of the cluster's capacity."""
        above = amounts - others
        return float((above * (above > EPSILON)).sum(axis=0) @ self._parts)
