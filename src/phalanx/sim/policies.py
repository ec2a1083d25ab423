"""The policies under which a trace can be replayed, by name."""

import msgspec

from phalanx.core.cluster import Cluster
from phalanx.plan.model import OrderKey, PlannerPolicy
from phalanx.sim.baselines import Baseline, BaselineRule
from phalanx.sim.planners import ProductionPlanner
from phalanx.sim.replay import Planner, Replay, ReplaySettings
from phalanx.sim.results import ReplayResult, measure
from phalanx.sim.traces import Trace


class ReplayPolicy(msgspec.Struct, frozen=True):
    name: str
    rules: PlannerPolicy | BaselineRule


POLICIES = {
    policy.name: policy
    for policy in (
        *(ReplayPolicy(rule.value, rule) for rule in BaselineRule),
        ReplayPolicy("no-backfill", PlannerPolicy(backfill=False)),
        ReplayPolicy(
            "size-first", PlannerPolicy(order=(OrderKey.SIZE, OrderKey.PRIORITY, OrderKey.CREATED))
        ),
        ReplayPolicy("created-first", PlannerPolicy(order=(OrderKey.PRIORITY, OrderKey.CREATED))),
    )
}


def replay_trace(
    trace: Trace, policy: ReplayPolicy, settings: ReplaySettings | None = None
) -> ReplayResult:
    """Replay a trace to its end under a policy, and measure."""
    cluster = Cluster()
    planner = planner_for(policy, cluster, settings or ReplaySettings())
    replay = Replay(trace, cluster, planner, settings)
    replay.run()
    return measure(policy.name, trace, replay)


def planner_for(policy: ReplayPolicy, cluster: Cluster, settings: ReplaySettings) -> Planner:
    if isinstance(policy.rules, BaselineRule):
        return Baseline(cluster, policy.rules)
    rules = msgspec.structs.replace(policy.rules, plan_every=settings.plan_every)
    return ProductionPlanner(cluster, rules)
