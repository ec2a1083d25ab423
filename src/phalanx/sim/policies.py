"""The policies that a trace can be replayed under, by name, and the replaying itself."""

import msgspec

from phalanx.core.cluster import Cluster
from phalanx.plan.model import OrderKey, PlannerPolicy
from phalanx.sim.planners import FirstCome, Production
from phalanx.sim.replay import Pace, Replay
from phalanx.sim.results import Result, measured
from phalanx.sim.traces import Trace


class Rules(msgspec.Struct, frozen=True):
    name: str
    policy: PlannerPolicy | None = None  #: None is the baseline


NAMED = {
    rules.name: rules
    for rules in (
        Rules("fcfs"),
        Rules("no-backfill", PlannerPolicy(backfill=False)),
        Rules(
            "size-first", PlannerPolicy(order=(OrderKey.SIZE, OrderKey.PRIORITY, OrderKey.CREATED))
        ),
        Rules("created-first", PlannerPolicy(order=(OrderKey.PRIORITY, OrderKey.CREATED))),
    )
}


def replayed(trace: Trace, rules: Rules, pace: Pace | None = None) -> Result:
    cluster = Cluster()
    if rules.policy is None:
        planner: FirstCome | Production = FirstCome(cluster)
    else:
        planner = Production(cluster, rules.policy)
    replay = Replay(trace, cluster, planner, pace)
    replay.run()
    return measured(rules.name, trace, replay)
