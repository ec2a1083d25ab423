"""The planners of a replay: the production planner, and a baseline for comparison."""

from collections import deque
from collections.abc import Mapping
from heapq import heapify, heappop, heapreplace

from phalanx.core.changes import Changes
from phalanx.core.cluster import Cluster
from phalanx.core.events import Placement
from phalanx.core.gang import Gang
from phalanx.core.model import Assignment
from phalanx.core.node import GPU, Charge, Node
from phalanx.core.reasons import NotEnough
from phalanx.core.time_units import Micros
from phalanx.engine.planner_loop import update_and_plan
from phalanx.plan.decisions import Reserve
from phalanx.plan.model import PlannerPolicy
from phalanx.plan.state.delta import PlannerDelta
from phalanx.plan.state.planner_state import PlannerState
from phalanx.sim.replay import ReplayPlan


class ProductionPlanner:
    """The planner of a server, with a state that follows the cluster."""

    def __init__(self, cluster: Cluster, policy: PlannerPolicy) -> None:
        self._cluster = cluster
        self._state = PlannerState.of(cluster, policy)
        self._delta = PlannerDelta()

    def observe(self, changes: Changes) -> None:
        self._delta.note(self._cluster, changes)

    def plan(self, now: Micros) -> ReplayPlan:
        delta, self._delta = self._delta, PlannerDelta()
        plan = update_and_plan(self._state, delta, now)
        return ReplayPlan(plan.decisions, plan.reasons, len(plan.broken_starts))


class FirstComeFirstServed:
    """A baseline that is not part of the product: strictly first come, first served.

    The first pending gang blocks all others, and each task goes to the node with the most capacity.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pending: deque[str] = deque()

    def observe(self, changes: Changes) -> None:
        self._pending += changes.added

    def plan(self, now: Micros) -> ReplayPlan:
        decisions: list[Reserve] = []
        used: dict[str, Node] = {}
        while self._pending:
            gang = self._cluster.gangs[self._pending[0]]
            placement = _place_on_emptiest(gang, self._cluster.nodes, used)
            if placement is None:
                short = NotEnough(gang.size, 0, next(iter(gang.role(0).resources), "slots"))
                return ReplayPlan(decisions, {gang.job.id: short})
            decisions.append(Reserve((placement,)))
            self._pending.popleft()
        return ReplayPlan(decisions, {})


def _place_on_emptiest(
    gang: Gang, nodes: Mapping[str, Node], used: dict[str, Node]
) -> Placement | None:
    """Place each task on the node with the most free capacity; None, if not all tasks fit.

    `used` has the nodes that this plan has changed, and is updated if all tasks fit.
    """
    role = gang.role(0)
    scarce = next(iter(role.resources), None)
    nodes_by_capacity = [
        (-_free(node, scarce), name)
        for name, node in ((name, used.get(name, node)) for name, node in nodes.items())
        if node.misfit(role) is None
    ]
    heapify(nodes_by_capacity)
    changed: dict[str, Node] = {}
    assignments = []
    for task in gang.tasks:
        if not nodes_by_capacity:
            return None
        name = nodes_by_capacity[0][1]
        node = changed.get(name)
        if node is None:
            node = changed[name] = used.get(name, nodes[name]).copy()
        devices = node.pick_devices(role.resources.get(GPU, 0)) or ()
        node.charge((task.id, gang.job.epoch + 1), Charge(0, role.resources, devices))
        assignments.append(Assignment(task.index, name))
        if node.misfit(role) is None:
            heapreplace(nodes_by_capacity, (-_free(node, scarce), name))
        else:
            heappop(nodes_by_capacity)
    used |= changed
    return Placement(gang.job.id, gang.job.version, tuple(assignments))


def _free(node: Node, resource: str | None) -> int:
    return -node.occupants if resource is None else node.free(resource)
