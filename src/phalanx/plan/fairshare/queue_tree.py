"""The tree of queues, with the amounts of each queue by row of the node table."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from phalanx.core.model import Queue
from phalanx.plan.state.nodes import Bools, Floats, NodeTable


class QueueBranch:
    """A queue together with the queues below it."""

    def __init__(self, queue: Queue, rows: int) -> None:
        self.queue = queue
        self.parent: QueueBranch | None = None
        self.children: list[QueueBranch] = []
        self.used: Floats = np.zeros(rows)
        #: Amounts of the pending gangs that could start, and of tasks that running gangs could add.
        self.requested: Floats = np.zeros(rows)
        self.limit: Floats = np.full(rows, np.inf)
        self.quota: Floats = np.zeros(rows)
        #: The rows that the quota names, also with 0.
        self.has_quota: Bools = np.zeros(rows, np.bool_)
        self.deserved: Floats = np.zeros(rows)
        #: The demand when what it deserves was settled.
        self.settled_demand: Floats = np.zeros(rows)

    def path(self) -> "Iterator[QueueBranch]":
        """The branch itself and every branch above it, up to the root."""
        branch: QueueBranch | None = self
        while branch is not None:
            yield branch
            branch = branch.parent

    @property
    def demand(self) -> Floats:
        """What the queue uses and requests, at most its limit."""
        return np.minimum(self.used + self.requested, self.limit)


class QueueTree:
    """All queues under one root, which has no name and no limit."""

    def __init__(self, queues: Iterable[Queue], table: NodeTable) -> None:
        self.branches = {queue.name: _branch(queue, table) for queue in queues}
        self.root = QueueBranch(Queue(name=""), len(table.rows))
        for branch in self.branches.values():
            above = self.branches.get(branch.queue.parent or "")
            branch.parent = self.root if above is None else above
            branch.parent.children.append(branch)
        self._sides: dict[tuple[str, str], tuple[list[QueueBranch], list[QueueBranch]]] = {}

    def sides(self, first: str, second: str) -> tuple[list[QueueBranch], list[QueueBranch]]:
        """The branches from each of two queues up to, but without, their lowest common ancestor."""
        sides = self._sides.get((first, second))
        if sides is None:
            one, other = list(self.branches[first].path()), list(self.branches[second].path())
            common = {id(branch) for branch in one} & {id(branch) for branch in other}
            sides = self._sides[first, second] = (
                [branch for branch in one if id(branch) not in common],
                [branch for branch in other if id(branch) not in common],
            )
        return sides

    def sum_up(self, amounts: Iterable[tuple[str, Floats]]) -> dict[str, Floats]:
        """By queue: the sum of amounts given for it and for the queues below it.

        Queues without any are left out.
        """
        sums: dict[str, Floats] = {}
        for queue, amount in amounts:
            for branch in self.branches[queue].path():
                name = branch.queue.name
                sums[name] = sums.get(name, 0.0) + amount
        return sums


def _branch(queue: Queue, table: NodeTable) -> QueueBranch:
    """The branch of one queue, with its limit and quota by row."""
    branch = QueueBranch(queue, len(table.rows))
    for resource, amount in queue.limit.items():
        branch.limit[table.rows[resource]] = amount
    for resource, amount in queue.quota.items():
        branch.quota[table.rows[resource]] = amount
        branch.has_quota[table.rows[resource]] = True
    return branch


def with_unlisted(queues: Mapping[str, Queue], names: Iterable[str]) -> dict[str, Queue]:
    """The queues, and one with default settings for every name that is not listed."""
    listed = dict(queues)
    for name in names:
        listed.setdefault(name, Queue(name=name))
    return listed
