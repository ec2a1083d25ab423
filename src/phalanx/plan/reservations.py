"""Reserved starts: a gang that does not fit yet is given a start time and nodes, and keeps both.

Backfill: another gang starts before it if it ends by then, or leaves those nodes enough at that
time. A starving gang without a possible start time has nodes kept free for it instead, except from
gangs that end before it could start.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from phalanx.core.reasons import HeldBack
from phalanx.core.time_units import Micros
from phalanx.plan.decisions import ReservedStart
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.future_capacity import (
    FutureCapacity,
    KeptNodes,
    Reservation,
    end_of,
    node_mask,
    start_at,
)
from phalanx.plan.future_limits import FutureLimits
from phalanx.plan.groups import group_of
from phalanx.plan.model import NEVER, PendingGang, TaskRequest
from phalanx.plan.pending import Bucket, is_simple, is_starving, required_domains
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

    def __init__(self, state: Moment, capacity: PassCapacity, shares: FairShares) -> None:
        self._state = state
        self._capacity = capacity
        self._now = state.now
        self.limits = FutureLimits(shares, state.running, state.now)
        self._future = FutureCapacity(state.running, capacity)
        self._attempts = 0
        #: Answers of `_most_fit`, and what they depend on.
        self._most: dict[tuple[TaskRequest, str | None, Micros | None], int] = {}
        self._most_version: tuple[int, ...] = ()
        #: The starts that were reserved for gangs which are still pending.
        self._last = {
            start.job: start for start in state.reserved_starts if start.job in state.pending.gangs
        }
        for start in self._last.values():
            self._promise(start)
        #: By bucket: the gangs in it that were promised a start.
        self._promised_in: dict[Bucket | None, list[PendingGang]] = {}
        for gang in self.promised():
            self._promised_in.setdefault(state.pending.bucket_of(gang), []).append(gang)

    def _promise(self, start: ReservedStart) -> None:
        """Count a start of the last pass, if its nodes are open and its time has not come."""
        table, pending = self._state.table, self._state.pending
        if start.at is None or start.at <= self._now:
            return
        is_open = (name in table.index and table.open[table.index[name]] for name in start.nodes)
        group = group_of(pending.gangs[start.job], pending)
        gangs = group.members
        is_eligible = not group.missing and all(pending.own_reason(g) is None for g in gangs)
        if gangs[0].job == start.job and is_eligible and all(is_open):
            self._future.promise(Reservation(gangs, start, start.at, table))

    @property
    def is_full(self) -> bool:
        """Whether no further start is reserved. A gang that starts before the next plan does not
        count."""
        policy = self._state.policy
        return self._future.starting_after(self._now + policy.plan_every) >= policy.heads

    def promised(self) -> list[PendingGang]:
        """The gangs that were promised a start and have not been served yet."""
        gangs = self._state.pending.gangs
        return [gangs[job] for job in self._last if self._future.is_promised(job)]

    def promised_times(self) -> dict[str, Micros]:
        """The reserved start of every job that was promised one, also of each job of a group."""
        return {gang.job: each.at for each in self._future.promises() for gang in each.gangs}

    def is_promised(self, gang: PendingGang) -> bool:
        return self._future.is_promised(gang.job)

    def is_reserved(self, job: str) -> bool:
        """Whether a start or nodes are reserved for a gang, or it was promised a start."""
        if self._future.is_promised(job):
            return True
        starts = (reservation.start for reservation in self._future.binding.reservations)
        kept = (start for kept in self._future.kept for start in kept.starts)
        return any(start.job == job for start in (*starts, *kept))

    def starts(self) -> tuple[ReservedStart, ...]:
        """The reserved start of every gang, also of each gang of a group, the earliest first."""
        reserved = [
            replace(reservation.start, job=gang.job)
            for reservation in self._future.binding.reservations
            for gang in reservation.gangs
        ]
        reserved += (start for kept in self._future.kept for start in kept.starts)
        return tuple(sorted(reserved, key=lambda start: (start.at or NEVER, start.job)))

    def broken(self, starts: Iterable[ReservedStart], served: Collection[str]) -> tuple[str, ...]:
        """The jobs whose start the last pass had reserved, and this one reserves later or not.

        `starts` are those that this pass reserves, `served` are jobs that have got a place or have
        ended.
        """
        pending, at = self._state.pending, {start.job: start.at for start in starts}
        return tuple(
            job
            for job, last in self._last.items()
            if last.at is not None
            and last.at < (at.get(job) or NEVER)
            and job not in served
            and pending.own_reason(pending.gangs[job]) is None
        )

    # Gangs that start now

    def add_started(self, gang: PendingGang, occupants: Sequence[Occupant]) -> None:
        """Count tasks that start in this pass. Capacities of `capacities_during` have them."""
        self._future.drop(gang.job)
        end = None if gang.duration is None else self._now + gang.duration
        self._future.add_started(end, occupants)
        if end is not None:
            self.limits.add_started(gang.queue, [(end, occupant) for occupant in occupants])

    def add_evicted(self, queue: str, tasks: Sequence[tuple[Micros, Occupant]]) -> None:
        """Count tasks that are evicted in this pass, each with its known end."""
        self._future.ends.exclude(tasks)
        self.limits.add_evicted(queue, tasks)

    def note_change(self) -> None:
        """Count that capacity was taken or freed, other than by a start."""
        self._future.forget()

    def capacities_during(self, duration: Micros | None) -> list[FreeCapacity]:
        """Free capacity at each reserved start that falls into this time from now.

        A gang that starts now and runs so long needs places in all of them.
        """
        return self._future.binding.at_starts(self._now, end_of(self._now, duration))

    def allowed_nodes(self, duration: Micros | None) -> Bools | None:
        """Mask of the nodes that are not kept from a gang that runs so long; None: all nodes."""
        return self._future.allowed_until(end_of(self._now, duration))

    def may_bind(self, duration: Micros | None) -> bool:
        """Whether a gang that runs so long might delay a reserved start."""
        return self.first_delayed(duration) is not None

    def fits_beside(self, gang: PendingGang) -> bool:
        """Whether a simple gang fits now without delaying a reserved start."""
        request, domains = gang.roles[0].request, required_domains(gang)
        if not self.may_bind(gang.duration):
            return self._capacity.fits_in_both(request, gang.need, domains)
        return self._most_fit(request, domains, gang.duration) >= gang.need

    def _most_fit(self, request: TaskRequest, domains: str | None, duration: Micros | None) -> int:
        """How many tasks that run so long fit now in one domain, or in all, without delaying a
        reserved start."""
        capacity = self._capacity
        state = (capacity.present.version, capacity.soon.version)
        version = (*state, len(self._future.binding.reservations), len(self._future.kept))
        if version != self._most_version:
            self._most, self._most_version = {}, version
        key = (request, domains, duration)
        most = self._most.get(key)
        if most is None:
            present, *others = capacity.both
            counts = present.fit(request).counts
            nodes = np.flatnonzero(counts)
            allowed = self.allowed_nodes(duration)
            nodes = nodes if allowed is None else nodes[allowed[nodes]]
            least = counts[nodes]
            for each in (*others, *self.capacities_during(duration)):
                least = np.minimum(least, each.fit(request).counts[nodes])
            most = self._most[key] = self._state.table.most_in_domain(least, domains, nodes)
        return most

    def first_delayed(self, duration: Micros | None) -> ReservedStart | None:
        """The first reserved start that a gang which runs so long may delay."""
        return next(self._delayed_by(duration), None)

    def held_back(
        self, gangs: Sequence[PendingGang], delayed: ReservedStart | None
    ) -> HeldBack | None:
        """The reserved start that the gangs would delay, if they could start without it.

        `delayed` is a start that is already known to be delayed.
        """
        starts = (self.first_delayed(gang.duration) for gang in gangs)
        start = delayed or next(filter(None, starts), None)
        if start is None or not self._fit_without_reserved(gangs):
            return None
        return HeldBack(start.job, start.at)

    def _fit_without_reserved(self, gangs: Sequence[PendingGang]) -> bool:
        """Whether gangs could start now if no start were reserved."""
        gang, capacity = gangs[0], self._capacity
        if len(gangs) == 1 and is_simple(gang):
            return capacity.fits_in_both(gang.roles[0].request, gang.need, required_domains(gang))
        trials = place_all([PlacementTrial(gang, capacity.both) for gang in gangs])
        undo_all(trials)
        return trials is not None

    def _delayed_by(self, duration: Micros | None) -> Iterator[ReservedStart]:
        """The reserved starts that fall into this time from now."""
        end = end_of(self._now, duration)
        for reservation in self._future.binding.reservations:
            if reservation.at < end:
                yield reservation.start
        for kept in self._future.kept:
            if kept.excludes(end):
                yield from kept.starts

    # Gangs that do not fit yet

    def has_promise(self, bucket: Bucket) -> bool:
        """Whether a gang of the bucket was promised a start and has not been served yet."""
        return any(map(self.is_promised, self._promised_in.get(bucket, ())))

    def keep_promise(self, gangs: Sequence[PendingGang]) -> ReservedStart | None:
        """Keep the start that the last pass reserved; None if there is none, or it cannot be.

        So are the starts of gangs with equal requests: where the gangs before them do not fit, they
        have no turn of their own.
        """
        start = self._keep(gangs)
        for gang in self._promised_in.get(self._state.pending.bucket_of(gangs[0]), ()):
            if self.is_promised(gang):
                self._keep((gang,))
        return start

    def _keep(self, gangs: Sequence[PendingGang]) -> ReservedStart | None:
        job = gangs[0].job
        if not self._future.is_promised(job):
            return self._future.keep(job)
        at = self._last[job].at
        if at is None or not self.limits.allow(gangs, at):
            self._future.drop(job)
            return None
        start = self._future.keep(job)
        if start is not None:
            self.limits.claim(gangs, start)
        return start

    def keep_promises(self) -> bool:
        """Keep all starts that the last pass reserved and for which no turn has come; False if one
        of them cannot be kept."""
        gangs = self.promised()
        if not all(self._future.has_place(gang.job) for gang in gangs):
            return False
        return None not in [self._keep((gang,)) for gang in gangs]

    def reserve(
        self, gangs: Sequence[PendingGang], *, is_overdue: bool = False
    ) -> ReservedStart | None:
        """Reserve a start for a gang or group that is short of free capacity only.

        Overdue gangs are reserved a start besides the limited number of others.

        A start of the last pass is kept if it still can be. A starving gang for which there is no
        time has nodes kept free.
        """
        policy = self._state.policy
        start = self.keep_promise(gangs)
        if start is not None:
            return start
        is_full = self.is_full or self._attempts >= 2 * policy.heads
        if is_full and not is_overdue:
            return None
        self._attempts += 1
        start = self._reserve_earliest(gangs) if policy.backfill else None
        if start is not None:
            self.limits.claim(gangs, start)
        elif all(is_starving(policy, gang, self._now) for gang in gangs):
            self._keep_nodes(gangs)
        return start

    def keep_limit(self, gangs: Sequence[PendingGang], queue: str) -> bool:
        """Keep the reserved start of gangs that wait for the limit of a queue, or else that limit,
        for the first of them; False if it is not known when they could start."""
        if not self._state.policy.backfill:
            return False
        return self.keep_promise(gangs) is not None or self.limits.keep(gangs, queue)

    def fits_in_the_end(self, gangs: Sequence[PendingGang], beside: PendingGang | None) -> bool:
        """Whether gangs fit once all tasks with a known end are gone, whatever is reserved.

        `beside`: without the nodes that the last pass kept for this gang.
        """
        gang, capacity, allowed = gangs[0], self._future.in_the_end, None
        last = None if beside is None else self._last.get(beside.job)
        if last is not None and last.at is None:
            allowed = ~node_mask(self._state.table, last.nodes)
        elif len(gangs) == 1 and is_simple(gang):
            return capacity.most_fit(gang.roles[0].request, required_domains(gang)) >= gang.need
        trials = place_all([PlacementTrial(gang, (capacity,), allowed) for gang in gangs])
        undo_all(trials)
        return trials is not None

    def _reserve_earliest(self, gangs: Sequence[PendingGang]) -> ReservedStart | None:
        """Reserve the earliest time at which the gangs fit; None if there is none."""
        times, future = self._future.times(), self._future
        for low, high in self._stretches(gangs, times):
            position: int | None = low
            if not self._fits_at(gangs, times[low]):
                position = self._first_fit(gangs, times, low, high)
            trials = None if position is None else future.place_at(gangs, times[position])
            if trials is not None and position is not None:
                start = start_at(times[position], gangs[0].job, trials)
                undo_all(trials)
                future.reserve(Reservation(gangs, start, times[position], self._state.table))
                return start
        return None

    def _stretches(
        self, gangs: Sequence[PendingGang], times: Sequence[Micros]
    ) -> Iterator[tuple[int, int]]:
        """Positions from which and up to which gangs that fit at one time also fit later.

        Between them a reserved gang starts or ends, or begins to start before the gangs have ended,
        or kept nodes or limits are needed before that.
        """
        first = 0
        if len(times) > _FEW_TIMES:
            first = bisect_left(times, self._first_possible(gangs))
        durations = [gang.duration for gang in gangs if gang.duration is not None]
        cuts = {first, len(times)}
        for reservation in self._future.all_reservations():
            cuts |= {bisect_left(times, reservation.at), bisect_left(times, reservation.end)}
            cuts |= {bisect_right(times, reservation.at - each) for each in durations}
        for kept in self._future.kept:
            cuts |= {bisect_right(times, kept.needed_from - each) for each in durations}
        for at, end in self.limits.kept_times():
            cuts |= {bisect_left(times, at), bisect_left(times, end)}
            cuts |= {bisect_right(times, at - each) for each in durations}
        return pairwise(sorted(cut for cut in cuts if cut >= first))

    def _first_fit(
        self, gangs: Sequence[PendingGang], times: Sequence[Micros], low: int, high: int
    ) -> int | None:
        """Position of the first time at which the gangs fit, after `low` and before `high`.

        Heuristic: bisection, which begins with short steps, because the first time at which enough
        may have ended is most often the right one.
        """
        if high - low < 2 or not self._fits_at(gangs, times[high - 1]):
            return None
        step, fits = 1, high - 1
        while fits - low > 1:
            middle = min(low + step, (low + fits) // 2)
            step *= 2
            if self._fits_at(gangs, times[middle]):
                fits = middle
            else:
                low = middle
        return fits

    def _fits_at(self, gangs: Sequence[PendingGang], time: Micros) -> bool:
        return self.limits.allow(gangs, time) and self._future.fits_at(gangs, time)

    def _first_possible(self, gangs: Sequence[PendingGang]) -> Micros:
        """The time before which the gangs certainly do not fit."""
        soon = self._capacity.soon
        need: Floats = np.sum([minimum_amounts(gang, soon.table) for gang in gangs], axis=0)
        for _, places in self._capacity.kept_places():
            for _, vector, *_ in places:
                need[vector.rows] -= vector.amounts
        return self._future.ends.earliest(need - soon.free_in_sum())

    def _keep_nodes(self, gangs: Sequence[PendingGang]) -> None:
        """Keep nodes free for starving gangs: those of the last pass, or the least busy ones."""
        table = self._state.table
        allowed = self.allowed_nodes(None)
        last = self._last.get(gangs[0].job)
        if last is not None and last.at is None:
            allowed = node_mask(table, last.nodes)
        utilization = self._capacity.present.utilization()
        empty = (self._state.empty.fork(),)
        trials = place_all([PlacementTrial(gang, empty, allowed, utilization) for gang in gangs])
        nodes = _node_names(trials or ())
        occupants = (occupant for trial in trials or () for occupant in trial.occupants())
        starts = tuple(ReservedStart(gang.job, nodes, None) for gang in gangs)
        needed_from = self._future.ends.needed_from(occupants, table)
        self._future.kept.append(KeptNodes(starts, node_mask(table, nodes), needed_from))


def _node_names(trials: Iterable[PlacementTrial]) -> tuple[str, ...]:
    """The names of all nodes that the trials use."""
    places = (place for trial in trials for place in trial.assignments())
    return tuple(dict.fromkeys(place.worker for place in places))
