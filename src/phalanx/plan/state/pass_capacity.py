"""Free capacity in a pass: now, and soon, once all stopping tasks have stopped.

Capacity that victims free is kept for the gang that they were evicted for. A gang that starts now
needs free capacity in both, so that it does not use what is kept.
"""

import numpy as np

from phalanx.core.time_units import Micros
from phalanx.plan.model import NEVER, PendingGang, TaskRequest
from phalanx.plan.placement.amounts import occupants_of
from phalanx.plan.state.capacity import FreeCapacity, Occupant
from phalanx.plan.state.nodes import NodeTable
from phalanx.plan.state.planner_state import Moment
from phalanx.plan.state.running import Occupancy


class PassCapacity:
    def __init__(self, state: Moment) -> None:
        self._table = state.table
        self.present = state.present.fork()
        #: The same object until it differs.
        self.soon = self.present
        #: By request and label of domains: no more tasks fit now in one domain than this; without
        #: a label, in all. Free capacity only shrinks in a pass.
        self.most: dict[tuple[TaskRequest, str | None], int] = {}
        #: The version of the capacity that was counted.
        self._counted: dict[tuple[TaskRequest, str | None], int] = {}
        #: The same for what fits both now and soon, and the versions that were counted.
        self._in_both: dict[tuple[TaskRequest, str | None], tuple[tuple[int, int], int]] = {}
        self._now = state.now
        #: By nominated job: the time by which it will have ended, and the places that are kept for
        #: it.
        self._kept: dict[str, tuple[Micros, list[Occupant]]] = {}
        #: The jobs among them whose places are taken from what is free soon.
        self._taken: set[str] = set()
        if state.running.stopping or state.pending.nominated:
            self.look_ahead()
            self.soon.vacate(state.running.departures())
            for occupancy in state.running.stopping.values():
                self.soon.vacate(_places_after_move(occupancy, self._table), -1)
        for job, gang in state.pending.nominated.items():
            places = gang.nomination.assignments if gang.nomination is not None else ()
            self.add_kept(gang, occupants_of(gang, places, self._table))
            self.keep(job)

    @property
    def both(self) -> tuple[FreeCapacity, ...]:
        """What a gang that starts now must fit into."""
        return (self.present,) if self.soon is self.present else (self.present, self.soon)

    def look_ahead(self) -> None:
        """Let what is free soon differ from what is free now."""
        if self.soon is self.present:
            self.soon = self.present.fork()

    def add_kept(self, gang: PendingGang, places: list[Occupant]) -> None:
        """Count the places of a gang whose victims are stopping, which are taken."""
        end = NEVER if gang.duration is None else self._now + gang.duration
        self._kept[gang.job] = (end, places)
        self._taken.add(gang.job)

    def keep(self, job: str) -> None:
        """Keep the capacity that victims of this job free."""
        self.soon.vacate(self._kept[job][1], -1)
        self._taken.add(job)

    def stop_keeping(self, job: str) -> None:
        """Let the job itself use the capacity that is kept for it."""
        self.soon.vacate(self._kept[job][1])
        self._taken.remove(job)

    def kept_places(self) -> list[tuple[Micros, list[Occupant]]]:
        """The places that are kept, each with the time by which its gang will have left them."""
        return [self._kept[job] for job in sorted(self._taken)]

    def release_gathered(self, gang: PendingGang) -> None:
        """Free the places that a gang has gathered."""
        for capacity in self.both:
            capacity.vacate(occupants_of(gang, gang.gathered, self._table))
        self.most.clear()
        self._counted.clear()

    def most_fit(self, request: TaskRequest, domains: str | None) -> int:
        """How many tasks fit now in one domain, or in all, or did when this was last counted."""
        most = self.most.get((request, domains))
        return self._count((request, domains)) if most is None else most

    def fits_in_both(self, request: TaskRequest, wanted: int, domains: str | None) -> bool:
        """Whether so many tasks fit now, without using what is kept for others."""
        if self.soon is self.present:
            return self.may_fit(request, wanted, domains)
        key, version = (request, domains), (self.present.version, self.soon.version)
        counted, most = self._in_both.get(key, (None, 0))
        if counted != version:
            counts = np.minimum(self.present.fit(request).counts, self.soon.fit(request).counts)
            most = self._table.most_in_domain(counts, domains)
            self._in_both[key] = (version, most)
        return wanted <= most

    def may_fit(self, request: TaskRequest, wanted: int, domains: str | None = None) -> bool:
        """Whether so many tasks fit now, in one domain or anywhere."""
        return self.has_places((request, domains), wanted)

    def has_places(self, key: tuple[TaskRequest, str | None], wanted: int) -> bool:
        """Whether so many tasks of a request fit now in one of the domains with a label."""
        most = self.most.get(key, wanted)
        if wanted <= most and self._counted.get(key) != self.present.version:
            most = self._count(key)
        return wanted <= most

    def _count(self, key: tuple[TaskRequest, str | None]) -> int:
        most = self.most[key] = self.present.most_fit(*key)
        self._counted[key] = self.present.version
        return most


def _places_after_move(occupancy: Occupancy, table: NodeTable) -> list[Occupant]:
    """What a gang that is moved will occupy at the places that are kept for it."""
    vectors = {
        task.index: occupant[1]
        for task, occupant in zip(occupancy.gang.tasks, occupancy.occupants, strict=True)
    }
    return [
        (table.index[place.worker], vectors[place.task], (), None)
        for place in occupancy.gang.moves_to
        if place.worker in table.index and place.task in vectors
    ]
