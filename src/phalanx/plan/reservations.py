"""Reserved starts: a gang that does not fit yet is given a start time and nodes, and keeps both.

Backfill: another gang starts before it if it ends by then, or leaves those nodes enough at that
time. A starving gang without a possible start time has nodes kept free for it instead.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import replace

from phalanx.core.reasons import HeldBack
from phalanx.core.time_units import Micros
from phalanx.plan.decisions import ReservedStart
from phalanx.plan.future_capacity import FutureCapacity, Reservation, node_mask
from phalanx.plan.model import NEVER, PendingGang
from phalanx.plan.pending import is_starving
from phalanx.plan.placement.amounts import minimum_amounts
from phalanx.plan.placement.trial import PlacementTrial, place_all, undo_all
from phalanx.plan.state.capacity import FreeCapacity, Occupant
from phalanx.plan.state.nodes import Bools, Floats
from phalanx.plan.state.pass_capacity import PassCapacity
from phalanx.plan.state.planner_state import Moment

#: With at most this many end times, the search does not compute where it may begin.
_FEW_TIMES = 8


class StartReservations:
    """The reserved starts of one pass."""

    def __init__(self, state: Moment, capacity: PassCapacity) -> None:
        self._state = state
        self._capacity = capacity
        self._now = state.now
        self._future = FutureCapacity(state.running, capacity)
        self._attempts = 0
        #: Nodes kept for starving gangs without a start time, and those gangs.
        self._kept_nodes: Bools | None = None
        self._kept_for: list[ReservedStart] = []

    @property
    def count(self) -> int:
        """Number of starts reserved at a known time."""
        return len(self._future.reservations)

    def starts(self) -> tuple[ReservedStart, ...]:
        """The reserved start of every gang, also of each gang of a group."""
        reserved = (
            replace(reservation.start, job=gang.job)
            for reservation in self._future.reservations
            for gang in reservation.gangs
        )
        return (*reserved, *self._kept_for)

    # Gangs that start now

    def add_started(self, duration: Micros | None, occupants: Sequence[Occupant]) -> None:
        """Count tasks that start in this pass. Capacities of `capacities_during` have them."""
        self._future.add_started(None if duration is None else self._now + duration, occupants)

    def capacities_during(self, duration: Micros | None) -> list[FreeCapacity]:
        """Free capacity at each reserved start that falls into this time from now.

        A gang that starts now and runs so long needs places in all of them.
        """
        return self._future.until(self._end(duration))

    def allowed_nodes(self) -> Bools | None:
        """Mask of the nodes that are not kept for a starving gang; None: all nodes."""
        return None if self._kept_nodes is None else ~self._kept_nodes

    def held_back(
        self, gangs: Sequence[PendingGang], delayed: ReservedStart | None
    ) -> HeldBack | None:
        """The reserved start that the gangs would delay, if they could start without it.

        `delayed` is a start that is already known to be delayed.
        """
        starts = [delayed, *(self._delayed_by(gang.duration) for gang in gangs), *self._kept_for]
        start = next((start for start in starts if start is not None), None)
        if start is None:
            return None
        trials = place_all([PlacementTrial(gang, self._capacity.both) for gang in gangs])
        undo_all(trials)
        return None if trials is None else HeldBack(start.job, start.at)

    def _delayed_by(self, duration: Micros | None) -> ReservedStart | None:
        """The first reserved start that falls into this time from now."""
        end = self._end(duration)
        for reservation in self._future.reservations:
            start = reservation.start
            if start.at is not None and start.at < end:
                return start
        return None

    def _end(self, duration: Micros | None) -> Micros:
        return NEVER if duration is None else self._now + duration

    # Gangs that do not fit yet

    def reserve(self, gangs: Sequence[PendingGang]) -> ReservedStart | None:
        """Reserve a start for a gang or group that is short of free capacity only.

        A start of the last pass is kept if it still can be. A starving gang for which there is no
        time has nodes kept free.
        """
        policy = self._state.policy
        if self.count >= policy.heads:
            return None
        last = next(
            (start for start in self._state.reserved_starts if start.job == gangs[0].job), None
        )
        if last is not None and self._keep(Reservation(gangs, last)):
            return last
        if self._attempts >= 2 * policy.heads:
            return None
        self._attempts += 1
        start = self._reserve_earliest(gangs) if policy.backfill else None
        if start is None and all(is_starving(policy, gang, self._now) for gang in gangs):
            self._keep_nodes(gangs, last)
        return start

    def _keep(self, reservation: Reservation) -> bool:
        """Keep a reservation of the last pass, if its nodes are open and its time has not come."""
        table, start = self._state.table, reservation.start
        for name in start.nodes:
            if name not in table.index or not table.open[table.index[name]]:
                return False
        if start.at is None or start.at <= self._now:
            return False
        return self._future.keep(reservation)

    def _reserve_earliest(self, gangs: Sequence[PendingGang]) -> ReservedStart | None:
        """Reserve the earliest time at which the gangs fit; None if there is none.

        Heuristic: bisection over the end times, which assumes that gangs that fit at one time fit
        later too. The first steps are short, because the first time at which enough may have ended
        is most often the right one.
        """
        times = self._future.ends.times
        low, high = self._first_possible(gangs) if len(times) > _FEW_TIMES else 0, len(times)
        trials: tuple[PlacementTrial, ...] | None = None
        step = 1
        while low < high:
            middle = min(low + step - 1, (low + high) // 2)
            step *= 2
            undo_all(trials)
            trials = self._place_at(gangs, times[middle])
            if trials is None:
                low = middle + 1
            else:
                high = middle
        if low < len(times):
            trials = trials or self._place_at(gangs, times[low])
        if trials is None:
            return None
        start = ReservedStart(gangs[0].job, _node_names(trials), times[low])
        self._future.reserve(Reservation(gangs, start), trials[0].capacities[0])
        return start

    def _first_possible(self, gangs: Sequence[PendingGang]) -> int:
        """Position of the end time before which the gangs certainly do not fit."""
        soon = self._capacity.soon
        need: Floats = np.sum([minimum_amounts(gang, soon.table) for gang in gangs], axis=0)
        free = np.maximum(soon.free, 0).sum(axis=1, where=soon.table.open)
        return self._future.ends.earliest(need - free)

    def _place_at(
        self, gangs: Sequence[PendingGang], time: Micros
    ) -> tuple[PlacementTrial, ...] | None:
        """Place the gangs at a time, without delaying a reserved start while they would run."""
        capacity = self._future.attempt(time)
        end = time + max(NEVER if gang.duration is None else gang.duration for gang in gangs)
        later = [
            self._future.at_start(start)
            for start in self._future.start_times()
            if time < start < end
        ]
        return place_all([PlacementTrial(gang, (capacity, *later)) for gang in gangs])

    def _keep_nodes(self, gangs: Sequence[PendingGang], last: ReservedStart | None) -> None:
        """Keep nodes free for starving gangs: those of the last pass, or the least busy ones."""
        table = self._state.table
        allowed = self.allowed_nodes()
        if last is not None and last.at is None:
            allowed = node_mask(table, last.nodes)
        utilization = self._capacity.present.utilization()
        empty = (self._state.empty.fork(),)
        trials = place_all([PlacementTrial(gang, empty, allowed, utilization) for gang in gangs])
        nodes = _node_names(trials or ())
        mask = node_mask(table, nodes)
        self._kept_nodes = mask if self._kept_nodes is None else self._kept_nodes | mask
        self._kept_for += (ReservedStart(gang.job, nodes, None) for gang in gangs)


def _node_names(trials: Iterable[PlacementTrial]) -> tuple[str, ...]:
    """The names of all nodes that the trials use."""
    places = (place for trial in trials for place in trial.assignments())
    return tuple(dict.fromkeys(place.worker for place in places))
