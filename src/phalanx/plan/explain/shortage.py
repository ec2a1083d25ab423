"""Why a gang found no place: the first thing that stands in its way."""

from collections.abc import Iterable, Sequence

import numpy as np

from phalanx.core.reasons import (
    Fragmented,
    NeverFits,
    NoNodeMatches,
    NotEnough,
    QueueLimit,
    Reason,
)
from phalanx.core.spec.job import PackMode
from phalanx.plan.model import PendingGang, RoleRequest, TaskRequest
from phalanx.plan.pending import is_simple
from phalanx.plan.placement.amounts import minimum_amounts
from phalanx.plan.placement.trial import PlacementTrial, place_all
from phalanx.plan.state.capacity import FreeCapacity, count
from phalanx.plan.state.nodes import SLOTS, WHOLE, Bools, Floats, Ints

#: Rows that only say how a node is filled.
_APART = (SLOTS, WHOLE)


def never(claims: Sequence[PendingGang], empty: FreeCapacity) -> Reason | None:
    """What the empty cluster lacks for these gangs; None if they would fit."""
    simple = claims[0] if len(claims) == 1 and is_simple(claims[0]) else None
    if simple is not None and empty.fit(simple.roles[0].request).total >= simple.need:
        return None
    needed = [part for claim in claims for part in _needed(claim)]
    for stands_in_the_way in (_unmatched, _too_large):
        for part in needed:
            reason = stands_in_the_way(part, empty)
            if reason is not None:
                return reason
    if simple is not None:
        return _too_many(simple, simple.roles[0], empty)
    trial = empty.fork()
    if place_all([PlacementTrial(claim, (trial,)) for claim in claims]) is None:
        return _never_together(claims, empty)
    return None


def _needed(claim: PendingGang) -> list[RoleRequest]:
    """The parts without which the gang cannot start."""
    return [part for part in claim.roles if _least(claim, part) > 0]


def _least(claim: PendingGang, part: RoleRequest) -> int:
    """Without so many tasks of the part the gang cannot start."""
    spare = sum(len(part.tasks) for part in claim.roles) - claim.need
    return max(part.need, len(part.tasks) - spare)


def _unmatched(part: RoleRequest, empty: FreeCapacity) -> Reason | None:
    """The labels that no node has."""
    if part.request.selector and not empty.table.mask(part.request).any():
        return NoNodeMatches(dict(part.request.selector))
    return None


def _too_large(part: RoleRequest, empty: FreeCapacity) -> Reason | None:
    """What no node could give to one task of the part."""
    table = empty.table
    mask = table.mask(part.request)
    for resource, amount in part.request.resources:
        capacity = table.capacity[table.rows[resource]][mask]
        largest = int(capacity.max(initial=0))
        if amount > largest:
            return NeverFits(resource, amount, largest, per_task=True)
    return None


def _too_many(claim: PendingGang, part: RoleRequest, empty: FreeCapacity) -> Reason:
    resource, amount = next(iter(part.request.resources), (SLOTS, 1))
    return NeverFits(resource, amount * claim.need, amount * empty.fit(part.request).total)


def _never_together(claims: Sequence[PendingGang], empty: FreeCapacity) -> Reason:
    need = sum(minimum_amounts(claim, empty.table) for claim in claims)
    capacity = _free_in_sum(empty)
    for resource, row in empty.table.rows.items():
        if resource not in _APART and np.asarray(need)[row] > capacity[row]:
            return NeverFits(resource, int(np.asarray(need)[row]), capacity[row])
    short = claims[-1]
    part = max(_needed(short) or short.roles, key=lambda part: len(part.tasks))
    return _too_many(short, part, empty)


