"""What is measured, for Prometheus: fed by turns once they are durable, and by the engine's news.

Counters begin at nothing with the process. Gauges of what there is come from the last census.
"""

import time
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from phalanx.core.changes import Changes
from phalanx.core.cluster import Cluster
from phalanx.core.ledger import Account, LostTo, gpu_seconds
from phalanx.core.model import ENDED, Phase
from phalanx.core.records import (
    GangStarting,
    GangStopped,
    GangStopping,
    JobEnded,
    JobSubmitted,
    Record,
    ReservationLost,
    TaskClaimed,
    TaskDone,
    TaskFailed,
    TaskRecord,
    TaskStarted,
    TaskStopped,
    TaskStopTimedOut,
    WorkerDeclaredLost,
)
from phalanx.core.spec.job import Micros
from phalanx.core.states import State
from phalanx.engine.planner_loop import update_and_plan
from phalanx.engine.turn import Turn
from phalanx.plan.decisions import Plan
from phalanx.plan.state.delta import PlannerDelta
from phalanx.plan.state.planner_state import PlannerState
from phalanx.server.metrics.census import Census, take
from phalanx.server.metrics.gpu_seconds import GpuSeconds
from phalanx.store.protocol import Leader

#: How often at most everything is counted.
_CENSUS_S = 2.0

_SPANS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 6 * 3600, 24 * 3600)
_MOMENTS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

#: Units of the normal form in one that people count in.
_SCALES = {"cpu": 1000, "gpu": 1000}


