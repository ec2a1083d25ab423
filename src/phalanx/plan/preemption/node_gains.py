"""Gains per node: after which evictions how many more tasks of a role fit on which node."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from phalanx.core.node import DEVICE
from phalanx.plan.model import RoleRequest
from phalanx.plan.preemption.candidates import CandidatePool, EvictionUnit
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.nodes import UNLIMITED, WHOLE, Bools, Floats, Ints, Vector


class UnplacedTasks(NamedTuple):
    """Tasks of a role that do not fit yet."""

    role: RoleRequest
    counts: Ints  #: by node: the number of tasks that fit now
    nodes: Bools  #: mask of the nodes that may be used
    missing: int


class NodeGain(NamedTuple):
    """More tasks fit on a node without these units."""

    tasks: int
    units: list[int]  #: numbers of the units to evict


class _Places(NamedTuple):
    """The places of units, node by node, and on each node in order of the units' cost."""

    nodes: Ints
    units: Ints  #: the number of the unit
    amounts: Ints  #: freed there, by the rows that the role requests
    starts: Ints  #: positions at which a new node begins


def node_gains(
    pool: CandidatePool,
    chosen: Mapping[int, EvictionUnit],
    capacity: FreeCapacity,
    unplaced: UnplacedTasks,
) -> Iterator[NodeGain]:
    """The gains that the remaining units can bring, the cheapest first.

    Heuristic: on each node the units are evicted in order of cost, and every point at which one
    more task fits is a gain. Besides, a single unit that is enough for all missing tasks is a gain
    without the cheaper units before it.
    """
    vector = capacity.table.vector(unplaced.role.request.resources)
    places = _places(pool, chosen, vector.rows, unplaced.nodes)
    nodes, owners, _, starts = places
    if not len(nodes):
        return
    free = capacity.free[vector.rows][:, nodes].T
    in_order, alone = _freed(places, pool, chosen, capacity, vector)
    fit_in_order = _tasks_that_fit(_running_sums(in_order, starts) + free, vector, unplaced.role)
    fit_before = np.r_[0, fit_in_order[:-1]]
    fit_before[starts] = unplaced.counts[nodes[starts]]
    gains_alone = _tasks_that_fit(alone + free, vector, unplaced.role) - unplaced.counts[nodes]
    firsts = np.repeat(starts, np.diff(np.r_[starts, len(nodes)]))

    steps = np.flatnonzero(fit_in_order > fit_before)
    is_not_first = firsts < np.arange(len(nodes))
    singles = np.flatnonzero((gains_alone >= unplaced.missing) & is_not_first)
    tasks = np.r_[(fit_in_order - fit_before)[steps], gains_alone[singles]]
    firsts, lasts = np.r_[firsts[steps], singles], np.r_[steps, singles]

    cost = pool.costs[owners]
    costs = np.r_[_running_sums(cost[:, None], starts)[steps, 0], cost[singles]]
    last_units = owners[lasts]
    priorities, wholes = pool.priorities[last_units], pool.wholes[last_units]
    for n in np.lexsort((last_units, costs, priorities, wholes)).tolist():
        yield NodeGain(int(tasks[n]), owners[firsts[n] : lasts[n] + 1].tolist())


