"""All metrics of a server, and the text of a scrape.

Counters start at zero with the process. Gauges show the latest counts of the cluster.
"""

import time

from prometheus_client import CollectorRegistry, generate_latest

from phalanx.core.cluster import Cluster
from phalanx.core.time_units import Micros
from phalanx.engine.planner_loop import update_and_plan
from phalanx.engine.turn import Turn
from phalanx.plan.decisions import Plan
from phalanx.plan.state.delta import PlannerDelta
from phalanx.plan.state.planner_state import PlannerState
from phalanx.server.metrics.cluster_counts import count_cluster
from phalanx.server.metrics.cluster_metrics import ClusterMetrics
from phalanx.server.metrics.engine_metrics import EngineMetrics
from phalanx.server.metrics.job_metrics import JobMetrics

#: The least time between two counts of the cluster.
_COUNT_S = 2.0


class Metrics:
    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.jobs = JobMetrics(self.registry)
        self.cluster = ClusterMetrics()
        #: Receives the engine's telemetry.
        self.engine = EngineMetrics(self.registry, self._load, self._forget_counts)
        self.registry.register(self.cluster)
        self._counted_s = float("-inf")

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def observe(self, turn: Turn) -> None:
        self.jobs.observe(turn)
        self.cluster.observe(turn)

    def plan_and_count(self, state: PlannerState, delta: PlannerDelta, now: Micros) -> Plan:
        """Plan, and from time to time count the cluster that was planned from."""
        plan = update_and_plan(state, delta, now)
        now_s = time.monotonic()
        if now_s - self._counted_s >= _COUNT_S:
            self._counted_s = now_s
            self.cluster.counts = count_cluster(state, plan)
        return plan

    def _load(self, cluster: Cluster) -> None:
        self.jobs.load(cluster)
        self.cluster.load(cluster)

    def _forget_counts(self) -> None:
        self.cluster.counts = None