class Shortage:
    """What is free, in numbers that stay true when the views they are from have moved on.

    Most gangs that wait are never asked why, so their answers are made when they are.
    """

    def __init__(
        self,
        view: FreeCapacity,
        asks: Iterable[TaskRequest],
        limits: dict[str, list[tuple[str, str, float]]],
    ) -> None:
        table = view.table
        self._free, self._partial = view.free, view.partial
        self._rows = {name: row for name, row in table.rows.items() if name not in _APART}
        self._vectors = {ask: table.vector(ask.resources) for ask in asks}
        masks = {ask.selector: table.mask(ask) for ask in self._vectors}
        self._masks = {selector: mask.copy() for selector, mask in masks.items()}
        self._counts: dict[TaskRequest, Ints] = {}
        #: By selector: what the nodes that match have free, in sum.
        self._sums: dict[tuple[tuple[str, str], ...], list[int]] = {}
        #: By queue: whose limits bind it, on what, and what they leave.
        self._limits = limits

    def of(self, claim: PendingGang) -> Reason:
        """Of a gang that is as simple as can be."""
        ask = claim.roles[0].request
        for queue, resource, room in self._limits.get(claim.queue, ()):
            if dict(ask.resources).get(resource, 0) * claim.need > room:
                return QueueLimit(queue, resource)
        counts = self._fitting(ask)
        fits = min(int(counts.sum()), claim.need)
        free = self._in_sum(ask)
        for resource, amount in ask.resources:
            if amount * claim.need > free[self._rows[resource]]:
                return NotEnough(claim.need, fits, resource)
        if not ask.resources:
            return NotEnough(claim.need, fits, SLOTS)
        return Fragmented("node", int(counts.max(initial=0)))

    def _in_sum(self, ask: TaskRequest) -> list[int]:
        known = self._sums.get(ask.selector)
        if known is None:
            known = self._sums[ask.selector] = _sums(self._free, self._masks[ask.selector])
        return known

    def _fitting(self, ask: TaskRequest) -> Ints:
        known = self._counts.get(ask)
        if known is None:
            mask = self._masks[ask.selector]
            known = count(self._vectors[ask], self._free, self._partial, mask)
            self._counts[ask] = known
        return known


def _largest_amount(role: RoleRequest) -> int:
    return max((amount for _, amount in role.request.resources), default=0)


def _free_in_sum(view: FreeCapacity) -> list[int]:
    return _sums(view.free, view.table.open)


def _sums(free: Ints, nodes: Bools) -> list[int]:
    return [int(amount) for amount in np.maximum(free, 0).sum(axis=1, where=nodes)]


def short(
    claims: Sequence[PendingGang], claim: PendingGang, views: Sequence[FreeCapacity]
) -> Reason:
    """How much of the gang fits now, and what is missing for it and those that start with it."""
    view = views[0]
    need: Floats = np.asarray(sum(minimum_amounts(each, view.table) for each in claims))
    # Capacity that is free now may be kept for a preemptor once its victims have stopped.
    free_by_node: Ints = np.minimum.reduce([each.free for each in views])
    free = _sums(free_by_node, view.table.open)
    trial = PlacementTrial(claim, views)
    fitting = {part.name: trial.counts(part) for part in claim.roles}
    fits = sum(
        min(part.need or len(part.tasks), int(fitting[part.name].sum())) for part in claim.roles
    )
    fits = min(fits, claim.need)
    for resource, row in view.table.rows.items():
        if resource not in _APART and need[row] > free[row]:
            return NotEnough(claim.need, fits, resource)
    for part in claim.roles:
        free = _sums(free_by_node, view.table.mask(part.request))
        for resource, amount in part.request.resources:
            if amount * _least(claim, part) > free[view.table.rows[resource]]:
                return NotEnough(claim.need, fits, resource)
    hardest = max(
        claim.roles, key=lambda part: max((n for _, n in part.request.resources), default=0)
    )
    if not hardest.request.resources:
        return NotEnough(claim.need, fits, SLOTS)
    counts = fitting[hardest.name]
    if claim.pack is not None and claim.pack.mode is PackMode.REQUIRE:
        codes, values = view.table.domains(claim.pack.by)
        inside = codes >= 0
        sums = np.bincount(codes[inside], weights=counts[inside], minlength=len(values))
        return Fragmented(claim.pack.by, int(sums.max(initial=0)))
    return Fragmented("node", int(counts.max(initial=0)))
