"""What can be taken from those who have places, and what it costs."""

from collections import Counter
from collections.abc import Iterable, Set
from typing import NamedTuple

import numpy as np

from phalanx.plan.decisions import PlannedVictim
from phalanx.plan.model import RunningGang
from phalanx.plan.placement.trial import PlacementTrial, undo_all
from phalanx.plan.state.capacity import Occupant
from phalanx.plan.state.nodes import Floats, Ints
from phalanx.plan.state.running import Occupancy

#: Below any priority.
_NOBODY = -(1 << 40)


class EvictionUnit(NamedTuple):
    """What can be taken at once: a task beyond its gang's minimum, or a whole gang."""

    occupancy: Occupancy
    positions: tuple[int, ...]
    whole: bool
    cost: float

    @property
    def amounts(self) -> Floats:
        """What it frees in all, by row."""
        if self.whole:
            return self.occupancy.total
        return np.asarray(self.freed.sum(axis=0), float)

    @property
    def kind(self) -> tuple[str, bytes]:
        """Its queue, or for surplus its gang, and what it frees: what holds for one of a kind holds
        for all."""
        tenant = self.occupancy.gang
        return tenant.queue if self.whole else tenant.job, self.amounts.tobytes()

    @property
    def nodes(self) -> Ints:
        nodes = self.occupancy.nodes
        return nodes if self.whole else nodes[list(self.positions)]

    @property
    def freed(self) -> Ints:
        """What each of its places frees, by row."""
        amounts = self.occupancy.amounts
        return amounts if self.whole else amounts[list(self.positions)]

    def occupants(self) -> list[Occupant]:
        return [self.occupancy.occupants[position] for position in self.positions]

    def task_ids(self) -> list[str]:
        tenant = self.occupancy.gang
        return [f"{tenant.job}.{tenant.tasks[position].index}" for position in self.positions]

    @property
    def priority(self) -> int:
        """That of the most important of its tasks."""
        occupancy = self.occupancy
        if self.whole or occupancy.lowest == occupancy.highest:
            return occupancy.highest
        return max(occupancy.priorities[position] for position in self.positions)


class VictimSet(NamedTuple):
    trials: tuple[PlacementTrial, ...]
    units: tuple[EvictionUnit, ...]

    @property
    def price(self) -> tuple[bool, int, float, int]:
        return price(self.units)

    def undo(self) -> None:
        undo_all(self.trials)

    def by_gang(self) -> dict[str, list[EvictionUnit]]:
        by_job: dict[str, list[EvictionUnit]] = {}
        for unit in self.units:
            by_job.setdefault(unit.occupancy.gang.job, []).append(unit)
        return by_job

    def victims(self) -> tuple[PlannedVictim, ...]:
        """Gang by gang, what it gives."""
        victims = []
        for job, units in self.by_gang().items():
            tenant = units[0].occupancy.gang
            positions = [position for unit in units for position in unit.positions]
            tasks = sorted(tenant.tasks[position].index for position in positions)
            whole = any(unit.whole for unit in units)
            lost = sum(unit.cost for unit in units)
            victims.append(PlannedVictim(job, tenant.version, () if whole else tuple(tasks), lost))
        return tuple(victims)


def price(units: Iterable[EvictionUnit]) -> tuple[bool, int, float, int]:
    """What a set of victims costs: whole gangs, then priority, then work lost, then how many."""
    some = list(units)
    return (
        any(unit.whole for unit in some),
        max((unit.priority for unit in some), default=_NOBODY),
        sum(unit.cost for unit in some),
        len({unit.occupancy.gang.job for unit in some}),
    )


def is_enough(tenant: RunningGang, gone: Set[int]) -> bool:
    """Whether a gang could go on without the tasks at these of its places."""
    places = [place for position, place in enumerate(tenant.tasks) if position not in gone]
    roles = Counter(place.role for place in places)
    enough = all(roles[role] >= least for role, least in tenant.role_min)
    return enough and len(places) >= tenant.min_available
