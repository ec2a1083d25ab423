"""Who plans in a replay: the production planner, or the baseline that others are compared with."""

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
from phalanx.core.spec.job import Micros
from phalanx.engine.planner_loop import update_and_plan
from phalanx.plan.decisions import Reserve
from phalanx.plan.model import PlannerPolicy
from phalanx.plan.state.delta import PlannerDelta
from phalanx.plan.state.planner_state import PlannerState
from phalanx.sim.replay import Planned


class Production:
    """The planner that servers run, on a state that follows the cluster."""

    def __init__(self, cluster: Cluster, policy: PlannerPolicy) -> None:
        self._cluster = cluster
        self._state = PlannerState.of(cluster, policy)
        self._delta = PlannerDelta()

    def note(self, changes: Changes) -> None:
        self._delta.note(self._cluster, changes)

    def plan(self, now: Micros) -> Planned:
        delta, self._delta = self._delta, PlannerDelta()
        made = update_and_plan(self._state, delta, now)
        return Planned(made.decisions, made.reasons)


class FirstCome:
    """A baseline, no part of the product: first come, first served, whoever does not fit holds up
    all behind, and each task goes to the node that is emptiest."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._line: deque[str] = deque()

    def note(self, changes: Changes) -> None:
        self._line += changes.added

    def plan(self, now: Micros) -> Planned:
        decisions: list[Reserve] = []
        taken: dict[str, Node] = {}
        while self._line:
            gang = self._cluster.gangs[self._line[0]]
            placement = _spread_out(gang, self._cluster.nodes, taken)
            if placement is None:
                short = NotEnough(gang.size, 0, next(iter(gang.role(0).resources), "slots"))
                return Planned(decisions, {gang.job.id: short})
            decisions.append(Reserve((placement,)))
            self._line.popleft()
        return Planned(decisions, {})


def _spread_out(gang: Gang, nodes: Mapping[str, Node], taken: dict[str, Node]) -> Placement | None:
    """Each task on the node that has most left. What is taken is kept only if all find a place."""
    role = gang.role(0)
    scarce = next(iter(role.resources), None)
    room = [
        (-_left(node, scarce), name)
        for name, node in ((name, taken.get(name, node)) for name, node in nodes.items())
        if node.misfit(role) is None
    ]
    heapify(room)
    trial: dict[str, Node] = {}
    assignments = []
    for task in gang.tasks:
        if not room:
            return None
        name = room[0][1]
        node = trial.get(name)
        if node is None:
            node = trial[name] = taken.get(name, nodes[name]).copy()
        devices = node.pick_devices(role.resources.get(GPU, 0)) or ()
        node.charge((task.id, gang.job.epoch + 1), Charge(0, role.resources, devices))
        assignments.append(Assignment(task.index, name))
        if node.misfit(role) is None:
            heapreplace(room, (-_left(node, scarce), name))
        else:
            heappop(room)
    taken |= trial
    return Placement(gang.job.id, gang.job.version, tuple(assignments))


def _left(node: Node, resource: str | None) -> int:
    return -node.occupants if resource is None else node.free(resource)
