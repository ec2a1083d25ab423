"""Start times for gangs that do not fit yet: a head is given a time and nodes, and both are kept.

Others may start in front of it if they end by then, or leave those nodes what it needs then. Tasks
without a time limit never end in this reckoning.
"""

from collections.abc import Sequence

import numpy as np

from phalanx.core.spec import Micros
from phalanx.plan.decisions import Head
from phalanx.plan.model import Claim
from phalanx.plan.nodes import Bools, Ints, NodeTable
from phalanx.plan.place import Trial
from phalanx.plan.room import Room
from phalanx.plan.tenants import NEVER, Tenants
from phalanx.plan.view import Occupant, View


class Ends:
    """When places become free, of those whose end is known."""

    def __init__(self, tenants: Tenants) -> None:
        self._shared: list[tuple[Micros, Occupant]] = []
        times: set[Micros] = set()
        #: By their number of rows, which grows when a resource is heard of.
        alike: dict[int, list[tuple[Ints, Ints, Ints]]] = {}
        for occupancy in tenants.ending.values():
            ends = np.array(
                [
                    NEVER if place.ends_at is None or place.leaving else place.ends_at
                    for place in occupancy.tenant.places
                ],
                np.int64,
            )
            times.update(ends.tolist())
            if any(vector.fraction for _, vector, _ in occupancy.occupants):
                self._shared += zip(ends.tolist(), occupancy.occupants, strict=True)
            else:
                some = (ends, occupancy.nodes, occupancy.amounts)
                alike.setdefault(occupancy.amounts.shape[1], []).append(some)
        #: Ends, nodes and amounts of all places together.
        self._whole = [
            tuple(map(np.concatenate, zip(*some, strict=True))) for some in alike.values()
        ]
        self.times = sorted(times - {NEVER})

    def started(self, end: Micros, occupants: Sequence[Occupant]) -> None:
        """Something starts now and ends then."""
        self._shared += ((end, occupant) for occupant in occupants)
        self.times = sorted({*self.times, end})

    def leave(self, view: View, by: Micros) -> None:
        """Take out of a view all that ends by that time."""
        for ends, nodes, amounts in self._whole:
            gone = ends <= by
            if gone.any():
                view.add(nodes[gone], amounts[gone])
        view.vacate(occupant for end, occupant in self._shared if end <= by)


class Reserved:
    """A head in this pass. Its view, at its time and with its places taken, is made when asked for:
    most passes place nothing that could be in its way."""

    def __init__(self, claim: Claim, head: Head, view: View | None) -> None:
        self.claim = claim
        self.head = head
        self.view = view


class Backfill:
    def __init__(self, tenants: Tenants, room: Room, now: Micros) -> None:
        self._tenants = tenants
        self._room = room
        self._now = now
        self._ends: Ends | None = None
        self.heads: list[Reserved] = []
        #: Nodes that are kept for those who have waited too long, and who they are.
        self.kept: Bools | None = None
        self.keepers: list[Head] = []

    @property
    def ends(self) -> Ends:
        if self._ends is None:
            self._ends = Ends(self._tenants)
        return self._ends

    def started(self, lasts: Micros | None, occupants: Sequence[Occupant]) -> None:
        if lasts is not None and (self._tenants.ending or self.heads):
            self.ends.started(self._now + lasts, occupants)

    def in_the_way(self, lasts: Micros | None) -> list[View]:
        """The heads' views that somebody who starts now and takes so long would still be in."""
        until = NEVER if lasts is None else self._now + lasts
        views = []
        for reserved in list(self.heads):
            if reserved.head.at is not None and until > reserved.head.at:
                view = self._view_of(reserved)
                if view is not None:
                    views.append(view)
        return views

    def delayed_by(self, lasts: Micros | None) -> Head | None:
        """The first head that such a start could delay."""
        until = NEVER if lasts is None else self._now + lasts
        heads = (reserved.head for reserved in self.heads)
        return next((head for head in heads if head.at is not None and until > head.at), None)

    def _view_of(self, reserved: Reserved) -> View | None:
        if reserved.view is None:
            at = reserved.head.at or 0
            view = self._at(at, before=reserved)
            only = _mask(view.table, reserved.head.nodes)
            if Trial(reserved.claim, (view,), only).minimum():
                reserved.view = view
            else:
                self.heads.remove(reserved)  # it broke; the next pass looks for another time
        return reserved.view

    def keep(self, claim: Claim, head: Head) -> bool:
        """Go on with a reservation of the last pass, if it still can be."""
        table = self._room.soon.table
        known = all(name in table.index and table.open[table.index[name]] for name in head.nodes)
        if not known or head.at is None or head.at <= self._now:
            return False
        self.heads.append(Reserved(claim, head, None))
        return True

    def reserve(self, claim: Claim) -> Head | None:
        """The earliest time at which enough has ended, and the nodes to keep for then."""
        times = self.ends.times
        low, high = 0, len(times)
        while low < high:
            middle = (low + high) // 2
            trial = self._trial(claim, times[middle])
            if trial.minimum():
                trial.undo()
                high = middle
            else:
                low = middle + 1
        if low == len(times):
            return None
        trial = self._trial(claim, times[low])
        trial.minimum()
        nodes = tuple(dict.fromkeys(place.worker for place in trial.assignments()))
        head = Head(claim.job, nodes, times[low])
        self.heads.append(Reserved(claim, head, trial.views[0]))
        return head

    def _trial(self, claim: Claim, at: Micros) -> Trial:
        return Trial(claim, (self._at(at), *self._later(at, claim.lasts)))

    def _at(self, at: Micros, before: Reserved | None = None) -> View:
        """What is free then, with what earlier heads will have taken by then."""
        view = self._room.soon.fork()
        self.ends.leave(view, at)
        for reserved in self.heads:
            if reserved is before:
                break
            if reserved.head.at is not None and reserved.head.at <= at:
                only = _mask(view.table, reserved.head.nodes)
                Trial(reserved.claim, (view,), only).minimum()
        return view

    def _later(self, at: Micros, lasts: Micros | None) -> list[View]:
        until = NEVER if lasts is None else at + lasts
        views = []
        for reserved in list(self.heads):
            time = reserved.head.at
            if time is not None and at < time < until:
                view = self._view_of(reserved)
                if view is not None:
                    views.append(view)
        return views

    def keep_nodes(self, claim: Claim, empty: View, last: Head | None) -> None:
        """Keep nodes from new work for a gang that has waited too long, whenever it may start."""
        table = self._room.soon.table
        only = None if self.kept is None else ~self.kept
        if last is not None and last.at is None:
            only = _mask(table, last.nodes)
        trial = Trial(claim, (empty,), only, penalty=self._room.present.busyness())
        nodes: tuple[str, ...] = ()
        if trial.minimum():
            nodes = tuple(dict.fromkeys(place.worker for place in trial.assignments()))
            trial.undo()
        mask = _mask(table, nodes)
        self.kept = mask if self.kept is None else self.kept | mask
        self.keepers.append(Head(claim.job, nodes, None))


def _mask(table: NodeTable, names: Sequence[str]) -> Bools:
    mask = np.zeros(table.open.shape, np.bool_)
    mask[[table.index[name] for name in names if name in table.index]] = True
    return mask
