"""The tree of queues, with the amounts of each queue by row of the node table."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from phalanx.core.model import Queue
from phalanx.core.queues import quotas, stopped_by
from phalanx.core.reasons import QueueLimit, QueueQuota
from phalanx.plan.model import PendingGang
from phalanx.plan.placement.amounts import amounts_by_row
from phalanx.plan.state.nodes import EPSILON, SLOTS, WHOLE, Bools, Floats, NodeTable

_ROOT = Queue(name="")
#: Of a branch that is not in a tree yet.
_NO_ROWS: Bools = np.zeros(0, np.bool_)
_NOTHING: Floats = np.zeros(0)


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
        self._numbers = numbers = {queue.name: number for number, queue in enumerate(self.queues)}
        granted = quotas(queues)
        for number, queue in enumerate(self.queues):
            for resource, amount in queue.limit.items():
                self.limits[number, table.rows[resource]] = amount
            for resource, amount in granted[queue.name].items():
                self.quotas[number, table.rows[resource]] = amount
                self.has_quotas[number, table.rows[resource]] = True
        #: The number of the queue above each one; None: the root.
        self.above = [numbers.get(queue.parent or "") for queue in self.queues]
        #: By queue that is stopped, or below a stopped one: the stopped queue.
        self.stopped_by = {
            name: by for name in queues if (by := stopped_by(queues, name)) is not None
        }
        parents = {number for number in self.above if number is not None}
        #: Mask of the queues that have no queue below them.
        self.is_leaf: Bools = np.array([n not in parents for n in numbers.values()], np.bool_)
        #: Queues that have a limit, or are below a queue that has one.
        self.limited = {queue.name for n, queue in enumerate(self.queues) if self._is_limited(n)}
        #: Mask of the rows that queues share, and their numbers.
        self.shared: Bools = np.array([n not in (SLOTS, WHOLE) for n in table.rows], np.bool_)
        self.shared_rows: list[int] = np.flatnonzero(self.shared).tolist()
        self._amounts: dict[tuple[str, str], tuple[Mapping[str, int], Floats]] = {}
        self.weights: Floats = np.array([queue.weight for queue in self.queues], float)
        #: The numbers of the queues below each queue, and below the root (None). A queue comes
        #: after the one above it.
        self.below = {parent: np.array(children) for parent, children in self._below()}
        #: The inputs of the last division, and what each queue got by it: see `divide`.
        self.last_division: tuple[tuple[bytes, ...], Floats, list[list[int]]] | None = None

    def _is_limited(self, number: int | None) -> bool:
        if number is None:
            return False
        return bool(self.queues[number].limit) or self._is_limited(self.above[number])

    def exceeded_by(
        self, gang: PendingGang, need: Floats, resources: Sequence[str]
    ) -> QueueLimit | QueueQuota | None:
        """The limit, or the quota for gangs that are not preemptible, that a gang which needs so
        much exceeds by itself; None if its queues could hold it. `resources` are those of the
        rows."""
        number: int | None = self._numbers[gang.queue]
        while number is not None:
            queue = self.queues[number]
            if (row := _first_above(need, self.limits[number])) is not None:
                limit = int(self.limits[number, row])
                return QueueLimit(queue.name, resources[row], int(need[row]), limit)
            if queue.non_preemptible_within_quota and not gang.preemptible:
                row = _first_above(need, self.quota_bound(queue.name))
                if row is not None:
                    quota = int(self.quotas[number, row])
                    return QueueQuota(queue.name, resources[row], int(need[row]), quota)
            number = self.above[number]
        return None

    def quota_bound(self, queue: str) -> Floats:
        """What gangs that are not preemptible may use of a queue that keeps them within its quota.
        Resources that the quota does not name are free for all, as long as it names any."""
        number = self._numbers[queue]
        has_quota = self.has_quotas[number]
        binds = has_quota if has_quota.any() else ~has_quota
        bound: Floats = np.where(binds & self.shared, self.quotas[number], np.inf)
        return bound

    def amounts(
        self, kind: str, queue: str, resources: Mapping[str, int], table: NodeTable
    ) -> Floats:
        """Amounts of a queue by row, of one kind. Computed anew only when the mapping, which is not
        changed, has been replaced."""
        known = self._amounts.get((kind, queue))
        if known is None or known[0] is not resources:
            known = self._amounts[kind, queue] = (resources, amounts_by_row(resources, table))
        return known[1]

    def _below(self) -> Iterator[tuple[int | None, list[int]]]:
        """Every queue that has queues below it, from the root down, with those."""
        below: dict[int | None, list[int]] = {}
        for number, above in enumerate(self.above):
            below.setdefault(above, []).append(number)
        parents: list[int | None] = [None]
        for parent in parents:
            children = below.get(parent, [])
            parents += children
            if children:
                yield parent, children


def _first_above(need: Floats, bound: Floats) -> int | None:
    """The first row of which more is needed than a bound allows."""
    above = np.flatnonzero(need > bound + EPSILON)
    return int(above[0]) if len(above) else None


class QueueBranch:
    """A queue together with the queues below it."""

    __slots__ = (
        "counted_rows",
        "deserved",
        "divided",
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
        self,
        queue: Queue,
        used: Floats,
        requested: Floats,
        limit: Floats,
        quota: Floats,
    ) -> None:
        self.queue = queue
        self.parent: QueueBranch | None = None
        self.used = used
        #: Amounts of the pending gangs that could start, and of tasks that running gangs could add.
        self.requested = requested
        self.limit = limit
        self.quota = quota
        #: The rows that the quota names, also with 0.
        self.has_quota: Bools = _NO_ROWS
        self.deserved: Floats = _NOTHING
        #: What the division gave it, without the rules for starving gangs and unused shares.
        self.divided: Floats = _NOTHING
        #: The resources of which the part of its share counts that it uses: those of which the
        #: queue and its siblings demand more than there is for them, or all if there are none.
        self.counted_rows: list[int] = []
        #: The demand when what it deserves was settled.
        self.settled_demand: Floats = _NOTHING

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
        #: What each queue uses, requests and deserves, one line for each.
        self.used, self.requested, self.deserved = np.zeros((3, *layout.limits.shape))
        lines = zip(
            layout.queues, self.used, self.requested, layout.limits, layout.quotas, strict=True
        )
        self.branches = {line[0].name: QueueBranch(*line) for line in lines}
        #: By queue that has queues below it, and for the root: their branches. A branch knows only
        #: the one above it, so that a tree is freed without the garbage collector.
        self.children: dict[str, list[QueueBranch]] = {}
        used, requested, deserved, quota = np.zeros((4, layout.limits.shape[1]))
        unlimited = np.full(len(used), np.inf)
        self.root = QueueBranch(_ROOT, used, requested, unlimited, quota)
        self.root.has_quota, self.root.deserved = np.zeros(len(used), np.bool_), deserved
        branches = list(self.branches.values())
        lasting = zip(branches, layout.above, layout.has_quotas, self.deserved, strict=True)
        for branch, above, has_quota, deserves in lasting:
            branch.has_quota, branch.deserved, branch.settled_demand = has_quota, deserves, deserves
            branch.parent = self.root if above is None else branches[above]
            self.children.setdefault(branch.parent.queue.name, []).append(branch)
        self._sides: dict[tuple[str, str], tuple[list[QueueBranch], list[QueueBranch]]] = {}

    def below(self, branch: QueueBranch) -> Sequence[QueueBranch]:
        """The branches right below a branch."""
        return self.children.get(branch.queue.name, ())

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
