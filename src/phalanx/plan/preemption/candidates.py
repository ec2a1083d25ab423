"""Candidates for eviction: single tasks above a gang's minimum, or whole gangs, with their cost."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import cached_property
from typing import NamedTuple

import numpy as np

from phalanx.core.time_units import Micros
from phalanx.plan.decisions import PlannedVictim
from phalanx.plan.model import EvictionGuard, RunningGang
from phalanx.plan.placement.trial import PlacementTrial, undo_all
from phalanx.plan.state.capacity import FreeCapacity, Occupant
from phalanx.plan.state.nodes import Bools, Floats, Ints
from phalanx.plan.state.running import Occupancy

#: Below every priority: the priority of an empty set of victims.
_NO_PRIORITY = -(1 << 40)

#: Cost of a set of victims: whether a whole gang is in it, the highest priority, GPU-seconds of
#: lost work, and the number of gangs. The smaller cost is cheaper.
EvictionCost = tuple[bool, int, float, int]


class EvictionUnit(NamedTuple):
    """The smallest part that is evicted at once: a task above its gang's minimum, or a gang."""

    occupancy: Occupancy
    positions: tuple[int, ...]  #: of its tasks in the gang
    whole: bool
    cost: float  #: GPU-seconds of work lost

    @property
    def gang(self) -> RunningGang:
        return self.occupancy.gang

    @property
    def amounts(self) -> Floats:
        """Amounts that its eviction frees, by row."""
        if self.whole:
            return self.occupancy.total
        return np.asarray(self.freed.sum(axis=0), float)

    @property
    def kind(self) -> tuple[str, bytes]:
        """Its queue (of a single task: its gang) and the amounts it frees.

        If one unit must not be evicted, no unit of the same kind may be.
        """
        return self.gang.queue if self.whole else self.gang.job, self.amounts.tobytes()

    @property
    def nodes(self) -> Ints:
        """The node of each of its tasks."""
        nodes = self.occupancy.nodes
        return nodes if self.whole else nodes[list(self.positions)]

    @property
    def freed(self) -> Ints:
        """Amounts that each of its tasks frees, by row."""
        amounts = self.occupancy.amounts
        return amounts if self.whole else amounts[list(self.positions)]

    @property
    def priority(self) -> int:
        """The highest priority of its tasks."""
        occupancy = self.occupancy
        if self.whole or occupancy.lowest == occupancy.highest:
            return occupancy.highest
        return max(occupancy.priorities[position] for position in self.positions)

    def guards(self) -> Iterator[EvictionGuard]:
        """The guard of each of its tasks that has one."""
        if self.gang.guarded:
            tasks = (self.gang.tasks[position] for position in self.positions)
            yield from (task.guard for task in tasks if task.guard is not None)

    @property
    def own_cost(self) -> EvictionCost:
        """The cost of evicting this unit alone."""
        return self.whole, self.priority, self.cost, 1

    def occupants(self) -> list[Occupant]:
        """Its tasks as they occupy their nodes."""
        return [self.occupancy.occupants[position] for position in self.positions]

    def vacate(self, capacity: FreeCapacity, sign: int = 1) -> None:
        """Free what its tasks occupy in a capacity; with -1, occupy it again. In one of a later
        time, tasks that end by then occupy nothing."""
        if capacity.at is not None:
            lasting = (occupant for end, occupant in self.ends() if end > capacity.at)
            capacity.vacate(lasting, sign)
        elif self.whole and self.occupancy.groups is not None:
            capacity.vacate_groups(self.occupancy.groups, sign)
        else:
            capacity.vacate(self.occupants(), sign)

    def ends(self) -> Iterator[tuple[Micros, Occupant]]:
        """Its tasks as they occupy their nodes, each with the time by which it has ended."""
        ends = self.occupancy.ends[list(self.positions)].tolist()
        return zip(ends, self.occupants(), strict=True)

    def task_ids(self) -> list[str]:
        return [f"{self.gang.job}.{self.gang.tasks[position].index}" for position in self.positions]


