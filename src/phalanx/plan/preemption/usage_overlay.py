"""Usage of the queues without the victims chosen so far. The shares themselves do not change."""

from phalanx.plan.fairshare.queue_tree import QueueBranch
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.preemption.candidates import EvictionUnit
from phalanx.plan.preemption.preemptor import Preemptor
from phalanx.plan.state.nodes import Floats

#: A change of the excess by less than this is not an improvement.
_IMPROVEMENT = 1e-9


class UsageOverlay:
    """Amounts freed by chosen victims, laid over the shares of a pass."""

    def __init__(self, shares: FairShares) -> None:
        self._shares = shares
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
        """Whether queues exceed what they deserve by less in sum, once the victims have stopped
        and the preemptor runs."""
        change = dict(preemptor.amounts)
        for queue, freed in self._freed.items():
            change[queue] = change.get(queue, 0.0) - freed
        return self._shares.excess(change) < self._shares.excess({}) - _IMPROVEMENT
