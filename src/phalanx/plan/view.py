"""What is free, at one moment or after something that may happen. It can be forked and undone.

How many tasks of a request each node could take is worked out once and then only for nodes that
have changed since; a fork begins with what is known of its origin.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from phalanx.core.node import DEVICE
from phalanx.plan.model import Ask
from phalanx.plan.nodes import BLOCK, WHOLE, Floats, Ints, NodeTable, Vector

_IN_BLOCK = np.arange(BLOCK)


class Fit:
    """For one request: how many tasks each node takes, and what the first of them leaves behind."""

    __slots__ = ("counts", "least", "left", "seen", "total")

    def __init__(self, size: int, seen: int) -> None:
        self.counts: Ints = np.zeros(size, np.int64)
        self.left: Floats = np.zeros(size)
        #: For each block of nodes: the least that any of them that has room would leave behind.
        self.least: Floats = np.full(size // BLOCK, np.inf)
        self.seen = seen  #: how much of the log is in it
        self.total = 0  #: how many tasks fit in all

    def copy(self) -> "Fit":
        twin = Fit.__new__(Fit)
        twin.counts, twin.left = self.counts.copy(), self.left.copy()
        twin.least, twin.total = self.least.copy(), self.total
        twin.seen = 0
        return twin

    def update(self, nodes: Ints | None, counts: Ints, left: Floats) -> None:
        """What these nodes, which are distinct, or all of them have room for now."""
        if nodes is None:
            self.counts, self.left = counts, left
            self.total = int(counts.sum())
            blocks = np.arange(len(self.least))
        else:
            self.total += int(counts.sum()) - int(self.counts[nodes].sum())
            self.counts[nodes], self.left[nodes] = counts, left
            blocks = np.unique(nodes // BLOCK)
        counts = self.counts.reshape(-1, BLOCK)[blocks]
        left = self.left.reshape(-1, BLOCK)[blocks]
        self.least[blocks] = np.where(counts > 0, left, np.inf).min(axis=1)

    def fullest(self, wanted: int) -> tuple[Ints, Ints]:
        """Nodes that leave least behind, and how many tasks each takes, for so many tasks."""
        order = np.argsort(self.least, kind="stable")
        some = 1
        while True:
            nodes = (order[:some, None] * BLOCK + _IN_BLOCK).ravel()
            nodes = nodes[self.counts[nodes] > 0]
            chosen, counts = fill(nodes, self.counts[nodes], self.left[nodes], wanted)
            enough = some >= len(order)
            if not enough and len(chosen) and int(counts.sum()) == wanted:
                # Nobody in the other blocks leaves less behind than the last that was chosen.
                enough = bool(self.left[chosen[-1]] <= self.least[order[some]])
            if enough:
                return chosen, counts
            some *= 4


#: A task on a node: the node, what it takes there, and the devices it shares.
Occupant = tuple[int, Vector, tuple[int, ...]]


class Taken(NamedTuple):
    """What was taken from a view, so that it can be given back."""

    vector: Vector
    nodes: Ints
    counts: Ints
    shared: dict[int, dict[int, int] | None]  #: how the devices of those nodes were shared before


class View:
    def __init__(
        self, table: NodeTable, origin: "View | None" = None, *, empty: bool = False
    ) -> None:
        """Of the table itself, as it is or as if nothing ran; or of another view, to be changed."""
        self.table = table
        self._origin = origin
        self._empty = empty
        self._free: Ints | None = None if origin is None else origin.free.copy()
        self.partial: dict[int, dict[int, int]] = {}
        if not empty:
            self.partial = table.partial if origin is None else dict(origin.partial)
        self._fits: dict[Ask, Fit] = {}
        #: Nodes that have changed, in order, some of them more than once.
        self._log: Ints = np.zeros(64, np.int64)
        self._logged = 0

    @property
    def free(self) -> Ints:
        if self._free is not None:
            return self._free
        return self.table.capacity if self._empty else self.table.free

    def fork(self) -> "View":
        return View(self.table, self)

    def note(self, nodes: Ints) -> None:
        """These nodes are not what they were."""
        end = self._logged + len(nodes)
        if end > len(self._log):
            self._log = np.concatenate((self._log, np.zeros(max(end, len(self._log)), np.int64)))
        self._log[self._logged : end] = nodes
        self._logged = end

    def forget(self) -> None:
        """Nothing that was worked out holds any more."""
        self._fits.clear()
        self._logged = 0

    @property
    def is_worn(self) -> bool:
        """Whether it is cheaper to begin anew than to go on patching."""
        return self._logged > 4 * len(self.table) + 1024

    def fit(self, ask: Ask) -> Fit:
        fit = self._fits.get(ask)
        if fit is None:
            if self._origin is not None and self._logged < len(self.table):
                fit = self._origin.fit(ask).copy()
            else:
                fit = Fit(self.free.shape[1], self._logged)
                fit.update(None, *self._count(ask, None))
            self._fits[ask] = fit
        if fit.seen < self._logged:
            nodes = self._changed(fit.seen)
            fit.update(nodes, *self._count(ask, nodes))
            fit.seen = self._logged
        return fit

    def room(self, ask: Ask) -> int:
        """How many tasks of a request fit, without working out where unless that is known."""
        if self._origin is None or ask in self._fits or self._logged > len(self.table) // 8:
            return self.fit(ask).total
        known = self._origin.fit(ask)
        nodes = self._changed(0)
        counts, _ = self._count(ask, nodes)
        return known.total + int(counts.sum()) - int(known.counts[nodes].sum())

    def _changed(self, since: int) -> Ints:
        """The distinct nodes that were logged after so many."""
        nodes = self._log[since : self._logged]
        if len(nodes) <= BLOCK:
            return np.unique(nodes)
        changed = np.zeros(self.free.shape[1], np.bool_)
        changed[nodes] = True
        return np.flatnonzero(changed)

    def best(self, ask: Ask) -> int:
        """How many tasks of a request fit on the node that takes most."""
        if self._origin is not None and ask not in self._fits:
            # What was taken since only made nodes worse.
            known = self._origin.fit(ask).counts
            at = int(known.argmax())
            if not (self._log[: self._logged] == at).any():
                return int(known[at])
        return int(self.fit(ask).counts.max(initial=0))

    def _count(self, ask: Ask, nodes: Ints | None) -> tuple[Ints, Floats]:
        """How many tasks each of the nodes takes, and what the first leaves behind there."""
        table, vector = self.table, self.table.vector(ask.resources)
        at = slice(None) if nodes is None else nodes
        free = self.free[:, at]
        counts = free[0].copy()
        left = np.zeros(counts.shape)
        whole = table.rows.get(WHOLE)
        for row, amount in zip(vector.rows[1:].tolist(), vector.amounts[1:].tolist(), strict=True):
            counts = np.minimum(counts, free[row] // amount)
            if row != whole:
                left += (free[row] - amount) / np.maximum(table.capacity[row][at], 1)
        if len(vector.rows) == 1:
            left = free[0] / np.maximum(table.capacity[0][at], 1)
        if vector.fraction:
            counts = np.minimum(counts, self._shares(vector.fraction, free, nodes))
        counts[~table.mask(ask)[at]] = 0
        np.maximum(counts, 0, out=counts)
        return counts, left

    def _shares(self, fraction: int, free: Ints, nodes: Ints | None) -> Ints:
        """How many tasks that share a device each of the nodes can take."""
        shares: Ints = free[self.table.rows[WHOLE]] * (DEVICE // fraction)
        at = np.arange(self.free.shape[1]) if nodes is None else nodes
        for n in np.flatnonzero(np.isin(at, list(self.partial))).tolist():
            pieces = self.partial[int(at[n])].values()
            shares[n] += sum(left // fraction for left in pieces)
        return shares

    # Changing

    def take(self, vector: Vector, nodes: Ints, counts: Ints) -> Taken:
        """Let so many tasks occupy each of the nodes, which are distinct."""
        shared: dict[int, dict[int, int] | None] = {}
        if vector.fraction:
            for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
                shared[node] = self.partial.get(node)
                self._share(node, vector.fraction, count)
        self.free[vector.rows[:, None], nodes] -= vector.amounts[:, None] * counts
        self.note(nodes)
        return Taken(vector, nodes, counts, shared)

    def give_back(self, taken: Taken) -> None:
        vector, nodes = taken.vector, taken.nodes
        self.free[vector.rows[:, None], nodes] += vector.amounts[:, None] * taken.counts
        for node, before in taken.shared.items():
            whole = len(self.partial[node]) - len(before or {})
            self.free[self.table.rows[WHOLE], node] += whole
            if before is None:
                del self.partial[node]
            else:
                self.partial[node] = before
        self.note(nodes)

    def _share(self, node: int, fraction: int, count: int) -> None:
        """Put tasks on the fullest devices that have room, and break whole ones for the rest."""
        pieces = dict(self.partial.get(node, {}))
        for _ in range(count):
            room = [(left, n) for n, left in pieces.items() if left >= fraction]
            if room:
                pieces[min(room)[1]] -= fraction
            else:
                # Which device it is does not matter here; below zero it is none that has a number.
                pieces[min(-1, min(pieces, default=0) - 1)] = DEVICE - fraction
                self.free[self.table.rows[WHOLE], node] -= 1
        self.partial[node] = pieces

    def vacate(self, gone: Iterable[Occupant], sign: int = 1) -> None:
        """These tasks are there no longer; with -1, they are there after all."""
        touched = []
        for node, vector, devices in gone:
            self.free[vector.rows, node] += sign * vector.amounts
            touched.append(node)
            if vector.fraction:
                self._unshare(node, sign * vector.fraction, devices)
        self.note(np.array(touched, np.int64))

    def _unshare(self, node: int, fraction: int, devices: tuple[int, ...]) -> None:
        """A device that is in no piece is full for who leaves it, and whole for who comes back."""
        pieces = dict(self.partial.get(node, {}))
        for device in devices:
            left = pieces.pop(device, 0 if fraction > 0 else DEVICE)
            self.free[self.table.rows[WHOLE], node] -= left >= DEVICE
            left += fraction
            if left >= DEVICE:
                self.free[self.table.rows[WHOLE], node] += 1
            else:
                pieces[device] = left
        self.partial[node] = pieces

    def add(self, nodes: Ints, amounts: Ints) -> None:
        """Give these amounts, a line of rows for each node, back to their nodes."""
        size = self.free.shape[1]
        for row in range(amounts.shape[1]):
            more = np.bincount(nodes, weights=amounts[:, row], minlength=size)
            self.free[row] += more.astype(np.int64)
        self.note(np.unique(nodes))

    def busyness(self) -> Floats:
        """How much of each node is taken, over all that it has."""
        capacity = self.table.capacity[1:]
        taken = np.where(capacity > 0, (capacity - self.free[1:]) / np.maximum(capacity, 1), 0.0)
        busyness: Floats = taken.sum(axis=0)
        return busyness

    def total(self, resource: str) -> int:
        """What is free on open nodes in sum."""
        row = self.table.rows.get(resource)
        if row is None:
            return 0
        free = self.free[row][self.table.open]
        return int(free[free > 0].sum())


def fill(nodes: Ints, counts: Ints, left: Floats, wanted: int) -> tuple[Ints, Ints]:
    """Fill the nodes that leave least behind. A node that has been chosen stays the best."""
    if len(nodes) > wanted:
        some = np.argpartition(left, wanted - 1)[:wanted]
        nodes, counts, left = nodes[some], counts[some], left[some]
    order = np.lexsort((nodes, left))
    nodes, counts = nodes[order], counts[order]
    ends = np.cumsum(counts)
    last = min(int(np.searchsorted(ends, wanted)), len(nodes) - 1)
    chosen = counts[: last + 1].copy()
    chosen[-1] -= max(0, int(ends[last]) - wanted)
    return nodes[: last + 1], chosen
