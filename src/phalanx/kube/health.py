"""Health and metrics of a scheduler process, over HTTP."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from phalanx.kube.gangs.gang import MemberState
from phalanx.kube.scheduler import KubeScheduler
from phalanx.kube.writes.binder import BindResult
from phalanx.kube.writes.evictor import EvictResult


class HealthServer:
    """Serves `/healthz` (the process runs), `/readyz` (the cluster has been read), `/metrics`."""

    def __init__(self, scheduler: KubeScheduler, is_leading: Callable[[], bool]) -> None:
        self._scheduler = scheduler
        self._registry = CollectorRegistry()
        self._registry.register(_SchedulerMetrics(scheduler, is_leading))
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if self._scheduler.is_ready:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="the cluster has not been read yet\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
        )


class _SchedulerMetrics(Collector):
    """Reads the scheduler when it is asked. No label has the name of a pod."""

    def __init__(self, scheduler: KubeScheduler, is_leading: Callable[[], bool]) -> None:
        self._scheduler = scheduler
        self._is_leading = is_leading

    def collect(self) -> Iterator[Metric]:
        scheduler = self._scheduler
        leader = "Whether this scheduler leads."
        yield GaugeMetricFamily("phalanx_kube_leader", leader, float(self._is_leading()))
        yield _counter("binds", "Binds by result.", "result", BindResult, scheduler.binds)
        yield _counter(
            "evictions", "Evictions by result.", "result", EvictResult, scheduler.evictions
        )
        yield CounterMetricFamily(
            "phalanx_kube_foreign_binds",
            "Pods of this scheduler that another one has bound.",
            scheduler.foreign_binds,
        )
        yield CounterMetricFamily(
            "phalanx_kube_status_writes", "Conditions written to pods.", scheduler.status.writes
        )
        yield CounterMetricFamily(
            "phalanx_kube_group_writes", "Statuses written to PodGroups.", scheduler.groups.writes
        )
        yield CounterMetricFamily(
            "phalanx_kube_dropped_events",
            "Events that were not written, because too many were waiting.",
            scheduler.events.dropped,
        )
        yield CounterMetricFamily(
            "phalanx_kube_watch_restarts",
            "Watches that were opened again.",
            scheduler.watch.restarts,
        )
        yield CounterMetricFamily(
            "phalanx_kube_lost_gpu_seconds",
            "GPU-seconds of work that preemptions have cost.",
            scheduler.preemptions.lost_gpu_seconds,
        )
        yield CounterMetricFamily("phalanx_kube_passes", "Plans made.", scheduler.passes)
        yield GaugeMetricFamily(
            "phalanx_kube_pass_seconds", "Duration of the last plan.", scheduler.plan_s
        )
        yield self._gangs()

    def _gangs(self) -> Metric:
        family = GaugeMetricFamily(
            "phalanx_kube_gangs", "Gangs with pods of this scheduler, by state.", labels=["state"]
        )
        counts: Counter[str] = Counter()
        for gang in [*self._scheduler.model.gangs.gangs.values()]:
            members = [*gang.members.values()]
            if not any(self._scheduler.model.pods.is_own(member.pod) for member in members):
                continue
            states = {member.state for member in members}
            is_bound, is_pending = MemberState.BOUND in states, MemberState.PENDING in states
            if is_bound or is_pending:
                partial = is_bound and is_pending
                counts["partial" if partial else "bound" if is_bound else "pending"] += 1
        for state in ("pending", "partial", "bound"):
            family.add_metric([state], counts[state])
        return family


def _counter(
    name: str, text: str, label: str, kinds: Iterable[str], counts: Mapping[Any, int]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"phalanx_kube_{name}", text, labels=[label])
    for kind in kinds:
        family.add_metric([kind], counts.get(kind, 0))
    return family
