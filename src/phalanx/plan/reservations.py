"""Start times for gangs that do not fit yet: a head is given a time and nodes, and both are kept.

Others may start in front of it if they end by then, or leave those nodes what it needs then. Tasks
without a time limit never end in this reckoning.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from phalanx.core.reasons import HeldBack
from phalanx.core.spec.job import Micros
from phalanx.plan.decisions import ReservedStart
from phalanx.plan.model import PendingGang
from phalanx.plan.pending import is_starving
from phalanx.plan.placement.amounts import minimum_amounts
from phalanx.plan.placement.trial import PlacementTrial, place_all, undo_all
from phalanx.plan.state.capacity import FreeCapacity, Occupant
from phalanx.plan.state.nodes import Bools, Floats, Ints, NodeTable
from phalanx.plan.state.pass_capacity import PassCapacity
from phalanx.plan.state.planner_state import PlannerState
from phalanx.plan.state.running import NEVER, RunningGangs

#: So few times are tried without asking first from when on they are worth it.
_FEW = 8


class Ends:
    """When places become free, of those whose end is known."""

    def __init__(self, tenants: RunningGangs) -> None:
        whole = [o for o in tenants.ending.values() if not o.has_fractions]
        whole.sort(key=lambda o: o.first_end)
        self._ends: Ints = np.concatenate([np.zeros(0, np.int64), *(o.ends for o in whole)])
        if whole:
            self._nodes = np.concatenate([o.nodes for o in whole])
            self._amounts = np.concatenate([o.amounts for o in whole])
        if (self._ends[1:] < self._ends[:-1]).any():
            # The tasks of some gang do not end together.
            order = np.argsort(self._ends, kind="stable")
            self._ends, self._nodes = self._ends[order], self._nodes[order]
            self._amounts = self._amounts[order]
        #: Tasks that share devices, and those that start in this pass, one by one.
        self._others: list[tuple[Micros, Occupant]] = [
            (end, occupant)
            for o in tenants.ending.values()
            if o.has_fractions
            for end, occupant in zip(o.ends.tolist(), o.occupants, strict=True)
        ]
        first = np.flatnonzero(self._ends[1:] != self._ends[:-1]) + 1
        times = {*self._ends[:1].tolist(), *self._ends[first].tolist()}
        times |= {end for end, _ in self._others}
        self.times = sorted(times - {NEVER})

    def started(self, end: Micros, occupants: Sequence[Occupant]) -> None:
        """Something starts now and ends then."""
        self._others += ((end, occupant) for occupant in occupants)
        insort(self.times, end)

    @cached_property
    def _sums(self) -> Ints:
        sums: Ints = np.cumsum(self._amounts, axis=0)
        return sums

    def enough(self, lacking: Floats) -> int:
        """The position of the first time by which so much may have ended; by row."""
        for _, (_, vector, _) in self._others:
            lacking[vector.rows] -= vector.amounts
        position = 0
        for row in np.flatnonzero(lacking > 0).tolist() if len(self._ends) else ():
            at = int(np.searchsorted(self._sums[:, row], lacking[row]))
            if at == len(self._ends):
                return len(self.times)
            position = max(position, bisect_left(self.times, int(self._ends[at])))
        return position

    def leave(self, view: FreeCapacity, by: Micros) -> None:
        """Take out of a view all that ends by that time."""
        gone = int(np.searchsorted(self._ends, by, "right"))
        if gone:
            view.add(self._nodes[:gone], self._amounts[:gone])
        view.vacate(occupant for end, occupant in self._others if end <= by)


class Reserved(NamedTuple):
    """A claimant whose start is kept free in this pass."""

    claims: Sequence[PendingGang]
    head: ReservedStart  #: by its first gang


class StartReservations:
    def __init__(self, state: PlannerState, room: PassCapacity) -> None:
        self._state = state
        self._tenants = state.running
        self._room = room
        self._now = state.now
        self._tried = 0
        self._ends: Ends | None = None
        self.heads: list[Reserved] = []
        #: What is free at the times of heads, with all that heads take by then. Made when asked
        #: for: most passes place nothing that could be in a head's way.
        self._futures: dict[Micros, FreeCapacity] = {}
        #: The same for other times, until something is placed; and how many heads are in it.
        self._guesses: dict[Micros, tuple[FreeCapacity, int]] = {}
        #: Nodes that are kept for those who have waited too long, and who they are.
        self.kept: Bools | None = None
        self.keepers: list[ReservedStart] = []

    @property
    def ends(self) -> Ends:
        if self._ends is None:
            self._ends = Ends(self._tenants)
        return self._ends

    def started(self, lasts: Micros | None, occupants: Sequence[Occupant]) -> None:
        """Somebody starts now; in the futures that it is in the way of, it is taken already."""
        self._guesses.clear()
        if lasts is not None and (self._tenants.ending or self.heads):
            self.ends.started(self._now + lasts, occupants)

    def in_the_way(self, lasts: Micros | None) -> list[FreeCapacity]:
        """The heads' futures that somebody who starts now and takes so long would still be in."""
        until = NEVER if lasts is None else self._now + lasts
        for at in self._times():
            if at < until:
                self._future(at)
        # Heads that turned out to be broken are nobody's concern any more.
        return [self._futures[at] for at in self._times() if at < until]

    def delayed_by(self, lasts: Micros | None) -> ReservedStart | None:
        """The first head that such a start could delay."""
        until = NEVER if lasts is None else self._now + lasts
        heads = (reserved.head for reserved in self.heads)
        return next((head for head in heads if head.at is not None and until > head.at), None)

    def held_back(
        self, claims: Sequence[PendingGang], behind: ReservedStart | None
    ) -> HeldBack | None:
        """Whom a claimant would delay, if it could start but for them."""
        heads = [behind, *(self.delayed_by(claim.duration) for claim in claims)]
        head = next((head for head in (*heads, *self.keepers) if head is not None), None)
        if head is None:
            return None
        trials = place_all([PlacementTrial(claim, self._room.views) for claim in claims])
        undo_all(trials)
        return None if trials is None else HeldBack(head.job, head.at)

    def _times(self) -> list[Micros]:
        return sorted({r.head.at for r in self.heads if r.head.at is not None})

    def _future(self, at: Micros) -> FreeCapacity:
        if at not in self._futures:
            self._futures[at] = self._at(at)
        return self._futures[at]

    def _at(self, at: Micros) -> FreeCapacity:
        """What is free then, with what heads will have taken by then."""
        view = self._room.soon.fork()
        self.ends.leave(view, at)
        for reserved in list(self.heads):
            time = reserved.head.at
            if time is None or time > at:
                continue
            if not _take(reserved, view) and time == at:
                # It broke; the next pass looks for another time.
                self.heads.remove(reserved)
                self._guesses.clear()
        return view

    def head(self, claims: Sequence[PendingGang]) -> ReservedStart | None:
        """Give a claimant that only lacks room its start time, and keep it from pass to pass. One
        that has waited too long without any is given its nodes."""
        policy = self._state.policy
        if len(self.heads) >= policy.heads:
            return None
        last = next(
            (head for head in self._state.reserved_starts if head.job == claims[0].job), None
        )
        if last is not None and self._keep(Reserved(claims, last)):
            return last
        if self._tried >= 2 * policy.heads:
            return None
        self._tried += 1
        head = self._reserve(claims) if policy.backfill else None
        if head is None and all(is_starving(policy, claim, self._now) for claim in claims):
            self._keep_nodes(claims, last)
        return head

    def _keep(self, reserved: Reserved) -> bool:
        """Go on with a reservation of the last pass, if it still can be."""
        table, head = self._room.soon.table, reserved.head
        known = all(name in table.index and table.open[table.index[name]] for name in head.nodes)
        if not known or head.at is None or head.at <= self._now:
            return False
        if head.at in self._futures and not _take(reserved, self._futures[head.at]):
            return False
        self.heads.append(reserved)
        return True

    def _reserve(self, claims: Sequence[PendingGang]) -> ReservedStart | None:
        """The earliest time at which enough has ended, and the nodes to keep for then."""
        times = self.ends.times
        low, high = self._earliest(claims) if len(times) > _FEW else 0, len(times)
        trials: tuple[PlacementTrial, ...] | None = None
        step = 1
        while low < high:
            # It is most often at the first time by which enough may have ended, or soon after.
            middle = min(low + step - 1, (low + high) // 2)
            step *= 2
            undo_all(trials)
            trials = self._placed(claims, times[middle])
            if trials is None:
                low = middle + 1
            else:
                high = middle
        if low < len(times):
            trials = trials or self._placed(claims, times[low])
        if trials is None:
            return None
        head = ReservedStart(claims[0].job, _nodes(trials), times[low])
        # The guess for that time, in which it is taken already, is a head's future from now on.
        self._guesses.pop(times[low], None)
        self._futures.setdefault(times[low], trials[0].capacities[0])
        self.heads.append(Reserved(claims, head))
        return head

    def _earliest(self, claims: Sequence[PendingGang]) -> int:
        """The position of the time before which it certainly cannot start."""
        soon = self._room.soon
        need: Floats = np.sum([minimum_amounts(claim, soon.table) for claim in claims], axis=0)
        return self.ends.enough(need - np.maximum(soon.free, 0).sum(axis=1, where=soon.table.open))

    def _placed(
        self, claims: Sequence[PendingGang], at: Micros
    ) -> tuple[PlacementTrial, ...] | None:
        """The claimant at that time, in the way of no head that comes while it would run."""
        view = self._futures.get(at) or self._guess(at)
        lasts = [NEVER if claim.duration is None else claim.duration for claim in claims]
        later = [self._future(time) for time in self._times() if at < time < at + max(lasts)]
        return place_all([PlacementTrial(claim, (view, *later)) for claim in claims])

    def _guess(self, at: Micros) -> FreeCapacity:
        if at not in self._guesses:
            self._guesses[at] = self._at(at), len(self.heads)
        view, known = self._guesses[at]
        for reserved in self.heads[known:]:
            if reserved.head.at is not None and reserved.head.at <= at:
                _take(reserved, view)
        self._guesses[at] = view, len(self.heads)
        return view

    def _keep_nodes(self, claims: Sequence[PendingGang], last: ReservedStart | None) -> None:
        """Keep nodes from new work for who has waited too long, whenever they may start."""
        table = self._room.soon.table
        only = None if self.kept is None else ~self.kept
        if last is not None and last.at is None:
            only = _mask(table, last.nodes)
        busy = self._room.present.busyness()
        views = (self._state.empty,)
        trials = place_all([PlacementTrial(claim, views, only, penalty=busy) for claim in claims])
        nodes = _nodes(trials or ())
        undo_all(trials)
        mask = _mask(table, nodes)
        self.kept = mask if self.kept is None else self.kept | mask
        self.keepers += (ReservedStart(claim.job, nodes, None) for claim in claims)

    def result(self) -> tuple[ReservedStart, ...]:
        """What is kept, for every gang of every claimant."""
        heads = (replace(r.head, job=claim.job) for r in self.heads for claim in r.claims)
        return (*heads, *self.keepers)


def _take(reserved: Reserved, view: FreeCapacity) -> bool:
    """Let a head have its nodes."""
    only = _mask(view.table, reserved.head.nodes)
    return (
        place_all([PlacementTrial(claim, (view,), only) for claim in reserved.claims]) is not None
    )


def _nodes(trials: Iterable[PlacementTrial]) -> tuple[str, ...]:
    places = (place for trial in trials for place in trial.assignments())
    return tuple(dict.fromkeys(place.worker for place in places))


def _mask(table: NodeTable, names: Sequence[str]) -> Bools:
    mask = np.zeros(table.open.shape, np.bool_)
    mask[[table.index[name] for name in names if name in table.index]] = True
    return mask
