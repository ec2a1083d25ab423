"""Limits of the queues: which of them binds, and how much they leave."""

from collections.abc import Iterable, Mapping

import numpy as np

from phalanx.plan.fairshare.queue_tree import QueueTree
from phalanx.plan.state.nodes import EPSILON, Floats, NodeTable


class QueueLimits:
    """A queue must stay within its own limit and within the limit of every queue above it."""

    def __init__(self, tree: QueueTree, table: NodeTable) -> None:
        self._tree = tree
        self._table = table
        #: Queues that have a limit, or are below a queue that has one.
        self.limited = tree.layout.limited

    def binding(
        self, needs: Iterable[tuple[str, Floats]], used: Mapping[str, Floats] | None = None
    ) -> tuple[str, str] | None:
        """The first queue that these additional amounts would take above its limit, and the
        resource; None if all limits hold. `used`: by queue, instead of what it uses now."""
        more: dict[str, Floats] = {}
        for queue, need in needs:
            for branch in self._tree.branches[queue].path():
                name = branch.queue.name
                more[name] = more.get(name, 0.0) + need
                now = branch.used if used is None else used[name]
                above = (now + more[name] > branch.limit + EPSILON) & (need > 0)
                if above.any():
                    return name, list(self._table.rows)[int(np.flatnonzero(above)[0])]
        return None

    def headroom(self, queue: str) -> Floats:
        """Amounts that the queue may use besides what it uses, by row."""
        path = self._tree.branches[queue].path()
        headroom: Floats = np.min([branch.limit - branch.used for branch in path], axis=0)
        return headroom

    def remaining(self) -> dict[str, list[tuple[str, str, float]]]:
        """By limited queue: the queues whose limits bind it, the resource, and what is left."""
        resources = list(self._table.rows)
        return {
            name: [
                (branch.queue.name, resources[row], float(branch.limit[row] - branch.used[row]))
                for branch in self._tree.branches[name].path()
                for row in np.flatnonzero(np.isfinite(branch.limit)).tolist()
            ]
            for name in self.limited
        }