class CandidatePool:
    """Candidates in order of cost, and their places: one row for each unit on each node, node by
    node, and on each node in order of cost."""

    def __init__(self, units: Sequence[EvictionUnit], rows: int) -> None:
        """`rows` is the number of rows of amounts."""
        self.units = units
        no_nodes, nothing = np.zeros(0, np.int64), np.zeros((0, rows), np.int64)
        nodes: Ints = np.concatenate([no_nodes, *(unit.nodes for unit in units)])
        numbers = np.arange(len(units)).repeat([len(unit.positions) for unit in units])
        order = np.argsort(nodes, kind="stable")
        nodes, numbers = nodes[order], numbers[order]
        amounts: Ints = np.concatenate([nothing, *(unit.freed for unit in units)])[order]
        firsts = _first_of_equal(nodes, numbers)
        #: By place: the node, the number of the unit, and the amounts that it frees there.
        self.nodes, self.numbers = nodes[firsts], numbers[firsts]
        self.amounts: Ints = np.add.reduceat(amounts, firsts) if len(firsts) else amounts

    @cached_property
    def costs(self) -> Floats:
        """The cost of each unit."""
        return np.array([unit.cost for unit in self.units], np.float64)

    @cached_property
    def priorities(self) -> Ints:
        """The priority of each unit."""
        return np.array([unit.priority for unit in self.units], np.int64)

    @cached_property
    def wholes(self) -> Bools:
        """Mask of the units that are whole gangs."""
        return np.array([unit.whole for unit in self.units], np.bool_)

    @cached_property
    def own_costs(self) -> list[EvictionCost]:
        """The cost of evicting each unit alone."""
        return [unit.own_cost for unit in self.units]


def _first_of_equal(*columns: Ints) -> Ints:
    """The positions of the rows that differ from the row before them."""
    is_first = np.ones(len(columns[0]), np.bool_)
    is_first[1:] = np.logical_or.reduce([each[1:] != each[:-1] for each in columns])
    return np.flatnonzero(is_first)


class VictimSet(NamedTuple):
    """Units to evict, and the places that the preemptor has once they have stopped."""

    trials: tuple[PlacementTrial, ...]
    units: tuple[EvictionUnit, ...]

    @property
    def cost(self) -> EvictionCost:
        return eviction_cost(self.units)

    def undo(self) -> None:
        """Give the preemptor's places back."""
        undo_all(self.trials)

    def by_gang(self) -> dict[str, list[EvictionUnit]]:
        """The units of each job."""
        units_of: dict[str, list[EvictionUnit]] = {}
        for unit in self.units:
            units_of.setdefault(unit.gang.job, []).append(unit)
        return units_of

    def victims(self) -> tuple[PlannedVictim, ...]:
        """One victim per job, with the tasks that it loses."""
        victims = []
        for job, units in self.by_gang().items():
            gang = units[0].gang
            positions = [position for unit in units for position in unit.positions]
            tasks = sorted(gang.tasks[position].index for position in positions)
            whole = any(unit.whole for unit in units)
            lost = sum(unit.cost for unit in units)
            victims.append(PlannedVictim(job, gang.version, () if whole else tuple(tasks), lost))
        return tuple(victims)


def eviction_cost(units: Iterable[EvictionUnit]) -> EvictionCost:
    """The cost of evicting all of these units."""
    listed = list(units)
    return (
        any(unit.whole for unit in listed),
        max((unit.priority for unit in listed), default=_NO_PRIORITY),
        sum(unit.cost for unit in listed),
        len({unit.gang.job for unit in listed}),
    )


def units_above_minimum(occupancy: Occupancy, now: Micros) -> Iterator[EvictionUnit]:
    """The tasks that the gang can lose and go on, one by one, the last tasks first.

    A gang that has only gathered places yields all of them as one unit without cost. Of each role
    no more tasks are offered on one node than may be evicted together.
    """
    gang = occupancy.gang
    if gang.only_gathered:
        yield EvictionUnit(occupancy, tuple(range(len(gang.tasks))), whole=False, cost=0.0)
        return
    if len(gang.tasks) <= gang.min_available:
        return
    role_minimum = dict(gang.role_min)
    spare: dict[str, int] = {}
    for task in gang.tasks:
        spare[task.role] = spare.get(task.role, -role_minimum.get(task.role, 0)) + 1
    offered: dict[tuple[str, str], int] = {}
    for position in range(len(gang.tasks) - 1, -1, -1):
        task = gang.tasks[position]
        on_node = offered.get((task.role, task.node), 0)
        together = min(spare[task.role], len(gang.tasks) - gang.min_available)
        if task.preemptible and not task.stopping and on_node < together:
            offered[task.role, task.node] = on_node + 1
            cost = occupancy.cost(now, (position,))
            yield EvictionUnit(occupancy, (position,), whole=False, cost=cost)


def whole_gang(occupancy: Occupancy, now: Micros) -> EvictionUnit:
    """The gang as one unit."""
    return EvictionUnit(occupancy, occupancy.positions, whole=True, cost=occupancy.cost(now))


def keeps_minimum(gang: RunningGang, evicted: Set[int]) -> bool:
    """Whether the gang keeps its minimum, and that of each role, without the tasks at these
    positions."""
    tasks = [task for position, task in enumerate(gang.tasks) if position not in evicted]
    roles = Counter(task.role for task in tasks)
    enough = all(roles[role] >= minimum for role, minimum in gang.role_min)
    return enough and len(tasks) >= gang.min_available
