"""Free capacity at future times: when running tasks must have ended, and what reserved starts take
and free again.

Tasks without a time limit have no known end, so they count as running at every future time.
"""

from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from phalanx.core.time_units import Micros
from phalanx.plan.decisions import ReservedStart
from phalanx.plan.model import NEVER, PendingGang
from phalanx.plan.pending import is_simple, required_domains
from phalanx.plan.placement.trial import PlacementTrial, place_all, undo_all
from phalanx.plan.state.capacity import FreeCapacity, Occupant
from phalanx.plan.state.nodes import SLOTS, WHOLE, Bools, Floats, Ints, NodeTable
from phalanx.plan.state.pass_capacity import PassCapacity
from phalanx.plan.state.running import RunningGangs


class EndTimes:
    """The times by which tasks with a known end have certainly freed their places."""

    def __init__(self, running: RunningGangs) -> None:
        self._known = running.known_ends()
        #: Tasks that are freed one by one, and tasks that start in this pass, with their ends.
        self._others: list[tuple[Micros, Occupant]] = [*self._known.single]
        self.times = [*self._known.times]
        #: Tasks that are evicted in this pass: they are gone before.
        self._evicted: list[tuple[Micros, Occupant]] = []

    def add(self, end: Micros, occupants: Sequence[Occupant]) -> None:
        """Add tasks that start in this pass."""
        self._others += ((end, occupant) for occupant in occupants)
        insort(self.times, end)

    def exclude(self, evicted: Iterable[tuple[Micros, Occupant]]) -> None:
        """Leave out tasks that are evicted in this pass."""
        self._evicted += evicted

    def earliest(self, missing: Floats) -> Micros:
        """The first time by which these amounts may have become free; `NEVER` if there is none.

        A lower bound: the amounts are summed over all nodes.
        """
        missing = missing.copy()
        for _, (_, vector, *_) in self._others:
            missing[vector.rows] -= vector.amounts
        earliest: Micros = 0
        for row in np.flatnonzero(missing > 0).tolist() if len(self._known.ends) else ():
            task = int(np.searchsorted(self._known.sums[:, row], missing[row]))
            if task == len(self._known.ends):
                return NEVER
            earliest = max(earliest, int(self._known.ends[task]))
        return earliest

    def needed_from(self, occupants: Iterable[Occupant], table: NodeTable) -> Micros:
        """The earliest time at which these tasks could start on their nodes, if all tasks without
        a known end ended now; 0 if that is now."""
        needs: dict[int, Floats] = {}
        for node, vector, *_ in occupants:
            need = needs.setdefault(node, np.zeros(len(table.rows)))
            need[vector.rows] += vector.amounts
        counts = np.array([name not in (SLOTS, WHOLE) for name in table.rows], np.bool_)
        known, has_end = self._known, self._known.ends < NEVER
        earliest: Micros = 0
        for node, need in needs.items():
            tasks = np.flatnonzero(has_end & (known.nodes == node))
            used = known.amounts[tasks]
            # What the tasks that end after each of them, or after none, use.
            later = used.sum(axis=0) - np.cumsum(np.vstack((0 * need, used)), axis=0)
            is_free = ((table.capacity[:, node] - later >= need) | ~counts).all(axis=1)
            ended = int(np.argmax(is_free))
            if ended:
                earliest = max(earliest, int(known.ends[tasks[ended - 1]]))
        return earliest

    def free_by(self, time: Micros, capacity: FreeCapacity) -> None:
        """Free the places of all tasks that end by this time in a capacity."""
        released = self._known.released_by(time, capacity.free.shape[1])
        if released is not None:
            capacity.release(released)
        if self._others:
            capacity.vacate(occupant for end, occupant in self._others if end <= time)
        if self._evicted:
            capacity.vacate((occupant for end, occupant in self._evicted if end <= time), -1)


