"""Usage of the queues without the victims chosen so far. The shares themselves do not change."""

import numpy as np

from phalanx.plan.fairshare.queue_tree import QueueBranch
from phalanx.plan.fairshare.quota_demand import QuotaDemand
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.preemption.candidates import EvictionUnit
from phalanx.plan.preemption.preemptor import Preemptor
from phalanx.plan.state.nodes import Floats

#: Changes of sums over queues are rounded to so many digits.
_DIGITS = 9


class UsageOverlay:
    """Amounts freed by chosen victims, laid over the shares of a pass."""

    def __init__(self, shares: FairShares, quota_demand: QuotaDemand) -> None:
        self._shares = shares
        self._quota_demand = quota_demand
        #: By queue: amounts freed in it and in the queues below it.
        self._freed: dict[str, Floats] = {}

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

    def used(self, branch: QueueBranch) -> Floats:
        """What a queue uses without the victims."""
        return branch.used - self._freed.get(branch.queue.name, 0.0)

    def is_fairer_with(self, preemptor: Preemptor) -> bool:
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
        """
        unmet, excess = self._changes(preemptor)
        return unmet < 0 or (unmet == 0 and excess < 0)

    def helps(self, preemptor: Preemptor) -> bool:
        """Whether either of the two sums falls. Victims that are not needed may still be chosen,
        and without them the other one may fall or stay as it is."""
        unmet, excess = self._changes(preemptor)
        return unmet < 0 or excess < 0

    def _changes(self, preemptor: Preemptor) -> tuple[float, float]:
        """By how much the sums change: what queues lack of the demand of their quotas, and what
        they use above what they deserve."""
        unmet = excess = 0.0
        for name in {*self._freed, *preemptor.amounts}:
            branch = self._shares.branches.get(name)
            if branch is None or branch.children:
                continue
            need, freed = preemptor.amounts.get(name, 0.0), self._freed.get(name, 0.0)
            before, after = branch.used, branch.used - freed + need
            demand = self._quota_demand.of(branch)
            unmet += self._parts_above(demand, after) - self._parts_above(demand, before)
            excess += self._parts_above(after, branch.deserved)
            excess -= self._parts_above(before, branch.deserved)
        return round(unmet, _DIGITS), round(excess, _DIGITS)

    def _parts_above(self, amounts: Floats, others: Floats) -> float:
        """By how much amounts exceed others, as parts of the cluster's capacity."""
        return self._shares.as_parts(np.maximum(amounts - others, 0.0))
