"""Metrics of the cluster: jobs, tasks, workers, usage of queues, GPU-seconds used and lost."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from phalanx.core.cluster import Cluster
from phalanx.core.ledger import Account, LostTo, gpu_seconds
from phalanx.core.records import TaskClaimed, TaskStarted
from phalanx.engine.turn import Turn
from phalanx.server.metrics.cluster_counts import ClusterCounts
from phalanx.server.metrics.gpu_seconds import GpuSeconds

#: Units of the normal form in one unit that people count in.
_SCALES = {"cpu": 1000, "gpu": 1000}


class ClusterMetrics(Collector):
    def __init__(self) -> None:
        self._gpu_seconds = GpuSeconds()
        self._accounts: dict[str, Account] = {}
        #: None while this server does not lead.
        self.counts: ClusterCounts | None = None

    def load(self, cluster: Cluster) -> None:
        """Start with a cluster that was just loaded."""
        self._gpu_seconds.load(cluster)
        self._accounts = dict(cluster.accounts)

    def observe(self, turn: Turn) -> None:
        for changes in turn.changes:
            self._accounts |= changes.accounts
            for record in changes.records:
                if isinstance(record, TaskStarted | TaskClaimed):
                    gang = changes.gangs.get(record.job)
                    if gang is not None:
                        self._gpu_seconds.add_task(
                            record.job, gang.job.spec, record.task, record.at
                        )
                self._gpu_seconds.observe(record)

    def collect(self) -> Iterator[Metric]:
        used = CounterMetricFamily("phalanx_gpu_seconds_used", "GPU-seconds used by tasks.")
        used.add_metric([], self._gpu_seconds.used_gpu_s)
        yield used
        yield from _lost_work(self._accounts)
        if self.counts is not None:
            yield from _gauges(self.counts)

    def describe(self) -> Iterator[Metric]:
        return iter(())


def _lost_work(accounts: Mapping[str, Account]) -> Iterator[Metric]:
    labels = ["queue", "cause"]
    gpu = CounterMetricFamily(
        "phalanx_gpu_seconds_lost", "GPU-seconds of work lost.", labels=labels
    )
    cost = CounterMetricFamily("phalanx_lost_cost", "The price of lost work.", labels=labels)
    for queue, account in sorted(accounts.items()):
        for cause, tally in (
            (LostTo.EVICTION, account.eviction),
            (LostTo.FAILURE, account.failure),
        ):
            gpu.add_metric([queue, cause], gpu_seconds(tally.gpu))
            cost.add_metric([queue, cause], tally.cost / 1_000_000)
    yield gpu
    yield cost


def _gauges(counts: ClusterCounts) -> Iterator[Metric]:
    yield _family("jobs", "Unfinished jobs.", "phase", counts.jobs)
    yield _family("jobs_pending", "Pending jobs.", "reason", counts.reasons)
    yield _family("tasks", "Tasks of unfinished jobs.", "state", counts.tasks)
    yield _family("workers", "Workers.", "status", counts.workers)
    usage = GaugeMetricFamily(
        "phalanx_queue_usage", "Resources that a queue uses.", labels=["queue", "resource"]
    )
    share = GaugeMetricFamily(
        "phalanx_queue_share",
        "Share of the cluster's capacity that a queue uses.",
        labels=["queue", "resource"],
    )
    for (queue, resource), amount in sorted(counts.usage.items()):
        usage.add_metric([queue, resource], amount / _SCALES.get(resource, 1))
        if counts.capacity[resource]:
            share.add_metric([queue, resource], amount / counts.capacity[resource])
    yield usage
    yield share


def _family(name: str, text: str, label: str, counts: Mapping[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"phalanx_{name}", text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([str(value)], count)
    return family