class Reservation:
    """A start reserved for a gang or a group at a known time."""

    def __init__(
        self, gangs: Sequence[PendingGang], start: ReservedStart, at: Micros, table: NodeTable
    ) -> None:
        self.gangs = gangs
        self.start = start
        self.at = at
        #: The time by which all gangs have ended.
        self.end = max(end_of(at, gang.duration) for gang in gangs)
        self._table = table

    def runs_at(self, time: Micros) -> bool:
        """Whether the gangs have their places at a time."""
        return self.at <= time < self.end

    def uses(self, nodes: Collection[int]) -> bool:
        """Whether any of these nodes is reserved."""
        return any(self._table.index[name] in nodes for name in self.start.nodes)

    @cached_property
    def places(self) -> Ints | None:
        """What the places take that were chosen when the start was reserved, by row and node; None
        if they are not known."""
        gang, start, table = self.gangs[0], self.start, self._table
        if len(self.gangs) > 1 or sum(start.counts) != gang.need or not is_simple(gang):
            return None
        request = gang.roles[0].request
        vector = table.vector(request.resources)
        nodes = np.array([table.index[name] for name in start.nodes], np.int64)
        if vector.fraction or not table.mask(request)[nodes].all():
            return None
        places = np.zeros_like(table.free)
        places[vector.rows[:, None], nodes] = vector.amounts[:, None] * np.array(start.counts)
        return places

    def take(self, capacities: Sequence[FreeCapacity]) -> bool:
        """Take the reserved places from all of these; False, and nothing taken, if they are not
        known or not free."""
        places = self.places
        if places is None or not all(capacity.has_free(places) for capacity in capacities):
            return False
        for capacity in capacities:
            capacity.release(-places)
        return True

    def take_others(self, capacities: Sequence[FreeCapacity]) -> bool:
        """Take any places on the reserved nodes; False, and nothing taken, if there are none."""
        nodes = node_mask(self._table, self.start.nodes)
        trials = [PlacementTrial(gang, capacities, nodes) for gang in self.gangs]
        return place_all(trials) is not None


def _take_all(reservations: Sequence[Reservation], capacity: FreeCapacity) -> bool:
    """Take the places of all reservations; False, and nothing taken, unless all are known and
    free."""
    if not reservations:
        return True
    places = [each.places for each in reservations if each.places is not None]
    if len(places) < len(reservations):
        return False
    total = sum(places[1:], start=places[0])
    if not capacity.has_free(total):
        return False
    capacity.release(-total)
    return True


def end_of(at: Micros, duration: Micros | None) -> Micros:
    """When a gang that starts at a time has ended."""
    return NEVER if duration is None else at + duration


class KeptNodes(NamedTuple):
    """Nodes that are kept for starving gangs without a start time."""

    starts: tuple[ReservedStart, ...]
    nodes: Bools
    needed_from: Micros  #: the gangs cannot start before this time

    def excludes(self, end: Micros) -> bool:
        """Whether a gang that runs until this time must not use the nodes."""
        return end > self.needed_from


class UnreservedCapacity:
    """Free capacity at future times, whatever is reserved."""

    def __init__(self, running: RunningGangs, capacity: PassCapacity) -> None:
        self._running = running
        self._capacity = capacity

    @cached_property
    def ends(self) -> EndTimes:
        return EndTimes(self._running)

    def at(self, time: Micros) -> FreeCapacity:
        """What is free once all tasks that end by this time are gone."""
        capacity = self._capacity.soon.fork()
        capacity.at = time
        self.ends.free_by(time, capacity)
        for end, places in self._capacity.kept_places():
            if end <= time:
                capacity.vacate(places)
        return capacity


