"""The nodes as columns of integers, so that a question about all of them is a few array operations.

A node keeps its position for as long as it is known. Row 0 counts tasks: a node without a limit has
more slots than anybody asks for. Where there are GPUs, one row counts the devices that are whole.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.core.node import DEVICE, GPU
from phalanx.plan.model import TaskRequest

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

SLOTS = "slots"
WHOLE = "gpu:whole"
#: Nodes are looked at in blocks of so many; all columns are whole blocks long.
BLOCK = 256
#: Slots of a node that limits nothing.
UNLIMITED = 1 << 40


class Vector(NamedTuple):
    """An amount of several resources, by row."""

    rows: Ints
    amounts: Ints
    fraction: int  #: thousandths of one device, if it shares one
    whole: int  #: the row of whole devices, if it shares one
    bounds: tuple[tuple[int, int], ...]  #: rows and amounts that decide how many fit
    measured: tuple[tuple[int, int], ...]  #: rows and amounts that it was asked for in


class NodeSpec(NamedTuple):
    """A node as it is told to the table."""

    resources: Mapping[str, int]
    used: Mapping[str, int]
    labels: Mapping[str, str]
    slots: int | None = None
    occupants: int = 0
    open: bool = True
    #: Thousandths free on each device that is not whole, by its index.
    partial: Mapping[int, int] = {}


class NodeTable:
    def __init__(self) -> None:
        self.names: list[str | None] = []
        self.index: dict[str, int] = {}
        self.rows: dict[str, int] = {SLOTS: 0}
        self.capacity: Ints = np.zeros((1, 0), np.int64)
        self.free: Ints = np.zeros((1, 0), np.int64)
        self.open: Bools = np.zeros(0, np.bool_)
        #: By node: thousandths free on each device that is shared.
        self.partial: dict[int, dict[int, int]] = {}
        self._labels: list[Mapping[str, str]] = []
        self._masks: dict[tuple[tuple[str, str], ...], Bools] = {}
        self._domains: dict[str, tuple[Ints, list[str]]] = {}
        self._vectors: dict[tuple[tuple[str, int], ...], Vector] = {}
        self._vacant: list[int] = []

    def __len__(self) -> int:
        return len(self.names)

    # Writing

    def put(self, name: str, machine: NodeSpec) -> int:
        """Take a node in, or a new version of one; its position."""
        at = self.index.get(name)
        if at is None:
            at = self._position(name)
        for resource in (*machine.resources, *machine.used):
            self.row(resource)
        self.capacity[:, at] = 0
        self.free[:, at] = 0
        for resource, amount in machine.resources.items():
            self.capacity[self.rows[resource], at] = self.free[self.rows[resource], at] = amount
        for resource, amount in machine.used.items():
            self.free[self.rows[resource], at] -= amount
        slots = UNLIMITED if machine.slots is None else machine.slots
        self.capacity[0, at] = slots
        self.free[0, at] = slots - machine.occupants
        self._put_devices(at, machine)
        self.open[at] = machine.open
        self._relabel(at, machine.labels)
        return at

    def _put_devices(self, at: int, machine: NodeSpec) -> None:
        self.partial.pop(at, None)
        if GPU not in self.rows:
            return
        gpus = machine.resources.get(GPU, 0) // DEVICE
        self.capacity[self.rows[WHOLE], at] = gpus
        shared = sum(DEVICE - left for left in machine.partial.values())
        whole = gpus - len(machine.partial) - (machine.used.get(GPU, 0) - shared) // DEVICE
        self.free[self.rows[WHOLE], at] = whole
        if machine.partial:
            self.partial[at] = dict(machine.partial)

    def remove(self, name: str) -> int:
        at = self.index.pop(name)
        self.names[at] = None
        self.open[at] = False
        self.capacity[:, at] = 0
        self.free[:, at] = 0
        self.partial.pop(at, None)
        self._relabel(at, {})
        self._vacant.append(at)
        return at

    def _position(self, name: str) -> int:
        if self._vacant:
            at = self._vacant.pop()
            self.names[at] = name
        else:
            at = len(self.names)
            self.names.append(name)
            self._labels.append({})
            if at >= self.free.shape[1]:
                self._grow(max(BLOCK, 2 * at))
        self.index[name] = at
        return at

    def _grow(self, size: int) -> None:
        more = size - self.free.shape[1]
        self.capacity = np.pad(self.capacity, ((0, 0), (0, more)))
        self.free = np.pad(self.free, ((0, 0), (0, more)))
        self.open = np.pad(self.open, (0, more))
        self._masks = {key: np.pad(mask, (0, more)) for key, mask in self._masks.items()}
        self._domains = {
            label: (np.pad(codes, (0, more), constant_values=-1), values)
            for label, (codes, values) in self._domains.items()
        }

    def row(self, resource: str) -> int:
        """The row of a resource; nodes that never heard of it have none of it."""
        row = self.rows.get(resource)
        if row is None:
            row = self.rows[resource] = len(self.rows)
            self.capacity = np.pad(self.capacity, ((0, 1), (0, 0)))
            self.free = np.pad(self.free, ((0, 1), (0, 0)))
            if resource == GPU:
                self.row(WHOLE)
        return row

    def _relabel(self, at: int, labels: Mapping[str, str]) -> None:
        self._labels[at] = labels
        for selector, mask in self._masks.items():
            mask[at] = self._matches(at, selector)
        for label, (codes, values) in self._domains.items():
            codes[at] = _code(values, labels.get(label))

    # Reading

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
            # As many whole devices as it takes have all the GPU it takes.
            implied = self.rows[GPU] if whole in rows[1:] else None
            bounds = tuple(each for each in taken if each[0] != implied)
            arrays = np.array(rows), np.array(amounts, np.int64)
            known = self._vectors[resources] = Vector(*arrays, fraction, whole, bounds, measured)
        return known

    def mask(self, ask: TaskRequest) -> Bools:
        """The nodes that are open and have the labels that are asked for."""
        mask = self._masks.get(ask.selector)
        if mask is None:
            mask = self.open.copy()
            for at in range(len(self.names)) if ask.selector else ():
                mask[at] = self._matches(at, ask.selector)
            self._masks[ask.selector] = mask
        return mask

    def _matches(self, at: int, selector: tuple[tuple[str, str], ...]) -> bool:
        labels = self._labels[at]
        return bool(self.open[at]) and all(labels.get(key) == value for key, value in selector)

    def labels(self, at: int) -> Mapping[str, str]:
        return self._labels[at]

    def domains(self, label: str) -> tuple[Ints, list[str]]:
        """For each node the number of its domain, -1 if it is in none; and the domains' names."""
        known = self._domains.get(label)
        if known is None:
            values: list[str] = []
            codes = np.full(self.open.shape, -1, np.int64)
            for at, labels in enumerate(self._labels):
                codes[at] = _code(values, labels.get(label))
            known = self._domains[label] = (codes, values)
        return known

    def name(self, at: int) -> str:
        name = self.names[at]
        if name is None:
            raise AssertionError(f"bug: node {at} was removed")
        return name


def _code(values: list[str], value: str | None) -> int:
    if value is None:
        return -1
    if value not in values:
        values.append(value)
    return values.index(value)
