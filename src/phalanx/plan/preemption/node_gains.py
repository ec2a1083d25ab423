"""Where victims would let tasks in: on each node, after which of them how many more fit."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from phalanx.core.node import DEVICE
from phalanx.plan.model import RoleRequest
from phalanx.plan.preemption.candidates import EvictionUnit
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.nodes import WHOLE, Bools, Floats, Ints


class Sought(NamedTuple):
    """The tasks of a part that have no place yet."""

    part: RoleRequest
    counts: Ints  #: by node: how many fit as it is
    allowed: Bools  #: the nodes that may be used
    missing: int


def openings(
    units: Sequence[EvictionUnit],
    chosen: Mapping[int, EvictionUnit],
    view: FreeCapacity,
    sought: Sought,
) -> Iterator[tuple[int, list[int]]]:
    """On each node the units in order of cost: after which of them do more tasks fit?

    Yields how many, and the numbers of the units, the cheapest openings first.
    """
    vector = view.table.vector(sought.part.request.resources)
    left = [(n, unit) for n, unit in enumerate(units) if n not in chosen]
    nodes, owner, amounts = _places(left, vector.rows, sought.allowed)
    if not len(nodes):
        return
    begins = np.flatnonzero(np.r_[True, nodes[1:] != nodes[:-1]])
    free = view.free[vector.rows][:, nodes].T

    def fits(room: Ints | Floats) -> Ints:
        counted: Ints = np.maximum((room // vector.amounts).min(axis=1), 0).astype(np.int64)
        most = sought.part.request.per_node
        return counted if most is None else np.minimum(counted, most)

    wholes = np.array([unit.whole for unit in units])[owner]
    # Who goes whole after tasks of its own went leaves their places only once.
    gone = _surplus(chosen.values(), vector.rows)
    going = _surplus(units, vector.rows)
    more, once = amounts.copy(), amounts.copy()
    for at in np.flatnonzero(wholes).tolist() if going else ():
        key = (units[owner[at]].occupancy.gang.job, int(nodes[at]))
        more[at] -= going.get(key, 0)
        once[at] -= gone.get(key, 0)
    whole = np.flatnonzero(vector.rows == view.table.rows.get(WHOLE))
    if len(whole):
        after, itself = _devices(units, nodes, owner, view)
        more[:, whole[0]] += after
        once[:, whole[0]] += itself
    together = fits(_running_sums(more, begins) + free)
    before = np.r_[0, together[:-1]]
    before[begins] = sought.counts[nodes[begins]]
    cost = np.array([unit.cost for unit in units])[owner]
    costs = _running_sums(cost[:, None], begins)[:, 0]
    firsts = np.repeat(begins, np.diff(np.r_[begins, len(nodes)]))
    # One of them may be enough by itself.
    alone = fits(once + free) - sought.counts[nodes]
    enough = np.flatnonzero((alone >= sought.missing) & (firsts < np.arange(len(nodes))))
    opens = np.flatnonzero(together > before)
    gains = np.r_[(together - before)[opens], alone[enough]]
    costs, firsts = np.r_[costs[opens], cost[enough]], np.r_[firsts[opens], enough]
    lasts = np.r_[opens, enough]
    priorities = np.array([unit.priority for unit in units])[owner[lasts]]
    best = np.lexsort((owner[lasts], costs, priorities, wholes[lasts]))
    for at in best.tolist():
        yield int(gains[at]), owner[firsts[at] : lasts[at] + 1].tolist()


def _places(
    units: Sequence[tuple[int, EvictionUnit]], rows: Ints, allowed: Bools
) -> tuple[Ints, Ints, Ints]:
    """Node by node the units that have places there, and what they leave of the given rows."""
    if not units:
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, nothing
    nodes = np.concatenate([unit.nodes for _, unit in units])
    owner = np.repeat([n for n, _ in units], [len(unit.positions) for _, unit in units])
    amounts = np.concatenate([unit.freed for _, unit in units])[:, rows]
    inside = np.flatnonzero(allowed[nodes])
    order = inside[np.argsort(nodes[inside], kind="stable")]
    nodes, owner, amounts = nodes[order], owner[order], amounts[order]
    if not len(nodes):
        return nodes, owner, amounts
    firsts = np.flatnonzero(np.r_[True, (nodes[1:] != nodes[:-1]) | (owner[1:] != owner[:-1])])
    return nodes[firsts], owner[firsts], np.add.reduceat(amounts, firsts)


def _devices(
    units: Sequence[EvictionUnit], nodes: Ints, owner: Ints, view: FreeCapacity
) -> tuple[Ints, Ints]:
    """How many devices become whole that units share: after all before them, and without those."""
    after, itself = np.zeros((2, len(nodes)), np.int64)
    taken: dict[tuple[int, int], int] = {}
    shares = np.array([unit.occupancy.has_fractions for unit in units])
    for at in np.flatnonzero(shares[owner]).tolist():
        node = int(nodes[at])
        pieces = view.partial.get(node, {})
        freed: dict[int, int] = {}
        for spot, vector, devices in units[owner[at]].occupants():
            if spot == node and vector.fraction:
                for device in devices:
                    freed[device] = freed.get(device, 0) + vector.fraction
        for device, amount in freed.items():
            used = DEVICE - pieces.get(device, 0)
            left = taken.get((node, device), used)
            taken[node, device] = left - amount
            after[at] += left > 0 >= left - amount
            itself[at] += used == amount
    return after, itself


def _surplus(units: Iterable[EvictionUnit], rows: Ints) -> dict[tuple[str, int], Ints]:
    """By gang and node: what those of its tasks leave that go without the rest."""
    left: dict[tuple[str, int], Ints] = {}
    for unit in units:
        if not unit.whole:
            for node, freed in zip(unit.nodes.tolist(), unit.freed, strict=True):
                key = (unit.occupancy.gang.job, node)
                left[key] = left.get(key, 0) + freed[rows]
    return left


def _running_sums(values: Ints | Floats, begins: Ints) -> Floats:
    """Sums down the columns that begin anew at each of the given lines."""
    sums = np.cumsum(values, axis=0)
    before = np.zeros((len(begins), values.shape[1]), sums.dtype)
    before[1:] = sums[begins[1:] - 1]
    lengths = np.diff(np.r_[begins, len(values)])
    return np.asarray(sums - np.repeat(before, lengths, axis=0), np.float64)