def places_without_each(
    pool: CandidatePool, capacity: FreeCapacity, role: RoleRequest, nodes: Bools
) -> Floats:
    """For each unit: at most so many tasks of a role fit on the nodes of a mask once that unit is
    evicted."""
    vector, free = capacity.table.vector(role.request.resources), capacity.free
    limit = UNLIMITED if role.request.per_node is None else role.request.per_node
    before: Ints = np.where(nodes, limit, 0)
    after: Ints = before[pool.nodes]
    # Shared devices may become whole, so whole devices are no bound.
    for row, amount in ((0, 1), *vector.measured):
        np.minimum(before, free[row] // amount, out=before)
        np.minimum(after, (free[row, pool.nodes] + pool.amounts[:, row]) // amount, out=after)
    np.maximum(before, 0, out=before)
    gains = np.maximum(after, 0) - before[pool.nodes]
    return np.asarray(before.sum() + np.bincount(pool.numbers, gains, len(pool.units)), np.float64)


def _tasks_that_fit(free: Ints | Floats, vector: Vector, role: RoleRequest) -> Ints:
    """How many tasks of the role fit into each row of free amounts."""
    counts: Ints = np.maximum((free // vector.amounts).min(axis=1), 0).astype(np.int64)
    limit = role.request.per_node
    return counts if limit is None else np.minimum(counts, limit)


def _places(
    pool: CandidatePool, chosen: Mapping[int, EvictionUnit], rows: Ints, nodes: Bools
) -> _Places:
    """The places on the nodes of a mask of units that are not chosen."""
    remains = np.ones(len(pool.units), np.bool_)
    remains[[*chosen]] = False
    some = np.flatnonzero(nodes[pool.nodes] & remains[pool.numbers])
    node, owner, amounts = pool.nodes[some], pool.numbers[some], pool.amounts[some][:, rows]
    starts = np.flatnonzero(np.r_[True, node[1:] != node[:-1]]) if len(node) else node
    return _Places(node, owner, amounts, starts)


def _freed(
    places: _Places,
    pool: CandidatePool,
    chosen: Mapping[int, EvictionUnit],
    capacity: FreeCapacity,
    vector: Vector,
) -> tuple[Ints, Ints]:
    """Amounts that each place frees: after all units before it on its node, and by itself.

    A whole gang does not free again what single tasks of it have freed before.
    """
    in_order, alone = places.amounts.copy(), places.amounts.copy()
    units, wholes = pool.units, pool.wholes[places.units]
    freed_singly = {} if pool.wholes.all() else _freed_by_single_tasks(units, vector.rows)
    freed_already = _freed_by_single_tasks(chosen.values(), vector.rows)
    for n in np.flatnonzero(wholes).tolist() if freed_singly else ():
        key = (units[places.units[n]].gang.job, int(places.nodes[n]))
        in_order[n] -= freed_singly.get(key, 0)
        alone[n] -= freed_already.get(key, 0)
    row_of_whole_devices = np.flatnonzero(vector.rows == capacity.table.rows.get(WHOLE))
    if len(row_of_whole_devices):
        devices_in_order, devices_alone = _devices_that_become_whole(places, units, capacity)
        in_order[:, row_of_whole_devices[0]] += devices_in_order
        alone[:, row_of_whole_devices[0]] += devices_alone
    return in_order, alone


def _freed_by_single_tasks(
    units: Iterable[EvictionUnit], rows: Ints
) -> dict[tuple[str, int], Ints]:
    """By job and node: amounts that single tasks among the units free."""
    freed: dict[tuple[str, int], Ints] = {}
    for unit in units:
        if not unit.whole:
            for node, amounts in zip(unit.nodes.tolist(), unit.freed, strict=True):
                key = (unit.gang.job, node)
                freed[key] = freed.get(key, 0) + amounts[rows]
    return freed


def _devices_that_become_whole(
    places: _Places, units: Sequence[EvictionUnit], capacity: FreeCapacity
) -> tuple[Ints, Ints]:
    """How many shared devices become whole at each place: after all units before it on its node,
    and by itself."""
    in_order, alone = np.zeros((2, len(places.nodes)), np.int64)
    occupied: dict[tuple[int, int], int] = {}
    has_fractions = np.array([unit.occupancy.has_fractions for unit in units])
    for n in np.flatnonzero(has_fractions[places.units]).tolist():
        node = int(places.nodes[n])
        free_parts = capacity.partial.get(node, {})
        freed: dict[int, int] = {}
        for task_node, vector, devices, _ in units[places.units[n]].occupants():
            if task_node == node and vector.fraction:
                for device in devices:
                    freed[device] = freed.get(device, 0) + vector.fraction
        for device, amount in freed.items():
            used = DEVICE - free_parts.get(device, 0)
            before = occupied.get((node, device), used)
            occupied[node, device] = before - amount
            in_order[n] += before > 0 >= before - amount
            alone[n] += used == amount
    return in_order, alone


def _running_sums(values: Ints | Floats, starts: Ints) -> Floats:
    """Sums down the columns that start again at each of the given rows."""
    sums = np.cumsum(values, axis=0)
    before = np.zeros((len(starts), values.shape[1]), sums.dtype)
    before[1:] = sums[starts[1:] - 1]
    lengths = np.diff(np.r_[starts, len(values)])
    return np.asarray(sums - np.repeat(before, lengths, axis=0), np.float64)
