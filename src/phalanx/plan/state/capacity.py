"""What is free, at one moment or after something that may happen. It can be forked and undone.

How many tasks of a request each node could take is worked out once and then only for nodes that
have changed since; a fork begins with what is known of its origin.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from phalanx.core.node import DEVICE, GPU
from phalanx.plan.model import TaskRequest
from phalanx.plan.state.nodes import BLOCK, WHOLE, Bools, Floats, Ints, NodeTable, Vector

_IN_BLOCK = np.arange(BLOCK)
#: More than a GPU's share of what a node could leave behind of all else.
_DEAR = 1000.0
_NONE: Ints = np.zeros(0, np.int64)
#: With so few nodes, looking at all of them is cheaper than finding out which have changed.
_FEW = 2 * BLOCK
#: So few changes are sorted faster than they are marked among all nodes.
_A_FEW = 100


class Fit:
    """For one request: how many tasks each node takes."""

    __slots__ = ("counts", "seen", "total")

    def __init__(self, counts: Ints, total: int, seen: int) -> None:
        self.counts = counts
        self.total = total
        self.seen = seen  #: how much of the log is in it


class Left:
    """For one request: what the first task leaves behind on each node."""

    __slots__ = ("amounts", "least", "seen")

    def __init__(self, amounts: Floats, least: Floats, seen: int) -> None:
        self.amounts = amounts
        #: For each block of nodes: the least that any of them that has room would leave behind.
        self.least = least
        self.seen = seen

    def find_least(self, counts: Ints, blocks: Ints | slice) -> None:
        counts = counts.reshape(-1, BLOCK)[blocks]
        amounts = self.amounts.reshape(-1, BLOCK)[blocks]
        self.least[blocks] = np.where(counts > 0, amounts, np.inf).min(axis=1)


class CapacityChange(NamedTuple):
    """Some nodes, each of them once, the blocks that they are in, and what is free on them."""

    nodes: Ints
    blocks: Ints
    free: Ints


#: A task on a node: the node, what it takes there, and the devices it shares.
Occupant = tuple[int, Vector, tuple[int, ...]]


class TakenCapacity(NamedTuple):
    """What was taken from a view, so that it can be given back."""

    vector: Vector
    nodes: Ints
    counts: Ints
    shared: dict[int, list[int]]  #: the devices of those nodes that its tasks share


class FreeCapacity:
    def __init__(
        self, table: NodeTable, origin: "FreeCapacity | None" = None, *, empty: bool = False
    ) -> None:
        """Of the table itself, as it is or as if nothing ran; or of another view, to be changed."""
        self.table = table
        self._origin = origin
        self._empty = empty
        self._free: Ints | None = None if origin is None else origin.free.copy()
        self.partial: dict[int, dict[int, int]] = {}
        if not empty:
            self.partial = table.partial if origin is None else dict(origin.partial)
        self._fits: dict[TaskRequest, Fit] = {}
        self._lefts: dict[TaskRequest, Left] = {}
        #: How many tasks fit, and with which changes.
        self._rooms: dict[TaskRequest, tuple[CapacityChange, int]] = {}
        #: Nodes that have changed, in order, some of them more than once.
        self._log: Ints = np.zeros(64, np.int64)
        self._logged = 0
        self._forked_at = 0 if origin is None else origin._logged  # noqa: SLF001
        #: What has changed since that much was in the log, and that much in the origin's.
        self._changes: dict[tuple[int, int], CapacityChange] = {}

    @property
    def free(self) -> Ints:
        if self._free is not None:
            return self._free
        return self.table.capacity if self._empty else self.table.free

    def fork(self) -> "FreeCapacity":
        return FreeCapacity(self.table, self)

    def note(self, nodes: Ints) -> None:
        """These nodes are not what they were."""
        end = self._logged + len(nodes)
        if end > len(self._log):
            self._log = np.concatenate((self._log, np.zeros(max(end, len(self._log)), np.int64)))
        self._log[self._logged : end] = nodes
        self._logged = end
        self._changes.clear()

    def forget(self) -> None:
        """Nothing that was worked out holds any more."""
        self._fits.clear()
        self._lefts.clear()
        self._changes.clear()
        self._logged = 0

    @property
    def is_worn(self) -> bool:
        """Whether it is cheaper to begin anew than to go on patching."""
        return self._logged > 4 * len(self.table) + 1024

    def fit(self, ask: TaskRequest) -> Fit:
        if self._origin is not None and self._is_unchanged():
            return self._origin.fit(ask)
        fit = self._fits.get(ask)
        if fit is not None and fit.seen == self._logged:
            return fit
        if fit is None and self._origin is not None and not self._is_other_than(-1):
            known = self._origin.fit(ask)
            fit = self._fits[ask] = Fit(known.counts.copy(), known.total, -1)
        elif fit is None or self._is_other_than(fit.seen):
            counts = self._count(ask)
            fit = self._fits[ask] = Fit(counts, int(counts.sum()), self._logged)
        if fit.seen < self._logged:
            changed = self._changed(fit.seen)
            counts = self._count(ask, changed)
            fit.total += int(counts.sum() - fit.counts[changed.nodes].sum())
            fit.counts[changed.nodes] = counts
            fit.seen = self._logged
        return fit

    def _left(self, ask: TaskRequest) -> Left:
        if self._origin is not None and self._is_unchanged():
            return self._origin._left(ask)  # noqa: SLF001
        counts = self.fit(ask).counts
        left = self._lefts.get(ask)
        if left is not None and left.seen == self._logged:
            return left
        if left is None and self._origin is not None and not self._is_other_than(-1):
            known = self._origin._left(ask)  # noqa: SLF001
            left = self._lefts[ask] = Left(known.amounts.copy(), known.least.copy(), -1)
        elif left is None or self._is_other_than(left.seen):
            amounts = self.behind(ask, slice(None))
            left = Left(amounts, np.empty(len(amounts) // BLOCK), self._logged)
            left.find_least(counts, slice(None))
            self._lefts[ask] = left
        if left.seen < self._logged:
            changed = self._changed(left.seen)
            left.amounts[changed.nodes] = self.behind(ask, changed.nodes)
            left.find_least(counts, changed.blocks)
            left.seen = self._logged
        return left

    def room(self, ask: TaskRequest) -> int:
        """How many tasks of a request fit, without working out where unless that is known."""
        at_hand = self._origin is None or ask in self._fits or self._is_unchanged()
        if self._origin is None or at_hand or self._is_other_than(-1):
            return self.fit(ask).total
        changed = self._changed(-1)
        seen, room = self._rooms.get(ask, (None, 0))
        if seen is not changed:
            known = self._origin.fit(ask)
            counts = self._count(ask, changed)
            room = known.total + int(counts.sum() - known.counts[changed.nodes].sum())
            self._rooms[ask] = (changed, room)
        return room

    def fullest(self, ask: TaskRequest, wanted: int) -> tuple[Ints, Ints]:
        """Nodes that leave least behind, and how many tasks each takes, for so many tasks."""
        fitting = self.fit(ask).counts
        if ask not in self._lefts:
            nodes = np.flatnonzero(fitting)
            if self.is_few(nodes):
                return fill(nodes, fitting[nodes], self.behind(ask, nodes), wanted)
        left = self._left(ask)
        order = np.argsort(left.least, kind="stable")
        some = 1
        while True:
            nodes = (order[:some, None] * BLOCK + _IN_BLOCK).ravel()
            nodes = nodes[fitting[nodes] > 0]
            chosen, counts = fill(nodes, fitting[nodes], left.amounts[nodes], wanted)
            enough = some >= len(order)
            if not enough and len(chosen) and int(counts.sum()) == wanted:
                # Nobody in the other blocks leaves less behind than the last that was chosen.
                enough = bool(left.amounts[chosen[-1]] <= left.least[order[some]])
            if enough:
                return chosen, counts
            some *= 4

    def _is_other_than(self, since: int) -> bool:
        """Whether so many nodes have changed that it is cheaper to look at all of them."""
        return len(self.table) <= _FEW or self._logged - since > len(self.table) // 4

    def is_few(self, nodes: Ints) -> bool:
        """Whether it is cheaper to look at these nodes than to know something of all."""
        return len(nodes) <= len(self.table) // 8

    def count_at(self, ask: TaskRequest, nodes: Ints) -> Ints:
        """How many tasks each of a few nodes takes."""
        vector, mask = self.table.vector(ask.resources), self.table.mask(ask)
        return count(vector, self.free[:, nodes], self.partial, mask[nodes], nodes)

    def _is_unchanged(self) -> bool:
        """Whether a fork and its origin are still the same."""
        return not self._logged and len(self._origins_log()) == 0

    def _origins_log(self) -> Ints:
        """The nodes of the origin that have changed since the fork."""
        if self._origin is None:
            return _NONE
        return self._origin._log[self._forked_at : self._origin._logged]  # noqa: SLF001

    def _changed(self, since: int) -> CapacityChange:
        """The nodes that were logged after so many; with -1, all that are not the origin's."""
        others = self._origins_log() if since < 0 else _NONE
        key = since, len(others)
        known = self._changes.get(key)
        if known is None:
            logged = np.concatenate((self._log[max(since, 0) : self._logged], others))
            if len(logged) <= _A_FEW:
                nodes = np.array(sorted({*logged.tolist()}), np.int64)
                blocks = np.array(sorted({node // BLOCK for node in nodes.tolist()}), np.int64)
            else:
                marks = np.zeros(self.free.shape[1], np.bool_)
                marks[logged] = True
                nodes = np.flatnonzero(marks)
                blocks = np.flatnonzero(marks.reshape(-1, BLOCK).any(axis=1))
            known = self._changes[key] = CapacityChange(nodes, blocks, self.free[:, nodes])
        return known

    def _count(self, ask: TaskRequest, changed: CapacityChange | None = None) -> Ints:
        """How many tasks each of the nodes, or every node, takes."""
        vector, mask = self.table.vector(ask.resources), self.table.mask(ask)
        if changed is None:
            return count(vector, self.free, self.partial, mask)
        nodes = changed.nodes
        return count(vector, changed.free, self.partial, mask[nodes], nodes)

    def behind(self, ask: TaskRequest, at: Ints | slice, *, spread: bool = False) -> Floats:
        """What the first task leaves behind on each of these nodes.

        Idle GPUs count against a node for whoever does not ask for any, before all else.
        """
        vector, capacity = self.table.vector(ask.resources), self.table.capacity
        left = np.zeros(self.free[0, at].shape)
        for row, amount in vector.measured or ((0, 0),):
            left += (self.free[row, at] - amount) / np.maximum(capacity[row, at], 1)
        gpus = self.table.rows.get(GPU)
        if gpus is not None and gpus not in vector.rows:
            idle = _DEAR * self.free[gpus, at] / np.maximum(capacity[gpus, at], 1)
            left += -idle if spread else idle
        return left

    # Changing

    def take(self, vector: Vector, nodes: Ints, counts: Ints) -> TakenCapacity:
        """Let so many tasks occupy each of the nodes, which are distinct."""
        shared: dict[int, list[int]] = {}
        if vector.fraction:
            for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
                shared[node] = self._share(node, vector.fraction, count)
        self.free[vector.rows[:, None], nodes] -= vector.amounts[:, None] * counts
        self.note(nodes)
        return TakenCapacity(vector, nodes, counts, shared)

    def give_back(self, taken: TakenCapacity) -> None:
        vector, nodes = taken.vector, taken.nodes
        self.free[vector.rows[:, None], nodes] += vector.amounts[:, None] * taken.counts
        for node, devices in taken.shared.items():
            # Others may have come and gone there meanwhile.
            for device in devices:
                self._unshare(node, vector.fraction, (device,))
        self.note(nodes)

    def _share(self, node: int, fraction: int, count: int) -> list[int]:
        """Put tasks on the fullest devices that have room, and break whole ones for the rest."""
        pieces = dict(self.partial.get(node, {}))
        devices = []
        for _ in range(count):
            room = [(left, n) for n, left in pieces.items() if left >= fraction]
            if room:
                device = min(room)[1]
                pieces[device] -= fraction
            else:
                # Which device it is does not matter here; below zero it is none that has a number.
                device = min(-1, min(pieces, default=0) - 1)
                pieces[device] = DEVICE - fraction
                self.free[self.table.rows[WHOLE], node] -= 1
            devices.append(device)
        self.partial[node] = pieces
        return devices

    def vacate(self, gone: Iterable[Occupant], sign: int = 1) -> None:
        """These tasks are there no longer; with -1, they are there after all."""
        by_vector: dict[int, tuple[Vector, list[int]]] = {}
        for node, vector, devices in gone:
            by_vector.setdefault(id(vector), (vector, []))[1].append(node)
            if vector.fraction:
                self._unshare(node, sign * vector.fraction, devices)
        for vector, nodes in by_vector.values():
            at = np.array(nodes, np.int64)
            np.add.at(self.free, (vector.rows[:, None], at), sign * vector.amounts[:, None])
            self.note(at)

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
        self.note(np.flatnonzero(np.bincount(nodes, minlength=size)))

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


def count(
    vector: Vector,
    free: Ints,
    partial: Mapping[int, Mapping[int, int]],
    mask: Bools,
    nodes: Ints | None = None,
) -> Ints:
    """How many tasks each of the nodes, or every node, takes."""
    counts: Ints = np.where(mask, free[0], 0)
    for row, amount in vector.bounds:
        np.minimum(counts, free[row] // amount, out=counts)
    if vector.fraction:
        shares = free[vector.whole] * (DEVICE // vector.fraction)
        known = np.arange(free.shape[1]) if nodes is None else nodes
        for n in np.flatnonzero(np.isin(known, list(partial))).tolist():
            pieces = partial[int(known[n])].values()
            shares[n] += sum(left // vector.fraction for left in pieces)
        np.minimum(counts, shares, out=counts)
    np.maximum(counts, 0, out=counts)
    return counts


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
