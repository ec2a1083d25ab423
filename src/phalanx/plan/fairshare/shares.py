"""Queues as a tree: what each uses, wants, and deserves, and which of them is served next.

What a queue deserves is settled once in a pass: it depends on use and want together, and placing or
evicting only moves the one into the other. What it uses changes with every gang that is placed.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np

from phalanx.core.model import Queue
from phalanx.plan.state.nodes import SLOTS, WHOLE, Bools, Floats, NodeTable

#: Shares are real numbers; less than this is no difference.
_HAIR = 1e-6


class QueueBranch:
    """A queue with those below it."""

    def __init__(self, queue: Queue, rows: int) -> None:
        self.queue = queue
        self.parent: QueueBranch | None = None
        self.children: list[QueueBranch] = []
        self.used: Floats = np.zeros(rows)
        self.wanted: Floats = np.zeros(rows)  #: by those that wait and could start
        self.limit: Floats = np.full(rows, np.inf)
        self.quota: Floats = np.zeros(rows)
        self.named: Bools = np.zeros(rows, np.bool_)  #: what the quota is about, if only to be 0
        self.deserved: Floats = np.zeros(rows)

    def path(self) -> "Iterator[QueueBranch]":
        """Itself and all above it."""
        branch: QueueBranch | None = self
        while branch is not None:
            yield branch
            branch = branch.parent

    @property
    def demand(self) -> Floats:
        return np.minimum(self.used + self.wanted, self.limit)


class FairShares:
    def __init__(self, queues: Mapping[str, Queue], table: NodeTable) -> None:
        self.table = table
        self._rows = len(table.rows)
        #: Rows that queues share; slots and whole devices only say how a node is filled.
        self.shared = np.array([name not in (SLOTS, WHOLE) for name in table.rows], np.bool_)
        self.capacity = table.capacity.sum(axis=1, where=table.open).astype(float)
        self.branches = {queue.name: self._branch(queue) for queue in queues.values()}
        self.root = QueueBranch(Queue(name=""), self._rows)
        for branch in self.branches.values():
            above = self.branches.get(branch.queue.parent or "")
            branch.parent = self.root if above is None else above
            branch.parent.children.append(branch)
        #: By queue and row: more than this is more than it deserves.
        self._most: Floats = np.zeros((len(self.branches), self._rows))
        self._sides: dict[tuple[str, str], tuple[list[QueueBranch], list[QueueBranch]]] = {}
        #: Queues that have a limit, or are below one that has.
        self.limited = {
            name
            for name, branch in self.branches.items()
            if any(above.queue.limit for above in branch.path())
        }

    def _branch(self, queue: Queue) -> QueueBranch:
        branch = QueueBranch(queue, self._rows)
        for resource, amount in queue.limit.items():
            branch.limit[self.table.rows[resource]] = amount
        for resource, amount in queue.quota.items():
            branch.quota[self.table.rows[resource]] = amount
            branch.named[self.table.rows[resource]] = True
        return branch

    # Before the pass

    def use(self, queue: str, amounts: Floats) -> None:
        """Something of the queue takes this, or gives it back if it is negative."""
        for branch in self.branches[queue].path():
            branch.used += amounts

    def sums(self, *used: Mapping[str, Mapping[str, int]]) -> dict[str, Floats]:
        """By queue: what all of these amounts come to in it and below it."""
        sums = {name: np.zeros(self._rows) for name in (*self.branches, self.root.queue.name)}
        for amounts in used:
            for queue, resources in amounts.items():
                for branch in self.branches[queue].path():
                    for resource, amount in resources.items():
                        sums[branch.queue.name][self.table.rows[resource]] += amount
        return sums

    def want(self, queue: str, amounts: Floats) -> None:
        self.branches[queue].wanted += amounts

    def settle(self) -> None:
        """Work out what everybody deserves."""
        for child in self.root.children:
            self._gather(child)
        self.root.deserved = self.capacity
        self._divide(self.root)
        self._most = np.array([branch.deserved for branch in self.branches.values()]) + _HAIR

    def _gather(self, branch: QueueBranch) -> None:
        """Wants and quotas of what is below count above, as far as limits let them."""
        own_quota = bool(branch.queue.quota)
        for child in branch.children:
            self._gather(child)
            branch.wanted += np.maximum(child.demand - child.used, 0.0)
            if not own_quota:
                branch.quota += child.quota
                branch.named |= child.named

    def _divide(self, branch: QueueBranch) -> None:
        children = branch.children
        if not children:
            return
        available = branch.deserved
        demands = np.array([child.demand for child in children])
        quotas = np.array([child.quota for child in children])
        granted = np.minimum(quotas, demands)
        weights = np.array([float(child.queue.weight) for child in children])
        # What the quota of a queue leaves open.
        named = np.array([child.named for child in children])
        silent = named.any(axis=1, keepdims=True) & ~named
        for row in range(self._rows):
            rest = available[row] - granted[:, row].sum()
            if rest < 0:
                granted[:, row] = water_fill(available[row], quotas[:, row], granted[:, row])
            granted[:, row] += water_fill(rest, weights, demands[:, row] - granted[:, row])
            if demands[:, row].sum() <= available[row] + _HAIR:
                granted[:, row] = np.where(silent, demands, granted)[:, row]
        for child, share in zip(children, granted, strict=True):
            child.deserved = share
            self._divide(child)

    # In the pass

    def beyond(self, rows: Bools) -> set[str]:
        """The queues that have more than they deserve of any of these."""
        used = np.array([branch.used for branch in self.branches.values()])
        over = np.flatnonzero(((used > self._most) & rows).any(axis=1))
        names = list(self.branches)
        return {names[n] for n in over.tolist()}

    def sides(self, ours: str, theirs: str) -> tuple[list[QueueBranch], list[QueueBranch]]:
        """The queues from each of the two up to where they meet."""
        known = self._sides.get((ours, theirs))
        if known is None:
            mine, other = list(self.branches[ours].path()), list(self.branches[theirs].path())
            common = {id(branch) for branch in mine} & {id(branch) for branch in other}
            known = self._sides[ours, theirs] = (
                [branch for branch in mine if id(branch) not in common],
                [branch for branch in other if id(branch) not in common],
            )
        return known

    @cached_property
    def is_contended(self) -> bool:
        """Whether more than one queue wants anything."""
        wanting = (not b.children and bool(b.wanted.any()) for b in self.branches.values())
        return sum(wanting) > 1

    def binding_limit(self, needs: Iterable[tuple[str, Floats]]) -> tuple[str, str] | None:
        """The first queue that would exceed its limit with all this, and in what."""
        more: dict[str, Floats] = {}
        for queue, need in needs:
            for branch in self.branches[queue].path():
                name = branch.queue.name
                more[name] = more.get(name, 0.0) + need
                over = (branch.used + more[name] > branch.limit + _HAIR) & (need > 0)
                if over.any():
                    return name, list(self.table.rows)[int(np.flatnonzero(over)[0])]
        return None

    def rank(self, branch: QueueBranch, need: Floats) -> tuple[bool, float]:
        """How well a queue is served once this is placed too: beyond its share, and how far."""
        after = (branch.used + need)[self.shared]
        deserved = branch.deserved[self.shared]
        above = bool(((after > deserved + _HAIR) & (need[self.shared] > 0)).any())
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(after <= _HAIR, 0.0, after / deserved)
        return above, round(float(ratios.max(initial=0.0)), 9)

    def part_of_all(self, amounts: Floats) -> float:
        """The largest part of the cluster's resources that this is."""
        return round(float((amounts / np.maximum(self.capacity, 1)).max()), 9)

    def excess(self) -> float:
        """How unfairly the cluster is shared: what queues use beyond what they deserve, in sum."""
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = [
                np.where(over > _HAIR, over / self.capacity, 0.0)[self.shared]
                for branch in self.branches.values()
                for over in (np.maximum(branch.used - branch.deserved, 0.0),)
            ]
        return float(sum(np.nan_to_num(share, posinf=0.0).sum() for share in shares))

    def within_share(self, branch: QueueBranch, need: Floats) -> bool:
        """Whether the queue stays within what it deserves in all that it takes."""
        takes = (need > 0) & self.shared
        return not bool((branch.used + need > branch.deserved + _HAIR)[takes].any())

    def could_serve(self, queue: str, need: Floats) -> bool:
        """Whether this is no more than the queue deserves, if it used nothing else."""
        takes = (need > 0) & self.shared
        path = self.branches[queue].path()
        return not any(bool((need > branch.deserved + _HAIR)[takes].any()) for branch in path)

    def is_sated(self, branch: QueueBranch) -> bool:
        """Whether the queue has all that it deserves."""
        return not bool((branch.used + _HAIR < branch.deserved)[self.shared].any())

    def room_in_limits(self) -> dict[str, list[tuple[str, str, float]]]:
        """For each queue that has limits: whose they are, on what, and what they leave."""
        names = list(self.table.rows)
        return {
            name: [
                (branch.queue.name, names[row], float(branch.limit[row] - branch.used[row]))
                for branch in self.branches[name].path()
                for row in np.flatnonzero(np.isfinite(branch.limit)).tolist()
            ]
            for name in self.limited
        }


def water_fill(rest: float, weights: Floats, wants: Floats) -> Floats:
    """Divide what is left by weight, nobody getting more than they want."""
    got = np.zeros(len(weights))
    open_ = (weights > 0) & (wants > _HAIR)
    while rest > _HAIR and open_.any():
        part = rest * weights * open_ / (weights * open_).sum()
        give = np.minimum(part, wants - got) * open_
        got += give
        rest -= float(give.sum())
        full = open_ & (wants - got <= _HAIR)
        if not full.any():
            break
        open_ &= ~full
    return got


def with_parents(queues: Mapping[str, Queue], named: Iterable[str]) -> dict[str, Queue]:
    """The queues, and a plain one for every name that is used and not known."""
    known = dict(queues)
    for name in named:
        known.setdefault(name, Queue(name=name))
    return known