class Metrics:
    """A watcher and an observer of an engine; `text` is what a scrape is answered with."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.gpu_seconds = GpuSeconds()
        self.accounts: dict[str, Account] = {}
        self.census: Census | None = None
        self._counted_at = float("-inf")
        #: job → when it became eligible; → first start and how many are still to start.
        self._waiting: dict[str, Micros] = {}
        self._starting: dict[str, tuple[int, Micros, int]] = {}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"phalanx_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"phalanx_{name}", text, buckets=buckets, registry=registry)

        self._submitted = counter("jobs_submitted", "Jobs that were taken.")
        self._claimed = counter("jobs_claimed", "Tasks that began to run.")
        self._ended = {
            Phase.DONE: counter("jobs_completed", "Jobs that ended well."),
            Phase.FAILED: counter("jobs_failed", "Jobs that failed for good."),
            Phase.CANCELLED: counter("jobs_cancelled", "Jobs that were cancelled."),
            Phase.TIMED_OUT: counter("jobs_timed_out", "Jobs ended by a time limit."),
        }
        self._retried = counter("jobs_retried", "Times a job went back to waiting.")
        self._reaped = counter("jobs_reaped", "Jobs hit by a lost worker.", "outcome")
        self._preempted = counter("gangs_preempted", "Drains that began.")
        self._forced = counter("gang_preemptions_force_drained", "Drains that timed out.")
        self._drained = counter("gang_preemptions_completed", "Drains that settled.", "outcome")
        self._workers_lost = counter("workers_lost", "Workers declared lost.")
        self._reservations_lost = counter("reservations_lost", "Start sets that went back.")
        self._rejected = counter("decisions_rejected", "Decisions that came too late.", "cause")
        self._store_failures = counter("store_failures", "Times the store did not answer.")
        self._output_received = counter("output_received_bytes", "Output of tasks that was kept.")
        self._output_dropped = counter(
            "output_dropped_bytes", "Output of tasks that went to make room for newer."
        )
        self._execution = histogram(
            "job_execution_duration_seconds", "From a task's start to its end.", _SPANS
        )
        self._wait = histogram("job_queue_wait_seconds", "From eligible to released.", _SPANS)
        self._drain = histogram(
            "gang_preemption_drain_seconds", "From the first order to stop to settled.", _SPANS
        )
        self._skew = histogram(
            "gang_start_skew_seconds", "From the first start in a gang to the last.", _MOMENTS
        )
        self._plan = histogram("plan_seconds", "Time to make a plan.", _MOMENTS)
        self._commit = histogram("commit_seconds", "Time to make a turn durable.", _MOMENTS)
        self._batch = histogram("commit_batch_size", "Commands that shared a commit.", _SIZES)
        self._leads = Gauge("phalanx_leader", "Whether this server leads.", registry=registry)
        for outcome in ("blocked", "failed"):
            self._drained.labels(outcome)
        registry.register(_Standing(self))

    def text(self) -> bytes:
        return generate_latest(self.registry)

    # As a watcher

    def leading(self, term: int, cluster: Cluster) -> None:
        self._leads.set(1)
        self._starting.clear()
        self._waiting = {
            job: gang.job.eligible_since
            for job, gang in cluster.gangs.items()
            if gang.job.eligible_since is not None
        }
        self.gpu_seconds.load(cluster)
        self.accounts = dict(cluster.accounts)

    def standing_by(self, leader: Leader | None) -> None:
        self._leads.set(0)
        self.census = None

    def stepped_down(self, term: int, reason: str) -> None:
        self._leads.set(0)
        self.census = None

    def store_failed(self, error: str) -> None:
        self._store_failures.inc()

    def committed(self, seconds: float, commands: int, changes: int) -> None:
        self._commit.observe(seconds)
        self._batch.observe(commands)

    def planned(self, seconds: float, plan: Plan) -> None:
        self._plan.observe(seconds)

    def rejected(self, cause: str) -> None:
        self._rejected.labels(cause).inc()

    def braked(self) -> None:
        pass

    def output_kept(self, size_bytes: int, dropped_bytes: int) -> None:
        self._output_received.inc(size_bytes)
        self._output_dropped.inc(dropped_bytes)

    # Beside the planner

    def plan_and_count(self, state: PlannerState, delta: PlannerDelta, at: Micros) -> Plan:
        """Plan, and now and then take a census of what was planned from."""
        made = update_and_plan(state, delta, at)
        now = time.monotonic()
        if now - self._counted_at >= _CENSUS_S:
            self._counted_at = now
            self.census = take(state, made)
        return made

    # As an observer

    def observe(self, turn: Turn) -> None:
        for changes in turn.changes:
            self.accounts |= changes.accounts
            for job in changes.jobs.values():
                if job.eligible_since is not None:
                    self._waiting.setdefault(job.id, job.eligible_since)
            for record in changes.records:
                self._note(changes, record)
                self.gpu_seconds.observe(record)
            if changes.records:
                self._note_reaped(changes)

    def _note(self, changes: Changes, record: Record) -> None:
        match record:
            case JobSubmitted():
                self._submitted.inc()
            case TaskStarted() | TaskClaimed():
                self._note_start(changes, record)
            case GangStarting():
                self._note_release(record)
            case TaskDone() | TaskFailed() | TaskStopped():
                self._note_end(changes, record)
            case JobEnded():
                self._ended[record.phase].inc()
                self._waiting.pop(record.job, None)
                self._starting.pop(record.job, None)
            case GangStopping():
                self._preempted.inc()
                self._starting.pop(record.job, None)
            case GangStopped():
                requeued = record.outcome is Phase.PENDING
                self._drained.labels("blocked" if requeued else str(record.outcome)).inc()
                self._drain.observe(record.seconds)
                if requeued:
                    self._retried.inc()
            case WorkerDeclaredLost():
                self._workers_lost.inc()
            case ReservationLost():
                self._reservations_lost.inc()
            case _:
                pass

    def _note_release(self, record: GangStarting) -> None:
        self._observe_wait(record.job, record.at)
        if record.size > 1:
            self._starting[record.job] = (record.size, 0, record.attempt)

    def _observe_wait(self, job: str, at: Micros) -> None:
        since = self._waiting.pop(job, None)
        if since is not None:
            self._wait.observe(max(0, at - since) / 1_000_000)

    def _note_start(self, changes: Changes, record: TaskStarted | TaskClaimed) -> None:
        job = record.job
        self._claimed.inc()
        gang = changes.gangs.get(job)
        if gang is not None:
            self.gpu_seconds.add_task(job, gang.job.spec, record.task, record.at)
        if isinstance(record, TaskClaimed):
            self._observe_wait(job, record.at)
        left, first, attempt = self._starting.pop(job, (0, 0, 0))
        if not left or attempt != record.attempt:
            return
        if left > 1:
            self._starting[job] = (left - 1, first or record.at, attempt)
        else:
            self._skew.observe((record.at - first) / 1_000_000)

    def _note_end(self, changes: Changes, record: TaskRecord) -> None:
        task = changes.tasks.get((record.job, record.task))
        if task is not None and task.started_at is not None and task.ended_at is not None:
            self._execution.observe(max(0, task.ended_at - task.started_at) / 1_000_000)

    def _note_reaped(self, changes: Changes) -> None:
        """What a lost worker took with it, and drains that ended by time-out."""
        kinds = {type(record) for record in changes.records}
        if TaskStopTimedOut in kinds:
            self._forced.inc()
        if WorkerDeclaredLost in kinds:
            for record in changes.records:
                if isinstance(record, TaskFailed):
                    job = changes.jobs.get(record.job)
                    ended = job is not None and job.verdict in ENDED
                    self._reaped.labels("failed" if ended else "requeued").inc()


class _Standing(Collector):
    """What there is, as of the last census."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        used_gpu_s, census = self._metrics.gpu_seconds.used_gpu_s, self._metrics.census
        used = CounterMetricFamily("phalanx_gpu_seconds_used", "GPU-seconds given to tasks.")
        used.add_metric([], used_gpu_s)
        yield used
        yield from _losses(self._metrics.accounts)
        if census is not None:
            yield from _gauges(census)

    def describe(self) -> Iterator[Metric]:
        return iter(())


