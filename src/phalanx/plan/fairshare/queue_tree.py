"""The tree of queues, with the amounts of each queue by row of the node table."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from phalanx.core.model import Queue
from phalanx.core.queues import stopped_by
from phalanx.plan.state.nodes import Bools, Floats, NodeTable


class QueueLayout:
    """What does not change from pass to pass: the queues, who is above whom, limits and quotas.

    Its arrays have one line for each queue, in the order of the queues.
    """

    def __init__(self, queues: Mapping[str, Queue], table: NodeTable) -> None:
        shape = (len(queues), len(table.rows))
        self.queues = tuple(queues.values())
        self.limits: Floats = np.full(shape, np.inf)
        self.quotas: Floats = np.zeros(shape)
        self.has_quotas: Bools = np.zeros(shape, np.bool_)
        numbers = {queue.name: number for number, queue in enumerate(self.queues)}
        for number, queue in enumerate(self.queues):
            for resource, amount in queue.limit.items():
                self.limits[number, table.rows[resource]] = amount
            for resource, amount in queue.quota.items():
                self.quotas[number, table.rows[resource]] = amount
                self.has_quotas[number, table.rows[resource]] = True
        #: The number of the queue above each one; None: the root.
        self.above = [numbers.get(queue.parent or "") for queue in self.queues]
        #: By queue that is stopped, or below a stopped one: the stopped queue.
        self.stopped_by = {
            name: by for name in queues if (by := stopped_by(queues, name)) is not None
        }
        self._add_up_quotas()
        #: What the queues deserved last, and of what: see `divide`.
        self.last_division: tuple[tuple[bytes, ...], list[Floats]] | None = None

    def _add_up_quotas(self) -> None:
        """Give a queue without a quota of its own the sum of the quotas of the queues below it."""
        below: dict[int | None, list[int]] = {}
        for number, above in enumerate(self.above):
            below.setdefault(above, []).append(number)

        def add_up(number: int) -> None:
            for child in below.get(number, ()):
                add_up(child)
                if not self.queues[number].quota:
                    self.quotas[number] += self.quotas[child]
                    self.has_quotas[number] |= self.has_quotas[child]

        for number in below.get(None, ()):
            add_up(number)


class QueueBranch:
    """A queue together with the queues below it."""

    __slots__ = (
        "children",
        "deserved",
        "has_quota",
        "limit",
        "parent",
        "queue",
        "quota",
        "requested",
        "settled_demand",
        "used",
    )

    def __init__(
        self, queue: Queue, used: Floats, requested: Floats, limit: Floats, quota: Floats
    ) -> None:
        self.queue = queue
        self.parent: QueueBranch | None = None
        self.children: list[QueueBranch] = []
        self.used = used
        #: Amounts of the pending gangs that could start, and of tasks that running gangs could add.
        self.requested = requested
        self.limit = limit
        self.quota = quota
        #: The rows that the quota names, also with 0.
        self.has_quota: Bools = np.zeros(len(used), np.bool_)
        self.deserved: Floats = np.zeros(len(used))
        #: The demand when what it deserves was settled.
        self.settled_demand: Floats = self.deserved

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

    def __init__(self, layout: QueueLayout) -> None:
        self.layout = layout
        #: What each queue uses and requests, one line for each.
        self.used: Floats = np.zeros(layout.limits.shape)
        self.requested: Floats = np.zeros(layout.limits.shape)
        lines = zip(
            layout.queues, self.used, self.requested, layout.limits, layout.quotas, strict=True
        )
        self.branches = {line[0].name: QueueBranch(*line) for line in lines}
        nothing = np.zeros((4, layout.limits.shape[1]))
        self.root = QueueBranch(Queue(name=""), *nothing)
        self.root.limit = np.full(len(nothing[0]), np.inf)
        branches = list(self.branches.values())
        for branch, above, has_quota in zip(branches, layout.above, layout.has_quotas, strict=True):
            branch.has_quota = has_quota
            branch.parent = self.root if above is None else branches[above]
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


def with_unlisted(queues: Mapping[str, Queue], names: Iterable[str]) -> dict[str, Queue]:
    """The queues, and one with default settings for every name that is not listed."""
    listed = dict(queues)
    for name in names:
        listed.setdefault(name, Queue(name=name))
    return listed
