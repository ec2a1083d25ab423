"""Who has places, ready to be asked what would be free without them, and when they will be gone."""

from collections.abc import Iterable, Iterator

import numpy as np

from phalanx.core.node import DEVICE, GPU
from phalanx.core.spec.job import Micros
from phalanx.plan.model import RunningGang, RunningTask
from phalanx.plan.state.capacity import Occupant
from phalanx.plan.state.nodes import Floats, Ints, NodeTable

#: Later than any time.
NEVER: Micros = 1 << 62


class Occupancy:
    """A tenant's places, by the positions of their nodes."""

    __slots__ = (
        "_all_gpus",
        "_all_safe",
        "amounts",
        "ends",
        "first_end",
        "gang",
        "gpus",
        "has_fractions",
        "highest",
        "is_preemptible",
        "lowest",
        "nodes",
        "occupants",
        "priorities",
        "safe",
        "total",
    )

    def __init__(self, tenant: RunningGang, table: NodeTable) -> None:
        self.gang = tenant
        self.occupants: list[Occupant] = [
            (table.index[place.node], table.vector(place.resources), place.devices)
            for place in tenant.tasks
        ]
        self.nodes: Ints = np.array([node for node, _, _ in self.occupants], np.int64)
        self.amounts: Ints = np.zeros((len(self.occupants), len(table.rows)), np.int64)
        for row, (_, vector, _) in zip(self.amounts, self.occupants, strict=True):
            row[vector.rows] = vector.amounts
        self.total: Floats = self.amounts.sum(axis=0).astype(float)
        places = tenant.tasks
        #: When nothing can be left of each place; of those that are leaving already, never.
        self.ends: Ints = np.array(
            [NEVER if p.ends_at is None or p.stopping else p.ends_at for p in places], np.int64
        )
        self.first_end = int(self.ends.min(initial=NEVER))
        self.has_fractions = any(vector.fraction for _, vector, _ in self.occupants)
        self.is_preemptible = all(place.preemptible for place in places)
        own = tenant.priority
        self.priorities = [own if place.priority is None else place.priority for place in places]
        self.lowest = min(self.priorities, default=own)
        self.highest = max(self.priorities, default=own)
        #: GPUs, and GPUs times the second up to which their work is safe: the cost of a stop is a
        #: straight line over time.
        self.gpus: Floats = np.array([_gpus(place) for place in places])
        self.safe: Floats = np.array([_gpus(place) * place.safe_at / 1e6 for place in places])
        self._all_gpus = float(self.gpus.sum())
        self._all_safe = float(self.safe.sum())

    def stopping(self) -> list[int]:
        """The positions of tasks that were told to stop."""
        return [n for n, place in enumerate(self.gang.tasks) if place.stopping]

    def cost(self, now: Micros, positions: Iterable[int] | None = None) -> float:
        """GPU-seconds that stopping these of its places, or all, would lose."""
        gpus, safe = self._all_gpus, self._all_safe
        if positions is not None:
            some = list(positions)
            gpus, safe = float(self.gpus[some].sum()), float(self.safe[some].sum())
        lost = gpus * now / 1e6 - safe
        grace = self.gang.grace
        return max(0.0, lost if grace is None else min(lost, gpus * grace / 1e6))


def _gpus(place: RunningTask) -> float:
    return next((amount / DEVICE for name, amount in place.resources if name == GPU), 0.0)


class RunningGangs:
    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self.by_job: dict[str, Occupancy] = {}
        #: Tenants of which something is leaving, and those that all end at a known time.
        self.stopping: dict[str, Occupancy] = {}
        self.ending: dict[str, Occupancy] = {}
        #: By queue and resource: what is used, and what was taken away and will be wanted again.
        self.used: dict[str, dict[str, int]] = {}
        self.returning: dict[str, dict[str, int]] = {}

    def widen(self) -> None:
        """The table has rows that it had not when some of the tenants came."""
        for occupancy in self.by_job.values():
            more = len(self._table.rows) - occupancy.amounts.shape[1]
            if more:
                occupancy.amounts = np.pad(occupancy.amounts, ((0, 0), (0, more)))
                occupancy.total = np.pad(occupancy.total, (0, more))

    def put(self, tenant: RunningGang) -> None:
        self.remove(tenant.job)
        occupancy = self.by_job[tenant.job] = Occupancy(tenant, self._table)
        if any(place.stopping for place in tenant.tasks):
            self.stopping[tenant.job] = occupancy
        if any(place.ends_at is not None for place in tenant.tasks):
            self.ending[tenant.job] = occupancy
        self._count(tenant, 1)

    def remove(self, job: str) -> None:
        known = self.by_job.pop(job, None)
        if known is not None:
            self.stopping.pop(job, None)
            self.ending.pop(job, None)
            self._count(known.gang, -1)

    def _count(self, tenant: RunningGang, sign: int) -> None:
        for place in tenant.tasks:
            gone = place.stopping and tenant.evicted
            amounts = (self.returning if gone else self.used).setdefault(tenant.queue, {})
            for resource, amount in place.resources:
                amounts[resource] = amounts.get(resource, 0) + sign * amount

    def stopping_tasks(self) -> set[str]:
        """The ids of tasks that were told to stop and are still there."""
        return {
            f"{job}.{place.index}"
            for job, occupancy in self.stopping.items()
            for place in occupancy.gang.tasks
            if place.stopping
        }

    def departures(self) -> Iterator[Occupant]:
        """All that was told to stop and is still there."""
        for occupancy in self.stopping.values():
            for position in occupancy.stopping():
                yield occupancy.occupants[position]
