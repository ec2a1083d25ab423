"""The nodes as columns of integers, so that a question about all of them is a few array operations.

A node keeps its position for as long as it is known. Row 0 counts tasks: a node without a limit has
more slots than any gang requests. Where there are GPUs, one row counts the devices that are whole.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from phalanx.core.node import DEVICE, GPU
from phalanx.plan.model import NodeFacts, NodePredicate, NodePreference, NodeTaint, TaskRequest

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

T = TypeVar("T", bound=np.generic)

SLOTS = "slots"
WHOLE = "gpu:whole"
#: Nodes are searched in blocks of this size; the length of a column is a multiple of it.
BLOCK = 256
#: Slots of a node without a limit.
UNLIMITED = 1 << 40
#: Fair shares are real numbers; a smaller difference between two amounts does not count.
EPSILON = 1e-6


class Vector(NamedTuple):
    """An amount of several resources, by row."""

    rows: Ints
    amounts: Ints
    fraction: int  #: thousandths of one device, if it shares one
    whole: int  #: the row of whole devices, if it shares one
    bounds: tuple[tuple[int, int], ...]  #: rows and amounts that decide how many fit
    measured: tuple[tuple[int, int], ...]  #: rows and amounts of the requested resources


class NodeSpec(NamedTuple):
    """What the table has to know about a node. Its mappings are not changed any more."""

    resources: Mapping[str, int]
    used: Mapping[str, int]
    labels: Mapping[str, str]
    slots: int | None = None
    occupants: int = 0
    closed: str = ""  #: why it takes no tasks; empty if it does
    #: Thousandths free on each device that is not whole, by its index.
    partial: Mapping[int, int] = {}
    taints: tuple[NodeTaint, ...] = ()
    #: Amounts of the resources that queues do not share, because others use them.
    unshared: Mapping[str, int] = {}

    @property
    def lasting(self) -> tuple[object, ...]:
        """All that tasks do not change by coming and going."""
        return self.resources, self.labels, self.slots, self.closed, self.taints, self.unshared


_NO_NODE = NodeFacts("")


class NodeTable:
    def __init__(self) -> None:
        self.names: list[str | None] = []
        self.index: dict[str, int] = {}
        self.rows: dict[str, int] = {SLOTS: 0}
        self.capacity: Ints = np.zeros((1, 0), np.int64)
        self.free: Ints = np.zeros((1, 0), np.int64)
        self.open: Bools = np.zeros(0, np.bool_)
        #: By node that is not open: why.
        self.closed: dict[int, str] = {}
        #: By node: thousandths free on each device that is shared.
        self.partial: dict[int, dict[int, int]] = {}
        #: By node: amounts that queues do not share.
        self._unshared: dict[int, Mapping[str, int]] = {}
        self._facts: list[NodeFacts] = []
        #: By node: the lasting part of its specification.
        self._lasting: dict[int, tuple[object, ...]] = {}
        self._vacant: list[int] = []
        #: A fork shares all of the above.
        self._shared = False
        #: Computed from the above on demand. The arrays are replaced and never changed.
        self._masks: dict[NodePredicate | None, Bools] = {}
        self._penalties: dict[NodePreference, Floats] = {}
        self._domains: dict[str, tuple[Ints, dict[str, int]]] = {}
        self._vectors: dict[tuple[tuple[str, int], ...], Vector] = {}
        #: By request, number of tasks and number of rows: what so many tasks take.
        self._amounts: dict[tuple[TaskRequest, int, int], Floats] = {}
        #: Replaced when the capacity of a node changes, or whether it takes tasks.
        self.sizes = object()
        #: By row: its mean amount for each thousandth of a GPU.
        self._means: dict[int, float] = {}
        self._divisors: Floats | None = None

    def __len__(self) -> int:
        return len(self.names)

    def fork(self) -> "NodeTable":
        """An equal table. Later changes of either one do not show in the other."""
        self._shared = True
        fork = NodeTable.__new__(NodeTable)
        vars(fork).update(vars(self))
        fork._masks = self._masks.copy()  # noqa: SLF001
        fork._penalties = self._penalties.copy()  # noqa: SLF001
        fork._domains = self._domains.copy()  # noqa: SLF001
        fork._vectors = self._vectors.copy()  # noqa: SLF001
        fork._amounts = self._amounts.copy()  # noqa: SLF001
        fork._means = {}  # noqa: SLF001
        return fork

    # Writing

    def put(self, name: str, spec: NodeSpec) -> int:
        """Add a node, or replace it by a new version; returns its position."""
        self._own()
        at = self.index.get(name)
        if at is None:
            at = self._position(name)
        self._lasting[at] = spec.lasting
        for resource in (*spec.resources, *spec.used, *spec.unshared):
            self.row(resource)
        size = (self.capacity[:, at].tobytes(), bool(self.open[at]))
        self.capacity[:, at] = 0
        for resource, amount in spec.resources.items():
            self.capacity[self.rows[resource], at] = amount
        self.capacity[0, at] = UNLIMITED if spec.slots is None else spec.slots
        if GPU in self.rows:
            self.capacity[self.rows[WHOLE], at] = spec.resources.get(GPU, 0) // DEVICE
        self._put_free(at, spec)
        self.closed.pop(at, None)
        if spec.closed:
            self.closed[at] = spec.closed
        self._unshared.pop(at, None)
        if spec.unshared:
            self._unshared[at] = spec.unshared
        facts = NodeFacts(name, spec.labels, spec.taints)
        self._describe(at, facts, is_open=not spec.closed)
        if size != (self.capacity[:, at].tobytes(), bool(self.open[at])):
            self._resize()
        return at

    def put_use(self, name: str, spec: NodeSpec) -> int | None:
        """Replace what tasks use of a node; its position. None, and nothing is done, if the node is
        new or anything else about it has changed."""
        at = self.index.get(name)
        if at is None or self._lasting[at] != spec.lasting:
            return None
        self._own()
        for resource in spec.used:
            self.row(resource)
        self._put_free(at, spec)
        return at

    def _put_free(self, at: int, spec: NodeSpec) -> None:
        self.free[:, at] = self.capacity[:, at]
        for resource, amount in spec.used.items():
            self.free[self.rows[resource], at] -= amount
        self.free[0, at] -= spec.occupants
        self.partial.pop(at, None)
        if GPU in self.rows:
            shared = sum(DEVICE - left for left in spec.partial.values())
            whole = len(spec.partial) + (spec.used.get(GPU, 0) - shared) // DEVICE
            self.free[self.rows[WHOLE], at] -= whole
            if spec.partial:
                self.partial[at] = dict(spec.partial)

    def _resize(self) -> None:
        """Forget what was computed from the capacity of the nodes."""
        self.sizes, self._means, self._divisors = object(), {}, None

    def remove(self, name: str) -> int:
        self._own()
        self._resize()
        at = self.index.pop(name)
        self.names[at] = None
        self.capacity[:, at] = 0
        self.free[:, at] = 0
        self.partial.pop(at, None)
        self.closed.pop(at, None)
        self._unshared.pop(at, None)
        del self._lasting[at]
        self._describe(at, _NO_NODE, is_open=False)
        self._vacant.append(at)
        return at

    def _own(self) -> None:
        """Copy what a fork shares, before the first change."""
        if self._shared:
            self._shared = False
            self.names, self.index = self.names.copy(), self.index.copy()
            self.rows, self.partial = self.rows.copy(), self.partial.copy()
            self.capacity, self.free = self.capacity.copy(), self.free.copy()
            self.open, self.closed = self.open.copy(), self.closed.copy()
            self._unshared, self._lasting = self._unshared.copy(), self._lasting.copy()
            self._facts, self._vacant = self._facts.copy(), self._vacant.copy()

    def _position(self, name: str) -> int:
        if self._vacant:
            at = self._vacant.pop()
            self.names[at] = name
        else:
            at = len(self.names)
            self.names.append(name)
            self._facts.append(_NO_NODE)
            if at >= self.free.shape[1]:
                self._grow(at + max(BLOCK, at // 4 // BLOCK * BLOCK))
        self.index[name] = at
        return at

    def _grow(self, size: int) -> None:
        more, self._divisors = size - self.free.shape[1], None
        self.capacity = np.pad(self.capacity, ((0, 0), (0, more)))
        self.free = np.pad(self.free, ((0, 0), (0, more)))
        self.open = np.pad(self.open, (0, more))
        self._masks = {key: np.pad(mask, (0, more)) for key, mask in self._masks.items()}
        self._penalties = {key: np.pad(each, (0, more)) for key, each in self._penalties.items()}
        self._domains = {
            label: (np.pad(codes, (0, more), constant_values=-1), values)
            for label, (codes, values) in self._domains.items()
        }

    def row(self, resource: str) -> int:
        """The row of a resource; a new resource gets a row in which every node has none of it."""
        row = self.rows.get(resource)
        if row is None:
            self._own()
            row = self.rows[resource] = len(self.rows)
            self._divisors = None
            self.capacity = np.pad(self.capacity, ((0, 1), (0, 0)))
            self.free = np.pad(self.free, ((0, 1), (0, 0)))
            if resource == GPU:
                self.row(WHOLE)
        return row

    def _describe(self, at: int, facts: NodeFacts, *, is_open: bool) -> None:
        if self._facts[at] == facts and bool(self.open[at]) == is_open:
            return
        self._facts[at], self.open[at] = facts, is_open
        for predicate, mask in self._masks.items():
            self._masks[predicate] = _replaced(mask, at, self._matches(at, predicate))
        for preference, penalties in self._penalties.items():
            self._penalties[preference] = _replaced(penalties, at, preference.penalty(facts))
        for label, (codes, values) in self._domains.items():
            codes_by_name = values.copy()
            code = _code(codes_by_name, facts.labels.get(label))
            self._domains[label] = (_replaced(codes, at, code), codes_by_name)

    # Reading

    @property
    def computed(self) -> int:
        """How many answers about requests and labels are kept."""
        about_nodes = len(self._masks) + len(self._penalties) + len(self._domains)
        return len(self._vectors) + len(self._amounts) + about_nodes

    def vector(self, resources: tuple[tuple[str, int], ...]) -> Vector:
        """What one task with these resources takes: a slot, the amounts, and whole devices."""
        known = self._vectors.get(resources)
        if known is None:
            rows, amounts, fraction = [0], [1], 0
            for resource, amount in resources:
                if not amount:
                    continue
                rows.append(self.row(resource))
                amounts.append(amount)
                if resource == GPU and amount >= DEVICE:
                    rows.append(self.rows[WHOLE])
                    amounts.append(amount // DEVICE)
                elif resource == GPU:
                    fraction = amount
            whole = self.rows.get(WHOLE, 0)
            taken = tuple(zip(rows[1:], amounts[1:], strict=True))
            measured = tuple(each for each in taken if each[0] != whole)
            # Enough whole devices always have enough GPU.
            implied = self.rows[GPU] if whole in rows[1:] else None
            bounds = tuple(each for each in taken if each[0] != implied)
            arrays = np.array(rows), np.array(amounts, np.int64)
            known = self._vectors[resources] = Vector(*arrays, fraction, whole, bounds, measured)
        return known

    def amounts(self, request: TaskRequest, tasks: int) -> Floats:
        """What so many tasks take, by row. Not to be changed."""
        known = self._amounts.get((request, tasks, len(self.rows)))
        if known is None:
            vector = self.vector(request.resources)
            known = np.zeros(len(self.rows))
            known[vector.rows] = vector.amounts * tasks
            known.flags.writeable = False
            self._amounts[request, tasks, len(self.rows)] = known
        return known

    def mask(self, request: TaskRequest) -> Bools:
        """The nodes that are open and match the request's predicate."""
        return self.matching(request.nodes)

    def matching(self, predicate: NodePredicate | None) -> Bools:
        """The nodes that are open and match."""
        mask = self._masks.get(predicate)
        if mask is None:
            mask = self.open.copy()
            for at in range(len(self.names)) if predicate is not None else ():
                mask[at] = self._matches(at, predicate)
            self._masks[predicate] = mask
        return mask

    def _matches(self, at: int, predicate: NodePredicate | None) -> bool:
        return bool(self.open[at]) and (predicate is None or predicate.matches(self._facts[at]))

    def penalties(self, preference: NodePreference) -> Floats:
        """The penalty of each node."""
        penalties = self._penalties.get(preference)
        if penalties is None:
            penalties = np.zeros(self.open.shape)
            for at, facts in enumerate(self._facts):
                penalties[at] = preference.penalty(facts)
            self._penalties[preference] = penalties
        return penalties

    def facts(self, at: int) -> NodeFacts:
        return self._facts[at]

    def mean_per_gpu(self, row: int) -> float:
        """The amount of a resource that nodes with GPUs have for each thousandth of a GPU."""
        mean = self._means.get(row)
        if mean is None:
            with_gpus = self.open & (self.capacity[self.rows[GPU]] > 0)
            gpus = int(self.capacity[self.rows[GPU]].sum(where=with_gpus))
            amount = int(self.capacity[row].sum(where=with_gpus))
            mean = self._means[row] = max(amount, 1) / max(gpus, 1)
        return mean

    @property
    def divisors(self) -> Floats:
        """The capacity of every node, at least 1, to divide by."""
        if self._divisors is None:
            self._divisors = np.maximum(self.capacity, 1).astype(np.float64)
        return self._divisors

    def shared_capacity(self) -> Floats:
        """What the queues share of all open nodes, by row."""
        shared: Floats = self.capacity.sum(axis=1, where=self.open).astype(float)
        for at, amounts in self._unshared.items():
            for resource, amount in amounts.items() if self.open[at] else ():
                row = self.rows[resource]
                shared[row] -= min(amount, int(self.capacity[row, at]))
        return shared

    def domains(self, label: str) -> tuple[Ints, Mapping[str, int]]:
        """By node the number of its domain, -1 if it is in none; and that number by name."""
        known = self._domains.get(label)
        if known is None:
            values: dict[str, int] = {}
            codes = np.full(self.open.shape, -1, np.int64)
            for at, facts in enumerate(self._facts):
                codes[at] = _code(values, facts.labels.get(label))
            known = self._domains[label] = (codes, values)
        return known

    def most_in_domain(self, counts: Ints, label: str | None, nodes: Ints | None = None) -> int:
        """The number of tasks that fit in the domain that holds most of them, from the number that
        fit on each node, or on each of the given nodes. Without a label, in all of them."""
        if label is None:
            return int(counts.sum())
        codes, names = self.domains(label)
        codes = codes if nodes is None else codes[nodes]
        return int(places_by_domain(counts, codes, len(names)).max(initial=0))

    def name(self, at: int) -> str:
        name = self.names[at]
        if name is None:
            raise AssertionError(f"bug: node {at} was removed")
        return name


def places_by_domain(counts: Ints, codes: Ints, domains: int) -> Floats:
    """How many tasks fit in each domain, from the number that fit on each node."""
    nodes = np.flatnonzero(counts)
    if len(nodes) < len(counts) // 4:
        counts, codes = counts[nodes], codes[nodes]
    # Nodes without a label come before the first domain.
    places = np.bincount(codes + 1, weights=counts, minlength=domains + 1)
    return np.asarray(places[1:], np.float64)


def _replaced(array: NDArray[T], at: int, value: float) -> NDArray[T]:
    """A copy with one value replaced; plans and forks may hold the array itself."""
    copy = array.copy()
    copy[at] = value
    return copy


def _code(values: dict[str, int], value: str | None) -> int:
    return -1 if value is None else values.setdefault(value, len(values))
