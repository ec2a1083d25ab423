"""What is short for a gang: on the empty cluster, or with what is free now."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np
from msgspec.structs import replace

from phalanx.core.reasons import (
    AboveMinimum,
    Fragmented,
    Gathering,
    NeverFits,
    NotEnough,
    QueueLimit,
    Reason,
    shortage_in_words,
)
from phalanx.core.spec.job import PackMode
from phalanx.core.text import listed
from phalanx.plan.model import NodePredicate, PendingGang, RoleRequest, TaskRequest
from phalanx.plan.pending import is_simple, required_domains
from phalanx.plan.placement.amounts import hardness, minimum_amounts
from phalanx.plan.placement.trial import PlacementTrial, place_all, undo_all
from phalanx.plan.state.capacity import FreeCapacity, count
from phalanx.plan.state.nodes import (
    SLOTS,
    UNLIMITED,
    WHOLE,
    Bools,
    Floats,
    Ints,
    NodeTable,
    Vector,
    places_by_domain,
)
from phalanx.plan.state.placement_rules import strictest

#: Rows that describe how a node is filled and are no resources.
_NO_RESOURCES = (SLOTS, WHOLE)
#: The most nodes that a reason names.
_CLOSED_NODES = 3


def never_fits(gangs: Sequence[PendingGang], empty: FreeCapacity) -> Reason | None:
    """What the cluster lacks for a gang or a group even if nothing else ran."""
    simple = gangs[0] if len(gangs) == 1 and is_simple(gangs[0]) else None
    if simple is not None:
        request, domains = simple.roles[0].request, required_domains(simple)
        if empty.most_fit(request, domains) >= simple.need:
            return None
    for gang in gangs:
        if (reason := _gate_beyond(gang, empty)) is not None:
            return reason
    needed = [role for gang in gangs for role in _needed_roles(gang)]
    for obstacle in (_unmatched, _too_large):
        for role in needed:
            reason = obstacle(role, empty)
            if reason is not None:
                return reason
    if simple is not None and required_domains(simple) is None:
        return _too_many(simple, simple.roles[0], empty)
    trial = empty.fork()
    if place_all([PlacementTrial(gang, (trial,)) for gang in gangs]) is None:
        return _too_much_together(gangs, empty)
    return None


def _gate_beyond(gang: PendingGang, empty: FreeCapacity) -> Reason | None:
    """A resource of which the whole cluster has less than the gang's gate."""
    if not gang.gate:
        return None
    capacity = _sums(empty.free, empty.table.open)
    for resource, amount in gang.gate:
        row = empty.table.rows.get(resource)
        most = 0 if row is None else capacity[row]
        if amount > most:
            return NeverFits(resource, amount, most)
    return None


def _needed_roles(gang: PendingGang) -> list[RoleRequest]:
    """The roles without which the gang cannot start."""
    spare = _spare_tasks(gang)
    return [role for role in gang.roles if _needed_tasks(role, spare) > 0]


def _spare_tasks(gang: PendingGang) -> int:
    """The number of tasks without which the gang can start."""
    return sum(len(role.tasks) for role in gang.roles) - gang.need


def _needed_tasks(role: RoleRequest, spare: int) -> int:
    """The number of tasks of a role without which its gang, with spare tasks, cannot start."""
    return max(role.need, len(role.tasks) - spare)


def _unmatched(role: RoleRequest, empty: FreeCapacity) -> Reason | None:
    """The conditions that no node satisfies."""
    nodes = role.request.nodes
    if nodes is None or empty.table.matching(nodes).any():
        return None
    return nodes.unmatched(_closed_nodes(role.request, empty.table))


def _closed_nodes(request: TaskRequest, table: NodeTable) -> dict[str, str]:
    """Some nodes that have the labels and the capacity for a task, but take none; each with why."""
    vector = table.vector(request.resources)
    fitting = (
        at
        for at in sorted(table.closed, key=table.name)
        if (request.nodes is None or request.nodes.matches(table.facts(at)))
        and bool((table.capacity[vector.rows, at] >= vector.amounts).all())
    )
    return {table.name(at): table.closed[at] for at in islice(fitting, _CLOSED_NODES)}


def _too_large(role: RoleRequest, empty: FreeCapacity) -> Reason | None:
    """A resource of which no node has enough for one task of the role."""
    table = empty.table
    mask = table.mask(role.request)
    for resource, amount in role.request.resources:
        capacity = table.capacity[table.rows[resource]][mask]
        largest = int(capacity.max(initial=0))
        if amount > largest:
            closed = _closed_nodes(role.request, table)
            return NeverFits(resource, amount, largest, per_task=True, closed=closed)
    return None


