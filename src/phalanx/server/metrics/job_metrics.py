"""Metrics of jobs, gangs, tasks and workers, counted from the records of durable turns.

The four metrics of a gang that is stopped keep the names of the seeds: `gangs_preempted`,
`gang_preemptions_force_drained`, `gang_preemptions_completed` and `gang_preemption_drain_seconds`.
"""

from typing import NamedTuple

from prometheus_client import CollectorRegistry

from phalanx.core.causes import TaskEnding
from phalanx.core.changes import Changes
from phalanx.core.cluster import Cluster
from phalanx.core.model import ENDED, Phase
from phalanx.core.records import (
    ArraySubmitted,
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
from phalanx.core.time_units import SECOND, Micros
from phalanx.engine.turn import Turn
from phalanx.server.metrics.families import LONG_S, SHORT_S, Families

#: How a stopping task ended if its worker did not report it.
_UNREPORTED = (TaskEnding.SILENT, TaskEnding.WORKER_LOST)


class _Starting(NamedTuple):
    """A gang that was released and has not started completely."""

    attempt: int
    tasks_left: int
    first_at: Micros | None = None  #: when the first task started


class JobMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        #: job → since when it has been eligible to start.
        self._pending: dict[str, Micros] = {}
        self._starting: dict[str, _Starting] = {}
        families = Families(registry)
        counter, histogram = families.counter, families.histogram
        self._submitted = counter("jobs_submitted", "Jobs accepted.")
        self._ended = {
            Phase.DONE: counter("jobs_completed", "Jobs that succeeded."),
            Phase.FAILED: counter("jobs_failed", "Jobs that failed."),
            Phase.CANCELLED: counter("jobs_cancelled", "Jobs cancelled."),
            Phase.TIMED_OUT: counter("jobs_timed_out", "Jobs ended by a time limit."),
        }
        self._requeued = counter("jobs_requeued", "Times a job was requeued after a stop.")
        self._tasks_started = counter("tasks_started", "Tasks started.")
        self._hit_by_loss = counter(
            "tasks_lost", "Tasks that failed because their worker was lost.", "outcome"
        )
        self._stops = counter("gangs_preempted", "Times a gang began to stop, for any cause.")
        self._forced_stops = counter(
            "gang_preemptions_force_drained",
            "Tasks that counted as stopped without a report from their worker.",
        )
        self._completed_stops = counter(
            "gang_preemptions_completed", "Gangs stopped, by outcome.", "outcome"
        )
        self._workers_lost = counter("workers_lost", "Workers declared lost.")
        self._reservations_lost = counter(
            "reservations_lost", "Reservations lost before their gang started."
        )
        self._task_duration = histogram(
            "task_duration_seconds", "Time from a task's start to its end.", LONG_S
        )
        self._pending_time = histogram(
            "job_pending_seconds", "Time from eligible to started.", LONG_S
        )
        self._stop_time = histogram(
            "gang_preemption_drain_seconds", "Time to stop all tasks of a gang.", LONG_S
        )
        self._skew = histogram(
            "gang_start_skew_seconds", "Time from the first start of a gang to the last.", SHORT_S
        )
        for outcome in ("blocked", "failed"):
            self._completed_stops.labels(outcome)

    def load(self, cluster: Cluster) -> None:
        """Start with the jobs of a cluster that was just loaded."""
        self._starting.clear()
        self._pending = {
            job: gang.job.eligible_since
            for job, gang in cluster.gangs.items()
            if gang.job.eligible_since is not None
        }

    def observe(self, turn: Turn) -> None:
        for changes in turn.changes:
            for job in changes.jobs.values():
                if job.eligible_since is not None:
                    self._pending.setdefault(job.id, job.eligible_since)
            for record in changes.records:
                self._count(changes, record)
            if changes.records:
                self._count_losses(changes)

    def _count(self, changes: Changes, record: Record) -> None:
        match record:
            case JobSubmitted() | ArraySubmitted():
                self._submitted.inc()
            case TaskStarted() | TaskClaimed():
                self._count_start(record)
            case GangStarting():
                self._count_release(record)
            case TaskDone() | TaskFailed() | TaskStopped():
                self._count_end(changes, record)
                if isinstance(record, TaskStopped) and record.how in _UNREPORTED:
                    self._forced_stops.inc()
            case TaskStopTimedOut():
                self._forced_stops.inc()
            case JobEnded():
                self._ended[record.phase].inc()
                self._pending.pop(record.job, None)
                self._starting.pop(record.job, None)
            case GangStopping():
                self._stops.inc()
                self._starting.pop(record.job, None)
            case GangStopped():
                self._count_stop(record)
            case WorkerDeclaredLost():
                self._workers_lost.inc()
            case ReservationLost():
                self._reservations_lost.inc()
            case _:
                pass

    def _count_release(self, record: GangStarting) -> None:
        self._observe_pending_time(record.job, record.at)
        if record.size > 1:
            self._starting[record.job] = _Starting(record.attempt, record.size)

    def _count_start(self, record: TaskStarted | TaskClaimed) -> None:
        self._tasks_started.inc()
        if isinstance(record, TaskClaimed):
            self._observe_pending_time(record.job, record.at)
        starting = self._starting.pop(record.job, None)
        if starting is None or starting.attempt != record.attempt:
            return
        first_at = record.at if starting.first_at is None else starting.first_at
        if starting.tasks_left > 1:
            left = starting.tasks_left - 1
            self._starting[record.job] = _Starting(starting.attempt, left, first_at)
        else:
            self._skew.observe((record.at - first_at) / SECOND)

    def _count_end(self, changes: Changes, record: TaskRecord) -> None:
        task = changes.tasks.get((record.job, record.task))
        if task is not None and task.started_at is not None and task.ended_at is not None:
            self._task_duration.observe(max(0, task.ended_at - task.started_at) / SECOND)

    def _count_stop(self, record: GangStopped) -> None:
        is_requeued = record.outcome is Phase.PENDING
        self._completed_stops.labels("blocked" if is_requeued else str(record.outcome)).inc()
        self._stop_time.observe(record.seconds)
        if is_requeued:
            self._requeued.inc()

    def _count_losses(self, changes: Changes) -> None:
        if any(isinstance(record, WorkerDeclaredLost) for record in changes.records):
            for record in changes.records:
                if isinstance(record, TaskFailed):
                    job = changes.jobs.get(record.job)
                    has_ended = job is not None and job.verdict in ENDED
                    self._hit_by_loss.labels("failed" if has_ended else "requeued").inc()

    def _observe_pending_time(self, job: str, at: Micros) -> None:
        since = self._pending.pop(job, None)
        if since is not None:
            self._pending_time.observe(max(0, at - since) / SECOND)
