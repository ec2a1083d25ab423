"""What a scheduler process counts and measures, for Prometheus."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from phalanx.kube.gangs.gang import MemberState
from phalanx.kube.scheduler import KubeScheduler
from phalanx.kube.writes.binder import BindResult
from phalanx.kube.writes.evictor import EvictResult


class SchedulerMetrics(Collector):
    """Reads the scheduler when it is asked. No label has the name of a pod."""

    def __init__(self, scheduler: KubeScheduler, is_leading: Callable[[], bool]) -> None:
        self._scheduler = scheduler
        self._is_leading = is_leading

    def collect(self) -> Iterator[Metric]:
        scheduler = self._scheduler
        leader = "Whether this scheduler leads."
        yield GaugeMetricFamily("phalanx_kube_leader", leader, float(self._is_leading()))
        yield _counter("binds", "Binds by result.", "result", BindResult, scheduler.binds)
        yield from scheduler.bind_seconds.collect()
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
            "phalanx_kube_queue_writes", "Statuses written to queues.", scheduler.queues.writes
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
        yield GaugeMetricFamily(
            "phalanx_kube_incomplete_rounds",
            "Gangs of which a round of binds stopped half way.",
            len(scheduler.model.gangs.half_bound),
        )
        yield GaugeMetricFamily(
            "phalanx_kube_overcommitted_nodes",
            "Nodes whose pods request more than the node offers.",
            len(scheduler.model.overcommitted),
        )
        yield self._gangs()

    def _gangs(self) -> Metric:
        family = GaugeMetricFamily(
            "phalanx_kube_gangs",
            "Gangs with pods of this scheduler, by queue and state.",
            labels=["queue", "state"],
        )
        model = self._scheduler.model
        counts: Counter[tuple[str, str]] = Counter()
        for gang in model.gangs.gangs.values():
            states = {member.state for member in gang.members.values()}
            is_bound, is_pending = MemberState.BOUND in states, MemberState.PENDING in states
            if (is_bound or is_pending) and any(map(model.pods.is_own, gang.pods())):
                partial = is_bound and is_pending
                state = "partial" if partial else "bound" if is_bound else "pending"
                counts[gang.queue, state] += 1
        for queue in sorted({*model.state.queues, *(queue for queue, _ in counts)}):
            for state in ("pending", "partial", "bound"):
                family.add_metric([queue, state], counts[queue, state])
        return family


def _counter(
    name: str, text: str, label: str, kinds: Iterable[str], counts: Mapping[Any, int]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"phalanx_kube_{name}", text, labels=[label])
    for kind in kinds:
        family.add_metric([kind], counts.get(kind, 0))
    return family