class CapacityTimeline:
    """Free capacity at future times, less what a list of reservations takes.

    Capacities are computed when they are asked for: most passes place nothing that could delay a
    reserved start.
    """

    def __init__(self, unreserved: UnreservedCapacity) -> None:
        self._unreserved = unreserved
        self.reservations: list[Reservation] = []
        self._at: dict[Micros, FreeCapacity] = {}
        #: Times at which reserved gangs may have other places than those that were reserved.
        self._rearranged: set[Micros] = set()

    def at(self, time: Micros) -> FreeCapacity:
        """What is free at a time: all tasks that end by then are gone, and all reserved gangs that
        run then have their places. A reservation that cannot be kept is dropped."""
        capacity = self._at.get(time)
        if capacity is None:
            capacity = self._unreserved.at(time)
            running = [r for r in self.reservations if r.runs_at(time)]
            if not _take_all(running, capacity):
                self._rearranged.add(time)
                for reservation in running:
                    taken = reservation.take((capacity,)) or reservation.take_others((capacity,))
                    if not taken and reservation.at == time:
                        self.reservations.remove(reservation)
            self._at[time] = capacity
        return capacity

    def start_times(self, after: Micros, before: Micros) -> list[Micros]:
        """The reserved start times between two times, the earliest first."""
        return sorted({r.at for r in self.reservations if after < r.at < before})

    def at_starts(self, after: Micros, before: Micros) -> list[FreeCapacity]:
        """Free capacity at each reserved start time between two times."""
        for time in self.start_times(after, before):
            self.at(time)
        # Computing them may have shown that a reservation cannot be kept.
        return [self.at(time) for time in self.start_times(after, before)]

    def during(self, time: Micros, end: Micros) -> list[FreeCapacity]:
        """Free capacity at a time, and at each reserved start after it and before the end."""
        return [self.at(time), *self.at_starts(time, end)]

    def add(self, reservation: Reservation) -> bool:
        """Add a reservation; False if its places are known to be taken."""
        known = {time: each for time, each in self._at.items() if reservation.runs_at(time)}
        capacities = [*known.values()]
        if capacities and not reservation.take(capacities):
            if not reservation.take_others(capacities):
                return False
            self._rearranged.update(known)
        self.reservations.append(reservation)
        return True

    def withdraw(self, reservation: Reservation) -> None:
        """Count a reservation no longer."""
        if reservation not in self.reservations:
            return
        self.reservations.remove(reservation)
        for time in [time for time in self._at if reservation.runs_at(time)]:
            if reservation.places is None or time in self._rearranged:
                self._forget(time)
            else:
                self._at[time].release(reservation.places)

    def add_started(self, end: Micros, occupants: Sequence[Occupant]) -> None:
        """Count tasks that start now."""
        nodes = [node for node, *_ in occupants]
        for time in [time for time in self._at if time < end]:
            self._at[time].vacate(occupants, -1)
            # Without their places, some reservations have to be dropped.
            if bool((self._at[time].free[:, nodes] < 0).any()):
                self._forget(time)

    def forget(self) -> None:
        """Drop what was computed."""
        self._at.clear()
        self._rearranged.clear()

    def _forget(self, time: Micros) -> None:
        """Drop what was computed for a time."""
        del self._at[time]
        self._rearranged.discard(time)


