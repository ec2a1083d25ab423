"""Metrics of the server itself: leadership, commits, plans, failures of the store, output."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

from phalanx.core.cluster import Cluster
from phalanx.plan.decisions import Plan
from phalanx.server.metrics.families import SHORT_S, SIZES, Families
from phalanx.store.protocol import Leader


class EngineMetrics:
    """Receives the engine's telemetry. `on_leading` is called when a cluster was loaded, and
    `on_standby` when this server does not lead."""

    def __init__(
        self,
        registry: CollectorRegistry,
        on_leading: Callable[[Cluster], None],
        on_standby: Callable[[], None],
    ) -> None:
        self._on_leading = on_leading
        self._on_standby = on_standby
        families = Families(registry)
        self._leads = Gauge("phalanx_leader", "1 while this server leads.", registry=registry)
        self._commit = families.histogram("commit_seconds", "Duration of a commit.", SHORT_S)
        self._batch = families.histogram("commit_batch_size", "Commands in a commit.", SIZES)
        self._plan = families.histogram("plan_seconds", "Duration of a plan.", SHORT_S)
        self._broken_starts = families.counter(
            "reserved_starts_broken", "Reserved starts that a later plan could not keep."
        )
        self._rejected = families.counter(
            "plan_decisions_rejected", "Decisions that no longer applied.", "cause"
        )
        self._brakes = families.counter("loss_brakes", "Times the loss brake engaged.")
        self._refused_timers = families.counter("refused_timers", "Timers that broke a rule.")
        self._store_failures = families.counter(
            "store_failures", "Calls to the database that failed."
        )
        self._output_received = families.counter(
            "output_received_bytes", "Bytes of task output stored."
        )
        self._output_dropped = families.counter(
            "output_dropped_bytes", "Bytes of older task output dropped."
        )

    def leading(self, term: int, cluster: Cluster) -> None:
        self._leads.set(1)
        self._on_leading(cluster)

    def standing_by(self, leader: Leader | None) -> None:
        self._leads.set(0)
        self._on_standby()

    def stepped_down(self, term: int, reason: str) -> None:
        self._leads.set(0)
        self._on_standby()

    def store_failed(self, error: str) -> None:
        self._store_failures.inc()

    def committed(self, seconds: float, commands: int, changes: int) -> None:
        self._commit.observe(seconds)
        self._batch.observe(commands)

    def planned(self, seconds: float, plan: Plan) -> None:
        self._plan.observe(seconds)
        self._broken_starts.inc(len(plan.broken_starts))

    def rejected(self, cause: str) -> None:
        self._rejected.labels(cause).inc()

    def braked(self) -> None:
        self._brakes.inc()

    def timer_refused(self, event: str, error: str) -> None:
        self._refused_timers.inc()

    def output_kept(self, size_bytes: int, dropped_bytes: int) -> None:
        self._output_received.inc(size_bytes)
        self._output_dropped.inc(dropped_bytes)
