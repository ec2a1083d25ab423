"""Gangs that are not preemptible, in queues that keep them within their quota.

What cannot be reclaimed is not borrowed: the queue setting `non_preemptible_within_quota`.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from phalanx.plan.fairshare.queue_tree import QueueBranch
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import PendingGang, RunningGang
from phalanx.plan.placement.amounts import gathered_amounts, minimum_amounts
from phalanx.plan.state.nodes import EPSILON, Floats
from phalanx.plan.state.planner_state import Moment


class NonPreemptibleUse:
    """What gangs that are not preemptible use of the queues with the setting.

    Resources that the quota of a queue does not name are free for all, as long as it names any.
    """

    def __init__(self, shares: FairShares, state: Moment) -> None:
        """Nominated and gathered places count as used. The shares have been settled."""
        self._shares = shares
        bound = [b for b in shares.branches.values() if b.queue.non_preemptible_within_quota]
        self._used: dict[str, Floats] = {b.queue.name: np.zeros(len(b.quota)) for b in bound}
        #: The same of running gangs that have no known end.
        self._lasting = {name: used.copy() for name, used in self._used.items()}
        if not bound:
            return
        for occupancy in state.running.by_job.values():
            self.use(occupancy.gang, occupancy.total)
            if state.running.is_lasting(occupancy):
                for branch in self._bound(occupancy.gang):
                    self._lasting[branch.queue.name] += occupancy.total
        for gang in state.pending.nominated.values():
            self.use(gang, minimum_amounts(gang, shares.table))
        for gang in state.pending.gathering.values():
            self.use(gang, gathered_amounts(gang, shares.table))

    def use(self, gang: PendingGang | RunningGang, amounts: Floats) -> None:
        """Count what a gang uses, if it is not preemptible."""
        for branch in self._bound(gang):
            self._used[branch.queue.name] += amounts

    def binding(
        self, needs: Iterable[tuple[PendingGang, Floats]], *, in_the_end: bool = False
    ) -> tuple[str, str] | None:
        """The first queue whose quota gangs that are not preemptible would exceed with these
        amounts, and the resource; None if there is none. `in_the_end`: once all work with a known
        end has ended."""
        used = self._lasting if in_the_end else self._used
        more: dict[str, Floats] = {}
        for gang, need in needs:
            for branch in self._bound(gang):
                name = branch.queue.name
                more[name] = more.get(name, 0.0) + need
                exceeds = (more[name] > self._left(branch, used) + EPSILON) & (need > 0)
                if exceeds.any():
                    resources = list(self._shares.table.rows)
                    return name, resources[int(np.flatnonzero(exceeds)[0])]
        return None

    def headroom(self, gang: PendingGang) -> Floats:
        """Amounts that the quotas leave for more tasks of a gang, by row."""
        unlimited = np.full(len(self._shares.capacity), np.inf)
        left = (self._left(branch, self._used) for branch in self._bound(gang))
        return np.min([unlimited, *left], axis=0)  # type: ignore[no-any-return]

    def _bound(self, gang: PendingGang | RunningGang) -> list[QueueBranch]:
        """The queues with the setting, from the gang's queue up, if the gang is not preemptible."""
        if gang.preemptible or not self._used:
            return []
        path = self._shares.branches[gang.queue].path()
        return [branch for branch in path if branch.queue.name in self._used]

    def _left(self, branch: QueueBranch, used: Mapping[str, Floats]) -> Floats:
        bound = self._shares.tree.layout.quota_bound(branch.queue.name)
        left: Floats = bound - used[branch.queue.name]
        return left
