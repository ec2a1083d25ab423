"""Free capacity at future times: when running tasks must have ended, and what reserved starts take.

Tasks without a time limit have no known end, so they count as running at every future time.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from phalanx.core.time_units import Micros
from phalanx.plan.decisions import ReservedStart
from phalanx.plan.model import PendingGang
from phalanx.plan.placement.trial import PlacementTrial, place_all
from phalanx.plan.state.capacity import FreeCapacity, Occupant
from phalanx.plan.state.nodes import Bools, Floats, NodeTable
from phalanx.plan.state.pass_capacity import PassCapacity
from phalanx.plan.state.running import RunningGangs


class EndTimes:
    """The times by which tasks with a known end have certainly freed their places."""

    def __init__(self, running: RunningGangs) -> None:
        self._known = running.known_ends()
        #: Tasks that are freed one by one, and tasks that start in this pass, with their ends.
        self._others: list[tuple[Micros, Occupant]] = [*self._known.single]
        self.times = [*self._known.times]

    def add(self, end: Micros, occupants: Sequence[Occupant]) -> None:
        """Add tasks that start in this pass."""
        self._others += ((end, occupant) for occupant in occupants)
        insort(self.times, end)

    def earliest(self, missing: Floats) -> int:
        """Position in `times` of the first time by which these amounts may have become free.

        A lower bound: the amounts are summed over all nodes.
        """
        missing = missing.copy()
        for _, (_, vector, *_) in self._others:
            missing[vector.rows] -= vector.amounts
        position = 0
        for row in np.flatnonzero(missing > 0).tolist() if len(self._known.ends) else ():
            task = int(np.searchsorted(self._known.sums[:, row], missing[row]))
            if task == len(self._known.ends):
                return len(self.times)
            position = max(position, bisect_left(self.times, int(self._known.ends[task])))
        return position

    def free_by(self, time: Micros, capacity: FreeCapacity) -> None:
        """Free the places of all tasks that end by this time in a capacity."""
        ended = int(np.searchsorted(self._known.ends, time, "right"))
        if ended:
            capacity.release(self._known.nodes[:ended], self._known.amounts[:ended])
        capacity.vacate(occupant for end, occupant in self._others if end <= time)


class Reservation(NamedTuple):
    """A start reserved for a gang or a group."""

    gangs: Sequence[PendingGang]
    start: ReservedStart  #: named after the first gang

    def take(self, capacity: FreeCapacity) -> bool:
        """Take the reserved places from a capacity; False if they are not free there."""
        nodes = node_mask(capacity.table, self.start.nodes)
        trials = [PlacementTrial(gang, (capacity,), nodes) for gang in self.gangs]
        return place_all(trials) is not None


class FutureCapacity:
    """Free capacity at the reserved start times, and at other times that are tried."""

    def __init__(self, running: RunningGangs, capacity: PassCapacity) -> None:
        self._running = running
        self._capacity = capacity
        self.reservations: list[Reservation] = []
        #: Capacity at reserved start times, computed when it is asked for: most passes place
        #: nothing that could delay a reserved start. Gangs that start in this pass and would still
        #: run then take their places from it.
        self._reserved: dict[Micros, FreeCapacity] = {}
        #: Capacity at other times, until a gang starts; and the number of reservations in it.
        self._tried: dict[Micros, tuple[FreeCapacity, int]] = {}

    @cached_property
    def ends(self) -> EndTimes:
        return EndTimes(self._running)

    def start_times(self) -> list[Micros]:
        """The reserved start times, the earliest first."""
        times = (reservation.start.at for reservation in self.reservations)
        return sorted({time for time in times if time is not None})

    def add_started(self, end: Micros | None, occupants: Sequence[Occupant]) -> None:
        """Count tasks that start in this pass and end at a known time."""
        self._tried.clear()
        if end is not None and (self._running.ending or self.reservations):
            self.ends.add(end, occupants)

    def at_start(self, time: Micros) -> FreeCapacity:
        """Free capacity at a reserved start time, less what all starts reserved by then take."""
        if time not in self._reserved:
            self._reserved[time] = self._compute(time)
        return self._reserved[time]

    def until(self, time: Micros) -> list[FreeCapacity]:
        """Free capacity at each reserved start time before this time."""
        for start in self.start_times():
            if start < time:
                self.at_start(start)
        # Computing them may have shown that a reservation can no longer be kept.
        return [self._reserved[start] for start in self.start_times() if start < time]

    def attempt(self, time: Micros) -> FreeCapacity:
        """Free capacity at any time, to try a start at it."""
        if time in self._reserved:
            return self._reserved[time]
        if time not in self._tried:
            self._tried[time] = self._compute(time), len(self.reservations)
        capacity, counted = self._tried[time]
        for reservation in self.reservations[counted:]:
            if reservation.start.at is not None and reservation.start.at <= time:
                reservation.take(capacity)
        self._tried[time] = capacity, len(self.reservations)
        return capacity

    def reserve(self, reservation: Reservation, capacity: FreeCapacity) -> None:
        """Add a reservation whose places have been taken from the capacity tried at its time."""
        time = reservation.start.at
        if time is not None:
            self._tried.pop(time, None)
            self._reserved.setdefault(time, capacity)
        self.reservations.append(reservation)

    def keep(self, reservation: Reservation) -> bool:
        """Add a reservation of an earlier pass; False if its places are no longer free then."""
        time = reservation.start.at
        if time in self._reserved and not reservation.take(self._reserved[time]):
            return False
        self.reservations.append(reservation)
        return True

    def _compute(self, time: Micros) -> FreeCapacity:
        """What is free at a time: all tasks that end by then are gone, all starts reserved by then
        have taken their places."""
        capacity = self._capacity.soon.fork()
        self.ends.free_by(time, capacity)
        for reservation in list(self.reservations):
            start = reservation.start.at
            if start is None or start > time:
                continue
            if not reservation.take(capacity) and start == time:
                # It can no longer be kept; the next pass reserves another time.
                self.reservations.remove(reservation)
                self._tried.clear()
        return capacity


def node_mask(table: NodeTable, names: Sequence[str]) -> Bools:
    """Mask of the named nodes."""
    mask = np.zeros(table.open.shape, np.bool_)
    mask[[table.index[name] for name in names if name in table.index]] = True
    return mask