class FutureCapacity:
    """Free capacity at future times, and the reserved starts of one pass.

    A reservation of the last pass is a promise until the turn of its gang has come: gangs that are
    served before it may delay it by a start now, but not by a reservation.
    """

    def __init__(self, running: RunningGangs, capacity: PassCapacity) -> None:
        self._running = running
        self._capacity = capacity
        self._table = capacity.present.table
        self._unreserved = UnreservedCapacity(running, capacity)
        #: With the reservations that were made or kept in this pass. Gangs that start now and would
        #: still run at a reserved start take their places from it.
        self.binding = CapacityTimeline(self._unreserved)
        #: With promises too, to find the time of a new reservation.
        self._planned = CapacityTimeline(self._unreserved)
        self._promises: dict[str, Reservation] = {}
        self.kept: list[KeptNodes] = []

    @property
    def ends(self) -> EndTimes:
        return self._unreserved.ends

    @cached_property
    def in_the_end(self) -> FreeCapacity:
        """What is free once all tasks with a known end are gone. Asked for before any gang of the
        pass is served."""
        return self._unreserved.at(max(self.ends.times, default=0))

    def times(self) -> list[Micros]:
        """The times at which places become free: tasks end, or reserved gangs do."""
        ends = {reservation.end for reservation in self.all_reservations()}
        ends.update(end for end, _ in self._capacity.kept_places())
        ends.discard(NEVER)
        return sorted([*self.ends.times, *ends]) if ends else self.ends.times

    def starting_after(self, time: Micros) -> int:
        """The number of reservations and promises that start after a time."""
        count = 0
        for reservation in self.binding.reservations:
            count += reservation.at > time
        for promise in self._promises.values():
            count += promise.at > time
        return count

    def all_reservations(self) -> list[Reservation]:
        """The reservations of this pass, and the promises of the last one."""
        return [*self.binding.reservations, *self._promises.values()]

    def add_started(self, end: Micros | None, occupants: Sequence[Occupant]) -> None:
        """Count tasks that start in this pass. `end` is when they end; None: unknown."""
        if end is not None and (self._running.ending or self.binding.reservations):
            self.ends.add(end, occupants)
        else:
            end = NEVER
        nodes = {node for node, *_ in occupants}
        delayed = [p for p in self._promises.values() if p.at < end and p.uses(nodes)]
        for promise in delayed:
            self._planned.withdraw(promise)
        self._planned.add_started(end, occupants)
        for promise in delayed:
            self._promise_again(promise)

    def forget(self) -> None:
        """Forget what was computed: something other than a start has changed."""
        self.binding.forget()
        self._planned.forget()

    # Promises

    def promise(self, reservation: Reservation) -> None:
        """Count a reservation of the last pass."""
        self._promises[reservation.start.job] = reservation
        self._planned.reservations.append(reservation)

    def promises(self) -> Collection[Reservation]:
        """The promises to gangs whose turn has not come."""
        return self._promises.values()

    def is_promised(self, job: str) -> bool:
        """Whether the gang has a promise, and its turn has not come."""
        return job in self._promises

    def has_place(self, job: str) -> bool:
        """Whether the places of a promised gang have not been taken by gangs that start now."""
        return self._promises[job] in self._planned.reservations

    def keep(self, job: str) -> ReservedStart | None:
        """Make the promise of a gang binding; its start, also if it is binding already. None, and
        no longer promised, if it has none or its places are taken."""
        promise = self._promises.pop(job, None)
        if promise is None:
            reserved = (reservation.start for reservation in self.binding.reservations)
            return next((start for start in reserved if start.job == job), None)
        if promise in self._planned.reservations and self.binding.add(promise):
            return promise.start
        self._planned.withdraw(promise)
        return None

    def drop(self, job: str) -> None:
        """Withdraw the promise of a gang that needs it no longer."""
        promise = self._promises.pop(job, None)
        if promise is not None:
            self._planned.withdraw(promise)

    def _promise_again(self, promise: Reservation) -> None:
        """Keep the time of a promise after a start that may have taken its places: with others, if
        there are any."""
        capacities = self._planned.during(promise.at, promise.end)
        places = promise.places
        if places is None or not all(capacity.has_free(places) for capacity in capacities):
            trials = self.place_at(promise.gangs, promise.at)
            if trials is None:
                return
            job = promise.start.job
            start = start_at(promise.at, job, trials)
            undo_all(trials)
            promise = self._promises[job] = Reservation(
                promise.gangs, start, promise.at, self._table
            )
        self._planned.add(promise)

    # New reservations

    def allowed_until(self, end: Micros) -> Bools | None:
        """Mask of the nodes that are not kept from gangs that run until this time; None: all."""
        masks = [kept.nodes for kept in self.kept if kept.excludes(end)]
        return ~np.logical_or.reduce(masks) if masks else None

    def place_at(
        self, gangs: Sequence[PendingGang], time: Micros
    ) -> tuple[PlacementTrial, ...] | None:
        """Place gangs at a time, without delaying a reserved start while they would run, and on
        nodes that are not kept for others."""
        end = max(end_of(time, gang.duration) for gang in gangs)
        capacities, allowed = self._planned.during(time, end), self.allowed_until(end)
        return place_all([PlacementTrial(gang, capacities, allowed) for gang in gangs])

    def fits_at(self, gangs: Sequence[PendingGang], time: Micros) -> bool:
        """Whether `place_at` finds places."""
        if len(gangs) > 1 or not is_simple(gangs[0]):
            trials = self.place_at(gangs, time)
            undo_all(trials)
            return trials is not None
        gang = gangs[0]
        request, domains = gang.roles[0].request, required_domains(gang)
        end = end_of(time, gang.duration)
        counts, allowed = self._planned.at(time).fit(request).counts, self.allowed_until(end)
        if allowed is not None:
            counts = counts * allowed
        if self._table.most_in_domain(counts, domains) < gang.need:
            return False
        for capacity in self._planned.at_starts(time, end):
            counts = np.minimum(counts, capacity.fit(request).counts)
        return self._table.most_in_domain(counts, domains) >= gang.need

    def reserve(self, reservation: Reservation) -> None:
        """Add a reservation whose places are free."""
        self._planned.add(reservation)
        self.binding.add(reservation)


def start_at(at: Micros, job: str, trials: Sequence[PlacementTrial]) -> ReservedStart:
    """The start of gangs, of which the first is that job, at the places of their trials."""
    tasks = Counter(place.worker for trial in trials for place in trial.assignments())
    counts = tuple(tasks.values()) if len(trials) == 1 else ()
    return ReservedStart(job, tuple(tasks), at, counts)


def node_mask(table: NodeTable, names: Sequence[str]) -> Bools:
    """Mask of the named nodes."""
    mask = np.zeros(table.open.shape, np.bool_)
    mask[[table.index[name] for name in names if name in table.index]] = True
    return mask
