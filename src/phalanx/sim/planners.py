"""The production planner in a replay."""

from phalanx.core.changes import Changes
from phalanx.core.cluster import Cluster
from phalanx.core.time_units import Micros
from phalanx.engine.planner_loop import update_and_plan
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
