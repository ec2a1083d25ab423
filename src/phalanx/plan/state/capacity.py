"""Free capacity: what is free on each node, now or after something that a plan tries out.

How many tasks of a request fit on each node is counted once, and then again only on nodes that
have changed; a fork begins with the counts of its origin.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from phalanx.core.node import DEVICE, GPU
from phalanx.core.time_units import Micros
from phalanx.plan.model import TaskRequest
from phalanx.plan.state.nodes import (
    BLOCK,
    WHOLE,
    Bools,
    Floats,
    Ints,
    NodeTable,
    Vector,
    places_by_domain,
)
from phalanx.plan.state.placement_rules import PlacedTasks, Restriction

_IN_BLOCK = np.arange(BLOCK)
#: The weight of an idle GPU: more than the share of all other resources that a node could leave.
_GPU_WEIGHT = 1000.0
#: The weight of a GPU that a placement strands: a node on which it strands less comes first.
_STRANDED_WEIGHT = 1e4
#: A task that needs a part of a GPU costs this many GPUs where it breaks a whole one.
_BREAKING = 0.3
#: What is left of the GPU that it shares counts so much.
_REMAINDER = 0.05
_NO_NODES: Ints = np.zeros(0, np.int64)
#: With so few nodes, counting all of them is cheaper than finding those that have changed.
_FEW_NODES = 2 * BLOCK
#: So few changes are sorted faster than they are marked in a column of all nodes.
_FEW_CHANGES = 100


class FitCounts:
    """For one request: how many tasks fit on each node."""

    __slots__ = ("_by_domain", "counts", "owner", "seen", "total")

    def __init__(self, counts: Ints, total: int, seen: int, owner: object) -> None:
        self.counts = counts
        self.total = total
        self.seen = seen  #: length of the log up to which changes are included
        self.owner = owner  #: the capacity that may change the arrays
        #: By label: the domain of each node, and how many tasks fit in each domain.
        self._by_domain: dict[str, tuple[Ints, Floats]] = {}

    def copy(self, seen: int, owner: object) -> "FitCounts":
        fork = FitCounts(self.counts.copy(), self.total, seen, owner)
        fork._by_domain = self._by_domain.copy()
        return fork

    def replace(self, nodes: Ints, counts: Ints) -> None:
        """Set the counts of some nodes, which are distinct."""
        more = counts - self.counts[nodes]
        self.total += int(more.sum())
        self.counts[nodes] = counts
        for label, (codes, places) in self._by_domain.items():
            self._by_domain[label] = (
                codes,
                places + places_by_domain(more, codes[nodes], len(places)),
            )

    def most_in_domain(self, label: str, table: NodeTable) -> int:
        """How many tasks fit in the domain that holds most of them."""
        codes, names = table.domains(label)
        known = self._by_domain.get(label)
        if known is None or known[0] is not codes:
            known = self._by_domain[label] = (
                codes,
                places_by_domain(self.counts, codes, len(names)),
            )
        return int(known[1].max(initial=0))


class Leftovers:
    """For one request: what its first task leaves free on each node."""

    __slots__ = ("amounts", "least", "owner", "seen", "sizes")

    def __init__(
        self, amounts: Floats, least: Floats, seen: int, owner: object, sizes: object
    ) -> None:
        self.amounts = amounts
        #: By block of nodes: the least that is left on a node on which a task fits.
        self.least = least
        self.seen = seen
        self.owner = owner
        self.sizes = sizes  #: the version of the nodes' sizes that it was computed for

    def copy(self, seen: int, owner: object) -> "Leftovers":
        return Leftovers(self.amounts.copy(), self.least.copy(), seen, owner, self.sizes)

    def find_least(self, counts: Ints, blocks: Ints | slice) -> None:
        counts = counts.reshape(-1, BLOCK)[blocks]
        amounts = self.amounts.reshape(-1, BLOCK)[blocks]
        self.least[blocks] = np.where(counts > 0, amounts, np.inf).min(axis=1)


class CapacityChange(NamedTuple):
    """Nodes that have changed, the blocks that they are in, and what is free on them."""

    nodes: Ints
    blocks: Ints
    free: Ints


#: A task on a node: the node, what it takes there, the devices that it shares, and its traits.
Occupant = tuple[int, Vector, tuple[int, ...], Hashable]


class OccupantGroup(NamedTuple):
    """Equal tasks on several nodes, which are distinct."""

    vector: Vector
    nodes: Ints
    counts: Ints


class TakenCapacity(NamedTuple):
    """What was taken from a capacity, so that it can be given back."""

    vector: Vector
    nodes: Ints
    counts: Ints
    shared: dict[int, list[int]]  #: by node: the devices that the tasks share
    traits: Hashable


class FreeCapacity:
    def __init__(
        self, table: NodeTable, origin: "FreeCapacity | None" = None, *, empty: bool = False
    ) -> None:
        """The capacity of a table, as it is or as if nothing ran; or a fork, to try changes on."""
        self.table = table
        self._origin = origin
        self._empty = empty
        self._free: Ints | None = None if origin is None else origin.free.copy()
        self._partial = None if origin is None else dict(origin.partial)
        self._fits: dict[TaskRequest, FitCounts] = {}
        self._leftovers: dict[TaskRequest, Leftovers] = {}
        #: By request: the number of tasks that fit, and the changes that are included.
        self._totals: dict[TaskRequest, tuple[CapacityChange, int]] = {}
        #: Nodes that have changed, in order, some of them more than once.
        self._log: list[Ints] = []
        self._logged = 0  #: number of nodes in the log
        self._forked_at = 0 if origin is None else origin._logged  # noqa: SLF001
        #: By length of the own log and of the origin's: the changes since then.
        self._changes: dict[tuple[int, int], CapacityChange] = {}
        #: What is free on all open nodes together, by row; None: not known.
        self._sums: Ints | None = None
        #: Marks the arrays that no other capacity shares.
        self._owner = object()
        #: The time that it is the capacity of, if later than soon: tasks that end by then are gone.
        self.at: Micros | None = None if origin is None else origin.at
        #: The tasks that rules ask about. None, as on the empty cluster: no rule applies.
        placed = None if origin is None else origin.placed
        self.placed: PlacedTasks | None = None if placed is None else placed.fork()

    @property
    def free(self) -> Ints:
        if self._free is not None:
            return self._free
        return self.table.capacity if self._empty else self.table.free

    @property
    def partial(self) -> dict[int, dict[int, int]]:
        """By node: thousandths free on each device that is shared."""
        if self._partial is not None:
            return self._partial
        return {} if self._empty else self.table.partial

    def fork(self) -> "FreeCapacity":
        """A capacity to try changes on."""
        return FreeCapacity(self.table, self)

    def on(self, table: NodeTable) -> "FreeCapacity":
        """The same capacity of a fork of the table; both go on from the counts so far."""
        fork = FreeCapacity(table, empty=self._empty)
        fork._fits, fork._leftovers = self._fits.copy(), self._leftovers.copy()
        fork._log, fork._logged = self._log.copy(), self._logged
        fork.placed = None if self.placed is None else self.placed.fork()
        self._owner = object()
        return fork

    def note(self, nodes: Ints) -> None:
        """Record that these nodes have changed."""
        self._log.append(nodes)
        self._logged += len(nodes)
        self._sums = None
        self._changes.clear()

    def forget(self) -> None:
        """Drop everything that was counted."""
        self._fits.clear()
        self._leftovers.clear()
        self._changes.clear()
        self._sums = None
        self._log.clear()
        self._logged = 0

    @property
    def version(self) -> int:
        """Changes with every change of a fork."""
        return self._logged

    @property
    def is_worn(self) -> bool:
        """Whether counting anew is cheaper than including the changes."""
        return self._logged > 4 * len(self.table) + 1024

    def fit(self, request: TaskRequest) -> FitCounts:
        """How many tasks fit on each node."""
        if self._origin is not None and self._is_unchanged():
            return self._origin.fit(request)
        fit = self._fits.get(request)
        if fit is not None and fit.seen == self._logged:
            return fit
        if fit is None and self._origin is not None and not self._is_other_than(-1):
            fit = self._fits[request] = self._origin.fit(request).copy(-1, self._owner)
        elif fit is None or self._is_other_than(fit.seen):
            counts = self._count(request)
            fit = FitCounts(counts, int(counts.sum()), self._logged, self._owner)
            self._fits[request] = fit
        if fit.seen < self._logged:
            if fit.owner is not self._owner:
                fit = self._fits[request] = fit.copy(fit.seen, self._owner)
            changed = self._changed(fit.seen)
            fit.replace(changed.nodes, self._count(request, changed))
            fit.seen = self._logged
        return fit

    def _left_after(self, request: TaskRequest) -> Leftovers:
        if self._origin is not None and self._is_unchanged():
            return self._origin._left_after(request)  # noqa: SLF001
        counts = self.fit(request).counts
        left = self._leftovers.get(request)
        if left is not None and left.sizes is not self.table.sizes:
            left = None
        if left is not None and left.seen == self._logged:
            return left
        if left is None and self._origin is not None and not self._is_other_than(-1):
            known = self._origin._left_after(request)  # noqa: SLF001
            left = self._leftovers[request] = known.copy(-1, self._owner)
        elif left is None or self._is_other_than(left.seen):
            amounts = self.leftover(request, slice(None))
            least = np.empty(len(amounts) // BLOCK)
            left = Leftovers(amounts, least, self._logged, self._owner, self.table.sizes)
            left.find_least(counts, slice(None))
            self._leftovers[request] = left
        if left.seen < self._logged:
            if left.owner is not self._owner:
                left = self._leftovers[request] = left.copy(left.seen, self._owner)
            changed = self._changed(left.seen)
            left.amounts[changed.nodes] = self.leftover(request, changed.nodes, changed.free)
            left.find_least(counts, changed.blocks)
            left.seen = self._logged
        return left

    def total_fit(self, request: TaskRequest) -> int:
        """How many tasks fit in all; where they fit is counted only if that is known already."""
        at_hand = self._origin is None or request in self._fits or self._is_unchanged()
        if self._origin is None or at_hand or self._is_other_than(-1):
            return self.fit(request).total
        changed = self._changed(-1)
        seen, total = self._totals.get(request, (None, 0))
        if seen is not changed:
            known = self._origin.fit(request)
            counts = self._count(request, changed)
            total = known.total + int(counts.sum() - known.counts[changed.nodes].sum())
            self._totals[request] = (changed, total)
        return total

    def most_fit(self, request: TaskRequest, domains: str | None) -> int:
        """How many tasks fit in the domain that holds most of them; without a label, in all."""
        if domains is None:
            return self.total_fit(request)
        return self.fit(request).most_in_domain(domains, self.table)

    def fullest(self, request: TaskRequest, wanted: int) -> tuple[Ints, Ints]:
        """The nodes with the least left after so many tasks, and the number of tasks on each."""
        fitting = self.fit(request).counts
        if request not in self._leftovers:
            nodes = np.flatnonzero(fitting)
            if self.is_few(nodes):
                return fill(nodes, fitting[nodes], self.leftover(request, nodes), wanted)
        left = self._left_after(request)
        order = np.argsort(left.least, kind="stable")
        blocks = 1
        while True:
            nodes = (order[:blocks, None] * BLOCK + _IN_BLOCK).ravel()
            nodes = nodes[fitting[nodes] > 0]
            chosen, counts = fill(nodes, fitting[nodes], left.amounts[nodes], wanted)
            enough = blocks >= len(order)
            if not enough and len(chosen) and int(counts.sum()) == wanted:
                # No node of the other blocks has less left than the last one that was chosen.
                enough = bool(left.amounts[chosen[-1]] <= left.least[order[blocks]])
            if enough:
                return chosen, counts
            blocks *= 4

    def _is_other_than(self, since: int) -> bool:
        """Whether so many nodes have changed that counting all of them is cheaper."""
        return len(self.table) <= _FEW_NODES or self._logged - since > len(self.table) // 4

    def is_few(self, nodes: Ints) -> bool:
        """Whether counting these nodes is cheaper than keeping counts of all."""
        return len(nodes) <= len(self.table) // 8

    def count_at(self, request: TaskRequest, nodes: Ints) -> Ints:
        """How many tasks fit on each of a few nodes."""
        vector, mask = self.table.vector(request.resources), self.table.mask(request)
        return count(vector, self.free[:, nodes], self.partial, mask[nodes], nodes)

    def _is_unchanged(self) -> bool:
        """Whether a fork and its origin are still equal."""
        origin = self._origin
        return not self._logged and (origin is None or origin.version <= self._forked_at)

    def _logged_since(self, length: int) -> list[Ints]:
        """The nodes logged after that length of the log."""
        found: list[Ints] = []
        left = self._logged - length
        for nodes in reversed(self._log):
            if left <= 0:
                break
            found.append(nodes)
            left -= len(nodes)
        return found

    def _changed(self, since: int) -> CapacityChange:
        """Nodes logged after that length of the log; with -1, those that differ from the origin."""
        origin = self._origin if since < 0 else None
        key = since, 0 if origin is None else origin.version
        known = self._changes.get(key)
        if known is None:
            others = () if origin is None else origin._logged_since(self._forked_at)  # noqa: SLF001
            logged = np.concatenate((_NO_NODES, *self._logged_since(max(since, 0)), *others))
            if len(logged) <= _FEW_CHANGES:
                nodes = np.array(sorted({*logged.tolist()}), np.int64)
                blocks = np.array(sorted({node // BLOCK for node in nodes.tolist()}), np.int64)
            else:
                marks = np.zeros(self.free.shape[1], np.bool_)
                marks[logged] = True
                nodes = np.flatnonzero(marks)
                blocks = np.flatnonzero(marks.reshape(-1, BLOCK).any(axis=1))
            known = self._changes[key] = CapacityChange(nodes, blocks, self.free[:, nodes])
        return known

    def _count(self, request: TaskRequest, changed: CapacityChange | None = None) -> Ints:
        """How many tasks fit on each node, or on each of those that have changed."""
        vector, mask = self.table.vector(request.resources), self.table.mask(request)
        if changed is None:
            return count(vector, self.free, self.partial, mask)
        nodes = changed.nodes
        return count(vector, changed.free, self.partial, mask[nodes], nodes)

    def leftover(
        self,
        request: TaskRequest,
        at: Ints | slice,
        free: Ints | None = None,
        *,
        spread: bool = False,
    ) -> Floats:
        """What the first task of a request leaves free on each of these nodes, as a score. `free`
        is what is free on them, where that is known.

        GPUs that the task strands count most. For tasks without GPUs, idle GPUs count more than all
        other resources together.
        """
        vector, sizes = self.table.vector(request.resources), self.table.divisors
        free = self.free[:, at] if free is None else free
        left = np.zeros(free.shape[1])
        for row, amount in vector.measured or ((0, 0),):
            left += (free[row] - amount) / sizes[row, at]
        gpus = self.table.rows.get(GPU)
        if gpus is not None and gpus not in vector.rows:
            idle = _GPU_WEIGHT * free[gpus] / sizes[gpus, at]
            left += -idle if spread else idle
        if gpus is not None and not spread:
            self._add_stranded(left, vector, free)
            if vector.fraction:
                left += _STRANDED_WEIGHT * self._breaking(vector, at)
        return left

    def _add_stranded(self, left: Floats, vector: Vector, free: Ints) -> None:
        """Add how many more GPUs of each node would be useless after one task: by the means of the
        cluster, too little of the other resources would be left for them.

        Heuristic: only the resources that the task requests count.
        """
        gpus = self.table.rows[GPU]
        amount = next((n for row, n in vector.measured if row == gpus), 0)
        before = after = None
        for row, n in vector.measured:
            if row != gpus:
                mean = self.table.mean_per_gpu(row)
                without = free[gpus] - free[row] / mean
                with_task = without + (n / mean - amount)
                before = without if before is None else np.maximum(before, without)
                after = with_task if after is None else np.maximum(after, with_task)
        if before is None or after is None:
            return
        stranded = np.maximum(after, 0, out=after)
        stranded -= np.maximum(before, 0, out=before)
        left += np.rint(stranded, out=stranded) * (_STRANDED_WEIGHT / DEVICE)

    def _breaking(self, vector: Vector, at: Ints | slice) -> Floats:
        """What a task that shares a GPU costs on each node: less where a shared GPU has enough
        left, and the least where it has no more than that."""
        partial, fraction = self.partial, vector.fraction
        cost = np.full(self.free[0, at].shape, _BREAKING + _REMAINDER * (1 - fraction / DEVICE))
        nodes = np.arange(self.free.shape[1]) if isinstance(at, slice) else at
        for n in np.flatnonzero(np.isin(nodes, list(partial))).tolist():
            room = [left for left in partial[int(nodes[n])].values() if left >= fraction]
            if room:
                cost[n] = _REMAINDER * (min(room) - fraction) / DEVICE
        return cost

    def restriction(self, request: TaskRequest) -> Restriction | None:
        """Where the rules between tasks allow one more task; None: everywhere."""
        if self.placed is None or request.traits is None:
            return None
        return self.placed.restriction(request.traits, self.table)

    # Changing a fork

    def _writable(self) -> tuple[Ints, dict[int, dict[int, int]]]:
        if self._free is None or self._partial is None:
            raise AssertionError("bug: the capacity of a table was changed; fork it first")
        return self._free, self._partial

    def take(
        self, vector: Vector, nodes: Ints, counts: Ints, traits: Hashable = None
    ) -> TakenCapacity:
        """Let so many tasks occupy each of the nodes, which are distinct."""
        free, _ = self._writable()
        shared: dict[int, list[int]] = {}
        if vector.fraction:
            for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
                shared[node] = self._share(node, vector.fraction, count)
        free[vector.rows[:, None], nodes] -= vector.amounts[:, None] * counts
        self.note(nodes)
        if traits is not None:
            self._place(traits, nodes, counts)
        return TakenCapacity(vector, nodes, counts, shared, traits)

    def _place(self, traits: Hashable, nodes: Ints, counts: Ints) -> None:
        """Add tasks to those that rules ask about."""
        if self.placed is not None:
            for node, tasks in zip(nodes.tolist(), counts.tolist(), strict=True):
                self.placed.place(traits, node, tasks)

    def give_back(self, taken: TakenCapacity) -> None:
        free, _ = self._writable()
        vector, nodes = taken.vector, taken.nodes
        free[vector.rows[:, None], nodes] += vector.amounts[:, None] * taken.counts
        for node, devices in taken.shared.items():
            # Other tasks may have come and gone on these devices in between.
            for device in devices:
                self._unshare(node, vector.fraction, (device,))
        self.note(nodes)
        if taken.traits is not None:
            self._place(taken.traits, nodes, -taken.counts)

    def _share(self, node: int, fraction: int, count: int) -> list[int]:
        """Put tasks on the fullest shared devices that have room, then on whole ones."""
        free, partial = self._writable()
        pieces = dict(partial.get(node, {}))
        devices = []
        for _ in range(count):
            room = [(left, n) for n, left in pieces.items() if left >= fraction]
            if room:
                device = min(room)[1]
                pieces[device] -= fraction
            else:
                # Which of the whole devices it is does not matter, so it gets a negative number.
                device = min(-1, min(pieces, default=0) - 1)
                pieces[device] = DEVICE - fraction
                free[self.table.rows[WHOLE], node] -= 1
            devices.append(device)
        partial[node] = pieces
        return devices

    def vacate(self, occupants: Iterable[Occupant], sign: int = 1) -> None:
        """Free what these tasks occupy; with -1, occupy it again."""
        free, _ = self._writable()
        by_vector: dict[int, tuple[Vector, list[int]]] = {}
        for node, vector, devices, traits in occupants:
            by_vector.setdefault(id(vector), (vector, []))[1].append(node)
            if vector.fraction:
                self._unshare(node, sign * vector.fraction, devices)
            if traits is not None and self.placed is not None:
                self.placed.place(traits, node, -sign)
        for vector, nodes in by_vector.values():
            at = np.array(nodes, np.int64)
            np.add.at(free, (vector.rows[:, None], at), sign * vector.amounts[:, None])
            self.note(at)

    def vacate_groups(self, groups: Iterable[OccupantGroup], sign: int = 1) -> None:
        """Free what these tasks occupy; with -1, occupy it again. They share no devices, and no
        rule asks about them."""
        free, _ = self._writable()
        for vector, nodes, counts in groups:
            free[vector.rows[:, None], nodes] += sign * vector.amounts[:, None] * counts
            self.note(nodes)

    def has_free(self, amounts: Ints) -> bool:
        """Whether these amounts, given by row and node, are free."""
        return not np.count_nonzero(amounts > np.maximum(self.free, 0))

    def _unshare(self, node: int, fraction: int, devices: tuple[int, ...]) -> None:
        """Free a fraction of devices. A device that is not listed is full, or whole if the fraction
        is negative."""
        free, partial = self._writable()
        pieces = dict(partial.get(node, {}))
        for device in devices:
            left = pieces.pop(device, 0 if fraction > 0 else DEVICE)
            free[self.table.rows[WHOLE], node] -= left >= DEVICE
            left += fraction
            if left >= DEVICE:
                free[self.table.rows[WHOLE], node] += 1
            else:
                pieces[device] = left
        partial[node] = pieces

    def release(self, amounts: Ints) -> None:
        """Free these amounts, given by row and node; negative ones are taken. The tasks take a slot
        each, share no devices, and no rule asks about them."""
        free, _ = self._writable()
        free[: len(amounts)] += amounts
        self.note(amounts[0].nonzero()[0])

    def free_in_sum(self) -> Ints:
        """What is free on all open nodes together, by row."""
        if self._sums is None:
            self._sums = np.maximum(self.free[:, self.table.open], 0).sum(axis=1)
        return self._sums

    def utilization(self) -> Floats:
        """The allocated share of each node's resources, summed over the resources."""
        capacity = self.table.capacity[1:]
        taken = np.where(capacity > 0, (capacity - self.free[1:]) / np.maximum(capacity, 1), 0.0)
        utilization: Floats = taken.sum(axis=0)
        return utilization


def count(
    vector: Vector,
    free: Ints,
    partial: Mapping[int, Mapping[int, int]],
    mask: Bools,
    nodes: Ints | None = None,
) -> Ints:
    """How many tasks fit on each of the nodes, or on every node."""
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


def groups_of_occupants(occupants: Iterable[Occupant]) -> list[OccupantGroup]:
    """The tasks of each vector, those on one node together."""
    by_vector: dict[int, tuple[Vector, dict[int, int]]] = {}
    for node, vector, *_ in occupants:
        counts = by_vector.setdefault(id(vector), (vector, {}))[1]
        counts[node] = counts.get(node, 0) + 1
    return [
        OccupantGroup(vector, np.array([*counts], np.int64), np.array([*counts.values()], np.int64))
        for vector, counts in by_vector.values()
    ]


def fill(nodes: Ints, counts: Ints, left: Floats, wanted: int) -> tuple[Ints, Ints]:
    """Fill the nodes with the least left. Once a node has been chosen, it stays the best."""
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
