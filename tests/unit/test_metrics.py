"""Metrics follow the records: work used and lost, pending jobs, lost workers."""

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.driver import Driver, spec

from phalanx.core.changes import Changes
from phalanx.core.events import Event, Progressed, WorkerLost
from phalanx.core.model import GangMembers
from phalanx.core.records import GangStopping, JobRecord
from phalanx.core.spec.validation import job_spec
from phalanx.engine.turn import Turn
from phalanx.plan.cycle import plan
from phalanx.plan.state.planner_state import PlannerState
from phalanx.server.logs import line_of
from phalanx.server.metrics.cluster_counts import count_cluster
from phalanx.server.metrics.metrics import Metrics

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
GPU: dict[str, object] = {"resources": {"gpu": 1}}


class Measured(Driver):
    """A cluster with metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics = Metrics()
        self.metrics.engine.leading(1, self.cluster)

    def apply(self, event: Event) -> Changes:
        changes = super().apply(event)
        turn = Turn(self.cluster, self.now)
        turn.changes.append(changes)
        self.metrics.observe(turn)
        return changes

    def value(self, name: str, **labels: str) -> float:
        found = self.metrics.registry.get_sample_value(f"phalanx_{name}", labels)
        assert found is not None, name
        return found


@pytest.fixture
def cluster() -> Measured:
    cluster = Measured()
    cluster.fleet("w-1", "w-2", resources={"gpu": 1000})
    return cluster


def seconds(value: float) -> Any:
    return pytest.approx(value, abs=0.01)


def lost(cluster: Measured) -> float:
    return cluster.value("gpu_seconds_lost_total", queue="default", cause="failure")


def test_a_job_that_succeeds_has_lost_no_work(cluster: Measured) -> None:
    job = cluster.submit(spec(2, role=GPU))
    cluster.advance(7)
    cluster.run(job, "w-1", "w-2")
    cluster.advance(100)
    cluster.exit(job, 0)
    cluster.exit(job, 1)
    assert cluster.value("gpu_seconds_used_total") == seconds(200)
    assert b"phalanx_gpu_seconds_lost_total{" not in cluster.metrics.text()
    assert cluster.value("jobs_completed_total") == 1
    assert cluster.value("job_pending_seconds_sum") == seconds(7)
    assert cluster.value("task_duration_seconds_sum") == seconds(200)
    assert cluster.value("gang_start_skew_seconds_count") == 1


def test_work_since_the_last_saved_point_is_lost(cluster: Measured) -> None:
    job = cluster.submit(spec(2, role=GPU))
    epoch = cluster.run(job, "w-1", "w-2")
    cluster.advance(60)
    cluster.apply(Progressed(f"{job}.0", epoch, 1, safe=True))
    cluster.advance(40)
    cluster.fail(job, 0)
    cluster.stop(job)
    assert cluster.value("gpu_seconds_used_total") == seconds(200)
    assert lost(cluster) == seconds(80)
    assert cluster.value("jobs_requeued_total") == 1


def test_a_new_leader_continues_to_count_running_tasks(cluster: Measured) -> None:
    job = cluster.submit(spec(2, role=GPU))
    cluster.run(job, "w-1", "w-2")
    cluster.advance(50)
    cluster.restart()
    cluster.metrics.engine.leading(2, cluster.cluster)
    cluster.advance(50)
    cluster.exit(job, 0)
    cluster.exit(job, 1)
    assert cluster.value("gpu_seconds_used_total") == seconds(200)


def test_tasks_lost_with_their_worker_are_counted_by_outcome(cluster: Measured) -> None:
    again = cluster.submit(spec(1, role=GPU))
    ends = cluster.submit(spec(1, role=GPU, restart="never"))
    cluster.run(again, "w-1")
    cluster.run(ends, "w-2")
    cluster.apply(WorkerLost("w-1"))
    cluster.apply(WorkerLost("w-2"))
    assert cluster.value("workers_lost_total") == 2
    assert cluster.value("tasks_lost_total", outcome="requeued") == 1
    assert cluster.value("tasks_lost_total", outcome="failed") == 1


def test_a_stop_that_times_out_is_counted_as_forced(cluster: Measured) -> None:
    job = cluster.submit(spec(2, role=GPU))
    cluster.run(job, "w-1", "w-2")
    cluster.fail(job, 0)
    cluster.advance(46)
    assert cluster.value("gangs_preempted_total") == 1
    assert cluster.value("gang_preemptions_force_drained_total") == 1
    assert cluster.value("gang_preemptions_completed_total", outcome="blocked") == 1
    assert cluster.value("gang_preemption_drain_seconds_sum") == seconds(45)


def test_every_task_that_stops_without_a_report_is_counted_as_forced(cluster: Measured) -> None:
    cluster.fleet("w-3", resources={"gpu": 1000})
    job = cluster.submit(spec(3, role=GPU))
    cluster.run(job, "w-1", "w-2", "w-3")
    changes = cluster.fail(job, 0)
    # As in Workron's log, the task that failed is among those that stop.
    [stopping] = [record for record in changes.records if isinstance(record, GangStopping)]
    assert line_of(stopping)[1]["transitioned"] == 3
    cluster.apply(WorkerLost("w-2"))
    assert cluster.value("gang_preemptions_force_drained_total") == 1
    cluster.advance(46)
    assert cluster.value("gang_preemptions_force_drained_total") == 2
    assert cluster.value("gangs_preempted_total") == 1


def test_the_cluster_is_counted_by_phase_state_status_reason_and_queue(cluster: Measured) -> None:
    roles = {
        "ps": {"command": "x", "replicas": 1, "resources": {"cpu": 2}},
        "worker": {"command": "x", "replicas": 1, "resources": {"gpu": 1}},
    }
    cluster.worker("w-3", resources={"cpu": 4000})
    running = cluster.submit(job_spec({"roles": roles}))
    cluster.run(running, "w-3", "w-1")
    cluster.submit(spec(4, role=GPU))
    nobody_yet = replace(spec(name="group"), roles=(), min_available=0)
    cluster.submit(nobody_yet, members=GangMembers(needed=2))
    cluster.apply(WorkerLost("w-2"))
    state = PlannerState.of(cluster.cluster)
    counts = count_cluster(state, plan(state, cluster.now))
    assert counts.jobs == {"running": 1, "pending": 2}
    assert counts.tasks == {"running": 2, "pending": 4}
    assert counts.workers == {"active": 2, "lost": 1}
    assert counts.usage == {("default", "cpu"): 2000, ("default", "gpu"): 1000}
    assert counts.capacity == {"cpu": 4000, "gpu": 1000}
    assert counts.reasons.total() == 1
    cluster.metrics.cluster.counts = counts
    assert cluster.value("queue_usage", queue="default", resource="gpu") == 1
    assert cluster.value("queue_share", queue="default", resource="cpu") == 0.5
    assert cluster.value("tasks", state="pending") == 4
    assert cluster.value("jobs_pending", reason="NeverFits") == 1
    cluster.metrics.engine.standing_by(None)
    assert b"phalanx_queue_usage{" not in cluster.metrics.text()


def test_every_record_has_a_log_line_that_names_its_subject(cluster: Measured) -> None:
    job = cluster.submit(spec(2, role=GPU))
    cluster.run(job, "w-1", "w-2")
    cluster.fail(job, 0)
    cluster.stop(job)
    for record in cluster.records:
        words, fields = line_of(record)
        assert words == words.lower()
        assert "event" not in fields
        if isinstance(record, JobRecord):
            assert any(str(value).startswith(job) for value in fields.values())


@pytest.mark.parametrize("page", ["run-a-server", "cost"])
def test_every_metric_on_the_pages_exists(cluster: Measured, page: str) -> None:
    text = (HOW_TO / f"{page}.md").read_text("utf-8")
    named = set(re.findall(r"`(phalanx_\w+)`", text))
    cluster.submit(spec(4, role=GPU))
    state = PlannerState.of(cluster.cluster)
    cluster.metrics.cluster.counts = count_cluster(state, plan(state, cluster.now))
    families = {family.name for family in cluster.metrics.registry.collect()}
    assert {name.removesuffix("_total") for name in named} <= families