def _too_many(gang: PendingGang, role: RoleRequest, empty: FreeCapacity) -> Reason:
    table = empty.table
    fits = empty.fit(role.request).total
    closed = _closed_nodes(role.request, table)
    vector, mask = table.vector(role.request.resources), table.mask(role.request)

    def tasks_that_fit(requested: tuple[str, int]) -> float:
        """As far as this resource alone decides."""
        resource, amount = requested
        return float((empty.free[table.rows[resource]][mask] // max(amount, 1)).sum())

    requested = [each for each in role.request.resources if each[1]]
    resource, amount = min(requested, key=tasks_that_fit, default=(SLOTS, 1))
    without_slots = _total_without_slots(vector, empty.free, empty.partial, mask)
    if fits < gang.need <= without_slots:
        return NeverFits(SLOTS, gang.need, fits, closed=closed)
    return NeverFits(resource, amount * gang.need, amount * fits, closed=closed)


def _too_much_together(gangs: Sequence[PendingGang], empty: FreeCapacity) -> Reason:
    need: Floats = np.sum([minimum_amounts(gang, empty.table) for gang in gangs], axis=0)
    capacity = _sums(empty.free, empty.table.open)
    for resource, row in empty.table.rows.items():
        if resource not in _NO_RESOURCES and need[row] > capacity[row]:
            closed = _closed_nodes(TaskRequest(((resource, 1),)), empty.table)
            return NeverFits(resource, int(need[row]), capacity[row], closed=closed)
    last = gangs[-1]
    widest = max(_needed_roles(last) or last.roles, key=lambda role: len(role.tasks))
    return _too_many(last, widest, empty)


class Shortage:
    """What is short for gangs of a single request, as of one plan.

    Most pending gangs are never asked about, so their reasons are computed when they are.
    """

    def __init__(
        self,
        capacities: Sequence[FreeCapacity],
        requests: Iterable[TaskRequest],
        domains: Iterable[str],
        limits: dict[str, list[tuple[str, str, float]]],
    ) -> None:
        """`capacities` are forks that are not changed any more. `domains` are labels of required
        domains. `limits` are, by queue, the queues whose limits bind it, the resource, and what is
        left."""
        table = capacities[0].table
        # Capacity that is free now may be kept for a preemptor once its victims have stopped.
        self._free: Ints = capacities[0].free
        if len(capacities) > 1:
            self._free = np.minimum.reduce([capacity.free for capacity in capacities])
        self._partial = capacities[0].partial
        self._rows = {name: row for name, row in table.rows.items() if name not in _NO_RESOURCES}
        self._vectors = {request: table.vector(request.resources) for request in requests}
        self._masks = {request.nodes: table.mask(request) for request in self._vectors}
        self._domains = {label: table.domains(label) for label in domains}
        self._counts: dict[TaskRequest, Ints] = {}
        #: By predicate: what is free on all matching nodes together, by row.
        self._sums: dict[NodePredicate | None, list[int]] = {}
        self._limits = limits

    def of(self, gang: PendingGang) -> Reason:
        """What is short for a gang for which too little is free."""
        request = gang.roles[0].request
        for queue, resource, left in self._limits.get(gang.queue, ()):
            if dict(request.resources).get(resource, 0) * gang.need > left:
                return QueueLimit(queue, resource)
        counts = self._fit_counts(request)
        fits = min(int(counts.sum()), gang.need)
        free = self._free_in_all(request)
        for resource, amount in request.resources:
            if amount * gang.need > free[self._rows[resource]]:
                return NotEnough(gang.need, fits, resource)
        domains = required_domains(gang)
        if domains is not None and fits >= gang.need:
            codes, names = self._domains[domains]
            best = places_by_domain(counts, codes, len(names)).max(initial=0)
            return Fragmented(domains, int(best))
        if not request.resources or self._fits_without_slots(request) >= gang.need:
            return NotEnough(gang.need, fits, SLOTS)
        return Fragmented("worker", int(counts.max(initial=0)))

    def above_minimum(self, gang: PendingGang) -> AboveMinimum:
        """Why the pending tasks of a gang that has its minimum have no place."""
        tasks = sum(len(role.tasks) for role in gang.roles)
        one_task = replace(gang, roles=gang.roles[:1], need=1)
        if any(self._fit_counts(role.request).any() for role in gang.roles):
            because = "the free capacity is kept for other jobs"
        else:
            because = _because(self.of(one_task))
        return AboveMinimum(tasks, because)

    def _fits_without_slots(self, request: TaskRequest) -> int:
        mask = self._masks[request.nodes]
        return _total_without_slots(self._vectors[request], self._free, self._partial, mask)

    def _free_in_all(self, request: TaskRequest) -> list[int]:
        sums = self._sums.get(request.nodes)
        if sums is None:
            sums = self._sums[request.nodes] = _sums(self._free, self._masks[request.nodes])
        return sums

    def _fit_counts(self, request: TaskRequest) -> Ints:
        counts = self._counts.get(request)
        if counts is None:
            mask = self._masks[request.nodes]
            counts = count(self._vectors[request], self._free, self._partial, mask)
            self._counts[request] = counts
        return counts


def shortage_of(
    gangs: Sequence[PendingGang], gang: PendingGang, capacities: Sequence[FreeCapacity]
) -> Reason:
    """How many tasks of a gang fit now, and what is short for it and the gangs it starts with; of a
    gang that gathers places, how many it has."""
    reason = _shortage_of(gangs, gang, capacities)
    if not gang.gathered:
        return reason
    return Gathering(len(gang.gathered), gang.need, _because(reason))


def _because(reason: Reason) -> str:
    """The part of a reason that does not count tasks."""
    match reason:
        case NotEnough(short_of=short_of):
            return shortage_in_words(short_of)
        case Fragmented(domain=domain):
            return f"fragmented: no {domain} has enough free"
        case _:
            return str(reason)


def _shortage_of(
    gangs: Sequence[PendingGang], gang: PendingGang, capacities: Sequence[FreeCapacity]
) -> Reason:
    table = capacities[0].table
    need: Floats = np.sum([minimum_amounts(each, table) for each in gangs], axis=0)
    # Capacity that is free now may be kept for a preemptor once its victims have stopped.
    free_by_node: Ints = np.minimum.reduce([capacity.free for capacity in capacities])
    free = _sums(free_by_node, table.open)
    for resource, row in table.rows.items():
        if resource not in _NO_RESOURCES and need[row] > free[row]:
            return _not_enough(gangs, gang, capacities, resource)
    spare = _spare_tasks(gang)
    for role in gang.roles:
        free = _sums(free_by_node, table.mask(role.request))
        for resource, amount in role.request.resources:
            if amount * _needed_tasks(role, spare) > free[table.rows[resource]]:
                return _not_enough(gangs, gang, capacities, resource)
    largest = max(gang.roles, key=_largest_amount)
    is_short_of_slots = _is_short_of_slots(gang, free_by_node, capacities[0])
    if not largest.request.resources or is_short_of_slots:
        return _not_enough(gangs, gang, capacities, SLOTS)
    rules = _excluding_rules(gang, capacities)
    if rules:
        return _not_enough(gangs, gang, capacities, f"nodes allowed by {listed(rules)}")
    counts = PlacementTrial(gang, capacities).counts(largest)
    if gang.pack is not None and gang.pack.mode is PackMode.REQUIRE:
        codes, names = capacities[0].table.domains(gang.pack.by)
        labelled = codes >= 0
        sums = np.bincount(codes[labelled], weights=counts[labelled], minlength=len(names))
        return Fragmented(gang.pack.by, int(sums.max(initial=0)))
    return Fragmented("worker", int(counts.max(initial=0)))


def _is_short_of_slots(gang: PendingGang, free: Ints, capacity: FreeCapacity) -> bool:
    """Whether enough tasks of each role would fit if no worker had a limit of tasks."""
    table, spare = capacity.table, _spare_tasks(gang)
    if not (free[0][table.open] < UNLIMITED // 2).any():
        return False
    if sum(_sums(free, table.open)[:1]) < gang.need:
        return True
    roles = [(role, _needed_tasks(role, spare)) for role in gang.roles]
    return all(
        _total_without_slots(
            table.vector(role.request.resources), free, capacity.partial, table.mask(role.request)
        )
        >= needed
        for role, needed in roles
    ) and any(capacity.fit(role.request).total < needed for role, needed in roles)


def _total_without_slots(
    vector: Vector, free: Ints, partial: Mapping[int, Mapping[int, int]], mask: Bools
) -> int:
    """How many tasks would fit if no worker had a limit of tasks."""
    unlimited = free.copy()
    unlimited[0] = UNLIMITED
    return int(count(vector, unlimited, partial, mask).sum())


def _not_enough(
    gangs: Sequence[PendingGang],
    gang: PendingGang,
    capacities: Sequence[FreeCapacity],
    short_of: str,
) -> NotEnough:
    """How many tasks fit: of the gang, or of all gangs that it starts with if it alone fits."""
    fits = _fitting((gang,), capacities)
    if fits < gang.need or len(gangs) == 1:
        return NotEnough(gang.need, fits, short_of)
    want = sum(each.need for each in gangs)
    return NotEnough(want, _fitting(gangs, capacities), short_of, of_group=True)


def _fitting(gangs: Iterable[PendingGang], capacities: Sequence[FreeCapacity]) -> int:
    """How many tasks of the minimums of these gangs fit together."""
    trials = [PlacementTrial(gang, capacities) for gang in gangs]
    for trial in trials:
        roles = sorted(trial.gang.roles, key=hardness, reverse=True)
        for role in roles:
            trial.place(role, role.need)
        spare = trial.gang.need - sum(role.need for role in roles)
        for role in reversed(roles):
            spare -= trial.place(role, min(spare, trial.unplaced(role)))
    fits = sum(trial.count for trial in trials)
    undo_all(trials)
    return fits


def _excluding_rules(gang: PendingGang, capacities: Sequence[FreeCapacity]) -> tuple[str, ...]:
    """The rules between tasks that exclude nodes for a gang, in words."""
    restrictions = (
        capacity.restriction(role.request) for role in gang.roles for capacity in capacities
    )
    strict = strictest(restrictions)
    return () if strict is None else strict.rules


def _largest_amount(role: RoleRequest) -> int:
    return max((amount for _, amount in role.request.resources), default=0)


def _sums(free: Ints, nodes: Bools) -> list[int]:
    """What is free on these nodes together, by row."""
    return [int(amount) for amount in np.maximum(free, 0).sum(axis=1, where=nodes)]
