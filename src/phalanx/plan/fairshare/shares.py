"""What each queue uses, compared with what it deserves.

What a queue deserves is settled once in a pass. What it uses changes with every gang that is placed
or evicted in the pass.
"""

import math
from functools import cached_property, reduce

import numpy as np

from phalanx.plan.fairshare.division import divide
from phalanx.plan.fairshare.limits import QueueLimits
from phalanx.plan.fairshare.queue_tree import QueueBranch, QueueLayout, QueueTree
from phalanx.plan.state.nodes import EPSILON, Bools, Floats, NodeTable


class FairShares:
    """The shares of all queues in one pass."""

    def __init__(self, layout: QueueLayout, table: NodeTable) -> None:
        self.table = table
        #: Rows that queues share. Slots and whole devices only describe how a node is filled.
        self.shared = layout.shared
        self._shared_rows = layout.shared_rows
        self.capacity = table.shared_capacity()
        self.tree = QueueTree(layout)
        self.limits = QueueLimits(self.tree, table)
        self.branches = self.tree.branches
        self.root = self.tree.root
        self.version = 0  #: changes with every change of what a queue uses

    def use(self, queue: str, amounts: Floats) -> None:
        """Add to what the queue uses; negative amounts are freed."""
        self.version += 1
        for branch in self.branches[queue].path():
            branch.used += amounts

    def request(self, queue: str, amounts: Floats) -> None:
        """Add to what the queue requests; negative amounts are withdrawn."""
        self.branches[queue].requested += amounts

    def settle(self) -> None:
        """Divide the cluster: set what every queue deserves."""
        divide(self.tree, self.capacity, self.shared)

    def if_all_request_everything(self) -> "FairShares":
        """The shares that the queues would have if each of them requested the whole cluster."""
        full = FairShares(self.tree.layout, self.table)
        for branch in full.branches.values():
            if not full.tree.below(branch):
                branch.requested += self.capacity
        full.settle()
        return full

    def deserve_at_least(self, queue: str, amounts: Floats) -> None:
        """Let a queue, and every queue above it, deserve at least these amounts.

        The sum of what the queues deserve may then exceed the cluster. A queue with weight 0
        deserves no more than its quota.
        """
        if self.branches[queue].queue.weight:
            for branch in self.branches[queue].path():
                if branch is not self.root:
                    np.maximum(branch.deserved, amounts, out=branch.deserved)

    # One queue

    def usage(self, branch: QueueBranch, need: Floats) -> tuple[float, float]:
        """The part of its share that a queue uses, at most 1; and the ratio of usage to deserved,
        of the resource of which it is largest. 0 of nothing is 0.

        A queue that deserves nothing of a resource in `need` uses its whole share. What a queue
        deserves is at most its demand, so a queue that gets all it wants of a plentiful resource
        uses its whole share of that: only contended resources count, if there are any.
        """
        # Most clusters share few resources: plain numbers are faster here than arrays.
        used, deserved, more = branch.used.tolist(), branch.deserved.tolist(), need.tolist()
        ratio, is_undeserved = 0.0, False
        for row in branch.counted_rows:
            if deserved[row] > EPSILON:
                ratio = max(ratio, used[row] / deserved[row])
            elif used[row] > EPSILON:
                ratio = math.inf
            elif more[row] > 0:
                is_undeserved = True
        return (1.0 if is_undeserved else min(ratio, 1.0)), round(ratio, 9)

    def stays_within_share(self, branch: QueueBranch, need: Floats) -> bool:
        """Whether the queue deserves what it uses and `need` together, of every resource in it."""
        used, deserved, more = branch.used.tolist(), branch.deserved.tolist(), need.tolist()
        for row in self._shared_rows:
            if more[row] > 0 and used[row] + more[row] > deserved[row] + EPSILON:
                return False
        return True

    def stays_within_quota(self, branch: QueueBranch, need: Floats) -> bool:
        """Whether what the queue uses and `need` together are within its quota.

        A resource in `need` that the quota does not name must stay within the share.
        """
        used, deserved, more = branch.used.tolist(), branch.deserved.tolist(), need.tolist()
        quota, has_quota = branch.quota.tolist(), branch.has_quota.tolist()
        names_any = False
        for row in self._shared_rows:
            if more[row] > 0:
                allowed = quota[row] if has_quota[row] else deserved[row]
                if used[row] + more[row] > allowed + EPSILON:
                    return False
                names_any = names_any or has_quota[row]
        return names_any

    def share_could_hold(self, queue: str, need: Floats) -> bool:
        """Whether the queue, and every queue above it, would deserve `need` if it used nothing."""
        more = need.tolist()
        for branch in self.branches[queue].path():
            deserved = branch.deserved.tolist()
            for row in self._shared_rows:
                if more[row] > 0 and more[row] > deserved[row] + EPSILON:
                    return False
        return True

    def exceed_division(self, queue: str, needs: Floats) -> Bools:
        """Mask of the gangs, given by their amounts, that need more than the division gives their
        queue, or a queue above it: without the rule for starving gangs."""
        branches = [branch for branch in self.branches[queue].path() if branch is not self.root]
        least = reduce(np.minimum, [branch.divided for branch in branches])
        rows = self._shared_rows
        exceed: Bools = np.logical_or.reduce(needs[:, rows] > least[rows] + EPSILON, axis=1)
        return exceed

    def has_full_share(self, branch: QueueBranch) -> bool:
        """Whether the queue uses everything that it deserves, and all of its quota."""
        used, entitled = branch.used.tolist(), np.maximum(branch.deserved, branch.quota).tolist()
        return all(used[row] + EPSILON >= entitled[row] for row in self._shared_rows)

    # All queues

    @cached_property
    def is_contended(self) -> bool:
        """Whether more than one queue requests anything."""
        requesting = self.tree.requested.any(axis=1) & self.tree.layout.is_leaf
        return int(requesting.sum()) > 1

    def queues_above_entitlement(self, rows: Bools) -> set[str]:
        """The queues that use more than they deserve, or more than their quota, of any of these
        resources."""
        above = ((self.tree.used > self._least_entitled + EPSILON) & rows).any(axis=1)
        names = list(self.branches)
        return {names[n] for n in np.flatnonzero(above).tolist()}

    @cached_property
    def _least_entitled(self) -> Floats:
        """What each queue deserves or its quota, whichever is less, one row per queue."""
        least: Floats = np.minimum(self.tree.deserved, self.tree.layout.quotas)
        return least

    def dominant_shares(self, amounts: Floats) -> Floats:
        """For each line of amounts: the largest part of the cluster's capacity of one resource."""
        shares: Floats = np.round((amounts / np.maximum(self.capacity, 1)).max(axis=1), 9)
        return shares