def _losses(accounts: Mapping[str, Account]) -> Iterator[Metric]:
    labels = ["queue", "to"]
    gpu = CounterMetricFamily(
        "phalanx_gpu_seconds_lost", "GPU-seconds that came to nothing.", labels=labels
    )
    cost = CounterMetricFamily("phalanx_lost_cost", "What that cost when it was.", labels=labels)
    for queue, account in sorted(accounts.items()):
        for to, tally in ((LostTo.EVICTION, account.eviction), (LostTo.FAILURE, account.failure)):
            gpu.add_metric([queue, to], gpu_seconds(tally.gpu))
            cost.add_metric([queue, to], tally.cost / 1_000_000)
    yield gpu
    yield cost


def _gauges(census: Census) -> Iterator[Metric]:
    for name, states in _BY_STATE.items():
        count = sum(census.tasks[state] for state in states)
        yield GaugeMetricFamily(f"phalanx_jobs_{name}", f"Tasks that are {name}.", value=count)
    yield _family("jobs", "Unfinished jobs.", "phase", census.jobs)
    yield _family("tasks", "Tasks of unfinished jobs.", "state", census.tasks)
    yield _family("workers", "Workers that are known.", "state", census.workers)
    yield _family("waiting", "Waiting jobs by what they wait for.", "reason", census.reasons)
    usage = GaugeMetricFamily(
        "phalanx_queue_usage", "What a queue's tasks occupy.", labels=["queue", "resource"]
    )
    share = GaugeMetricFamily(
        "phalanx_queue_share", "The part of all workers it is.", labels=["queue", "resource"]
    )
    for (queue, resource), amount in sorted(census.usage.items()):
        usage.add_metric([queue, resource], amount / _SCALES.get(resource, 1))
        if census.capacity[resource]:
            share.add_metric([queue, resource], amount / census.capacity[resource])
    yield usage
    yield share


_BY_STATE = {
    "pending": (State.PENDING,),
    "blocked": (State.BLOCKED,),
    "running": (State.RUNNING,),
}


def _family(name: str, text: str, label: str, counts: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"phalanx_{name}", text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([str(value)], count)
    return family
