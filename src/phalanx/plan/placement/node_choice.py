"""Which nodes take the tasks of one role.

Best fit fills the node that has the least capacity left afterwards, so that whole nodes stay free.
`spread` always takes the emptiest node. Where several capacities are given (now, and at the start
times reserved for other gangs), a task needs a place in all of them.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from phalanx.plan.model import PendingGang, RoleRequest, TaskRequest
from phalanx.plan.state.capacity import FreeCapacity, fill
from phalanx.plan.state.nodes import SLOTS, Bools, Floats, Ints, NodeTable
from phalanx.plan.state.placement_rules import Restriction, strictest

_NO_NODES: tuple[Ints, Ints] = (np.zeros(0, np.int64), np.zeros(0, np.int64))
#: A node that a task does not prefer comes after the nodes it prefers, however full they are, but
#: before the nodes of the next domain.
_UNPREFERRED = 9e5
#: More than a domain's penalty: a node that is left to other tasks comes after all domains, and a
#: node to avoid comes after all other nodes.
_SPARED = 1e10
_AVOIDED = 1e12


class NodeChoice:
    """The nodes that a gang may use, and the order in which they are filled."""

    def __init__(
        self,
        gang: PendingGang,
        capacities: Sequence[FreeCapacity],
        allowed: Bools | None = None,
        penalty: Floats | None = None,
    ) -> None:
        """`allowed` restricts the nodes; nodes with a higher penalty are filled later."""
        self._gang = gang
        self._table: NodeTable = capacities[0].table
        self.capacities = capacities
        self.allowed = allowed
        #: The nodes of the domain in which the gang is tried; None: all nodes.
        self.domain_nodes: Bools | None = None
        self.penalty = penalty
        #: Nodes that tasks without conditions leave to tasks with some.
        self.spared: Bools | None = None
        #: Role → node → tasks there. Only for roles with a limit of tasks per node.
        self._tasks_on: dict[str, dict[int, int]] = {}
        self.forget_tasks()

    def avoid_nodes(self) -> None:
        """Put the nodes that the gang should avoid behind all others."""
        penalty = np.zeros(self.capacities[0].free.shape[1])
        if self.penalty is not None:
            penalty += self.penalty
        for name in self._gang.avoid:
            node = self._table.index.get(name)
            if node is not None:
                penalty[node] += _AVOIDED
        self.penalty = penalty

    def counts(self, role: RoleRequest) -> Ints:
        """How many tasks of the role each node can take in all capacities."""
        counts = self.capacities[0].fit(role.request).counts
        for capacity in self.capacities[1:]:
            counts = np.minimum(counts, capacity.fit(role.request).counts)
        limit = role.request.per_node
        if limit is not None:
            counts = np.minimum(counts, limit)
            for node, tasks in self._tasks_on.get(role.name, {}).items():
                counts[node] = min(counts[node], max(0, limit - tasks))
        for nodes in (self.allowed, self.domain_nodes):
            if nodes is not None:
                counts = np.where(nodes, counts, 0)
        restriction = self.restriction(role)
        return counts if restriction is None else _restricted(counts, restriction)

    def restriction(self, role: RoleRequest) -> Restriction | None:
        """Where the rules between tasks allow one more task of the role in all capacities."""
        if role.request.traits is None:
            return None
        return strictest(capacity.restriction(role.request) for capacity in self.capacities)

    def choose(self, role: RoleRequest, wanted: int, *, all_or_none: bool) -> tuple[Ints, Ints]:
        """Nodes for at most `wanted` tasks, and the number of tasks for each of them.

        With `all_or_none` there are no nodes unless all of the tasks fit.
        """
        if self._is_unrestricted(role):
            fit = self.capacities[0].fit(role.request)
            if not fit.total or (all_or_none and fit.total < wanted):
                return _NO_NODES
            return self.capacities[0].fullest(role.request, wanted)
        nodes, counts = self._nodes_that_fit(role)
        total = int(counts.sum())
        if total == 0 or (all_or_none and total < wanted):
            return _NO_NODES
        spread = self._gang.spread
        left = self.capacities[0].leftover(role.request, nodes, spread=spread)
        penalty = self._penalty_of(role)
        if penalty is not None:
            left = left - penalty[nodes] if spread else left + penalty[nodes]
        if spread:
            return _spread(nodes, counts, left, self._task_size(role.request)[nodes], wanted)
        return fill(nodes, counts, left, wanted)

    def add_tasks(self, role: RoleRequest, nodes: Ints, counts: Ints) -> None:
        """Count tasks that were placed, where the role has a limit of tasks per node. Negative
        counts take them away."""
        if role.request.per_node is not None:
            tasks_on = self._tasks_on.setdefault(role.name, {})
            for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
                tasks_on[node] = tasks_on.get(node, 0) + count

    def forget_tasks(self) -> None:
        """Count only the tasks that were on the nodes before."""
        self._tasks_on = {}
        for role, node, count in self._gang.placed_on:
            if node in self._table.index:
                self._tasks_on.setdefault(role, {})[self._table.index[node]] = count

    def _nodes_that_fit(self, role: RoleRequest) -> tuple[Ints, Ints]:
        """The nodes that can take tasks of the role, and how many each of them can take."""
        capacity = self.capacities[0]
        only_allowed = len(self.capacities) == 1 and self.domain_nodes is None
        is_plain = role.request.per_node is None and role.request.traits is None
        if only_allowed and self.allowed is not None and is_plain:
            nodes = np.flatnonzero(self.allowed)
            if capacity.is_few(nodes):
                counts = capacity.count_at(role.request, nodes)
                return nodes[counts > 0], counts[counts > 0]
        counts = self.counts(role)
        nodes = np.flatnonzero(counts)
        return nodes, counts[nodes]

    def _penalty_of(self, role: RoleRequest) -> Floats | None:
        """The penalty of each node for tasks of the role; None if there is none."""
        penalty, unpreferred = self.penalty, self._unpreferred(role)
        if unpreferred is not None:
            unpreferred = unpreferred * _UNPREFERRED
            penalty = unpreferred if penalty is None else penalty + unpreferred
        if self.spared is None or role.request.conditions:
            return penalty
        spared: Floats = np.where(self.spared, _SPARED, 0.0)
        return spared if penalty is None else penalty + spared

    def _unpreferred(self, role: RoleRequest) -> Floats | None:
        """How little tasks of the role prefer each node, from 0 to 1: because of the node, and
        because of the tasks there."""
        preference, restriction = role.request.preference, self.restriction(role)
        by_node = None if preference is None else self._table.penalties(preference)
        by_tasks = None if restriction is None else restriction.penalty
        if by_node is None or by_tasks is None:
            return by_tasks if by_node is None else by_node
        return (by_node + by_tasks) / 2

    def _is_unrestricted(self, role: RoleRequest) -> bool:
        """Whether any node with free capacity will do, filled by best fit."""
        return (
            len(self.capacities) == 1
            and role.request.per_node is None
            and not self._gang.spread
            and self.penalty is None
            and self.spared is None
            and self.allowed is None
            and self.domain_nodes is None
            and role.request.preference is None
            and (role.request.traits is None or self.restriction(role) is None)
        )

    def _task_size(self, request: TaskRequest) -> Floats:
        """The part of each node that one task takes."""
        size = np.zeros(self.capacities[0].free.shape[1])
        for resource, amount in request.resources or ((SLOTS, 1),):
            size += amount / np.maximum(self._table.capacity[self._table.rows[resource]], 1)
        return size


def _restricted(counts: Ints, restriction: Restriction) -> Ints:
    """How many tasks each node can take if the rules between tasks allow them there."""
    if restriction.nodes is not None:
        counts = np.where(restriction.nodes, counts, 0)
    return counts if restriction.per_node is None else np.minimum(counts, restriction.per_node)


def _spread(
    nodes: Ints, counts: Ints, left: Floats, task_size: Floats, wanted: int
) -> tuple[Ints, Ints]:
    """Place the tasks one by one, each on the node that is emptiest by then."""
    heap = [(-free, n) for n, free in enumerate(left.tolist())]
    heapq.heapify(heap)
    chosen = np.zeros(len(nodes), np.int64)
    for _ in range(wanted):
        if not heap:
            break
        free, n = heapq.heappop(heap)
        chosen[n] += 1
        if chosen[n] < counts[n]:
            heapq.heappush(heap, (free + float(task_size[n]), n))
    used = chosen > 0
    return nodes[used], chosen[used]
