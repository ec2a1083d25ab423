"""What is free in a pass: now, and once all who were told to leave have left.

What victims make room for is promised to their claimants and free for nobody else. Whoever starts
now needs room in both views, so that a promise is never broken by somebody who is quicker.
"""

from collections.abc import Iterable

from phalanx.core.model import Assignment
from phalanx.plan.model import PendingGang
from phalanx.plan.state.capacity import FreeCapacity, Occupant
from phalanx.plan.state.planner_state import Moment


class PassCapacity:
    def __init__(self, state: Moment) -> None:
        self._table = state.table
        self.present = state.present.fork()
        #: The same view until somebody leaves.
        self.soon = self.present
        self._promised: dict[str, list[Occupant]] = {}
        if state.running.stopping or state.pending.nominated:
            self.look_ahead()
            self.soon.vacate(state.running.departures())
        for job, claim in state.pending.nominated.items():
            places = claim.nomination.assignments if claim.nomination is not None else ()
            self._promised[job] = self._occupants(claim, places)
            self.keep(job)

    @property
    def views(self) -> tuple[FreeCapacity, ...]:
        """All that whoever starts now has to fit into."""
        return (self.present,) if self.soon is self.present else (self.present, self.soon)

    def look_ahead(self) -> None:
        """From here on, what is free soon is not what is free now."""
        if self.soon is self.present:
            self.soon = self.present.fork()

    def keep(self, job: str) -> None:
        """Let nobody have what was promised to this job."""
        self.soon.vacate(self._promised[job], -1)

    def give(self, job: str) -> None:
        """Let the job itself use what was promised to it."""
        self.soon.vacate(self._promised[job])

    def let_go(self, claim: PendingGang) -> None:
        """A gang gives up what it holds."""
        for view in self.views:
            view.vacate(self._occupants(claim, claim.gathered))

    def _occupants(self, claim: PendingGang, places: Iterable[Assignment]) -> list[Occupant]:
        table = self._table
        asks = {task: part.request for part in claim.roles for task in part.tasks}
        return [
            (table.index[place.worker], table.vector(asks[place.task].resources), ())
            for place in places
            if place.worker in table.index and place.task in asks
        ]
