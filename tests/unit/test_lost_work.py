"""Lost work is charged once, to the job and to its queue's account."""

from typing import Any

import pytest
from tests.driver import Driver, spec

from phalanx.core import events
from phalanx.core.ledger import DAYS_KEPT, EVICTIONS_KEPT, NAMES_KEPT, LostTo, Tally
from phalanx.core.model import Assignment, Blob, Phase, Queue
from phalanx.core.records import WorkLost
from phalanx.core.settings import CoreSettings

GPU: dict[str, object] = {"resources": {"gpu": 1}}
FIVE_HOURS = 5 * 3600
DOLLAR = 1_000_000


@pytest.fixture
def cluster() -> Driver:
    cluster = Driver(CoreSettings(price={"gpu": 3_500_000}))
    cluster.fleet("w-1", "w-2", "w-3", "w-4", resources={"gpu": 1000})
    cluster.apply(events.QueueSet(Queue("research")))
    return cluster


def running(cluster: Driver, **fields: Any) -> str:
    """Four GPUs for five hours."""
    job = cluster.submit(spec(4, role=GPU, queue="research", **fields))
    cluster.run(job, "w-1", "w-2", "w-3", "w-4")
    cluster.advance(FIVE_HOURS)
    return job


def dollars(cost: int) -> str:
    return f"${cost / DOLLAR:.2f}"


def begin_eviction(cluster: Driver, job: str) -> None:
    urgent = spec(4, role=GPU, name="team-b-urgent", namespace="ml", queue="research", priority=9)
    by = cluster.submit(urgent)
    workers = ("w-1", "w-2", "w-3", "w-4")
    assignments = tuple(Assignment(index, worker) for index, worker in enumerate(workers))
    placement = events.Placement(by, cluster.job(by).version, assignments)
    victim = events.Victim(job, cluster.job(job).version)
    cluster.apply(events.Nominated((placement,), (victim,)))


def evict_for_team_b(cluster: Driver, job: str) -> None:
    begin_eviction(cluster, job)
    cluster.stop(job)


def save(cluster: Driver, job: str, *indices: int) -> None:
    for index in indices:
        task = cluster.task(job, index)
        blob = Blob(f"b{index}", 10)
        cluster.apply(events.CheckpointSaved(task.id, task.epoch, blob))


def gpu_s_lost(cluster: Driver, job: str) -> int:
    losses = cluster.job(job).losses
    return 0 if losses is None else losses.total.gpu // 1_000_000_000


def test_five_hours_on_four_gpus_without_a_checkpoint_cost_seventy_dollars(cluster: Driver) -> None:
    job = running(cluster)
    evict_for_team_b(cluster, job)
    lost = cluster.job(job).losses
    assert lost is not None
    assert dollars(lost.total.cost) == "$70.00"
    [eviction] = lost.evictions
    assert eviction.by == "ml/team-b-urgent"
    assert dollars(eviction.cost) == "$70.00"
    assert eviction.gpu // 1_000_000_000 == 4 * FIVE_HOURS


def test_work_that_was_reported_safe_is_not_lost(cluster: Driver) -> None:
    job = running(cluster)
    task = cluster.task(job, 0)
    cluster.apply(events.Progressed(task.id, task.epoch, 100, safe=True))
    cluster.advance(120)
    evict_for_team_b(cluster, job)
    lost = cluster.job(job).losses
    assert lost is not None
    assert dollars(lost.total.cost) == "$0.47"


def test_a_failure_loses_work_and_is_no_eviction(cluster: Driver) -> None:
    job = running(cluster)
    cluster.fail(job, 2)
    cluster.stop(job)
    lost = cluster.job(job).losses
    assert lost is not None
    assert lost.evictions == ()
    assert lost.eviction == Tally()
    assert dollars(lost.failure.cost) == "$70.00"


def test_a_stop_is_priced_when_it_has_settled(cluster: Driver) -> None:
    job = running(cluster)
    begin_eviction(cluster, job)
    assert cluster.job(job).losses is None
    cluster.stop(job)
    kinds = cluster.kinds(job)
    assert kinds.index("WorkLost") > kinds.index("TaskStopped")


@pytest.mark.parametrize("policy", ["each", "all"])
def test_what_was_saved_in_the_stop_is_not_lost(cluster: Driver, policy: str) -> None:
    job = running(cluster, checkpoint=policy)
    begin_eviction(cluster, job)
    cluster.advance(5)
    save(cluster, job, 0, 1, 2, 3)
    cluster.advance(2)
    cluster.stop(job)
    assert "WorkLost" not in cluster.kinds(job)
    losses = cluster.job(job).losses
    assert losses is not None
    assert (losses.eviction.count, losses.eviction.gpu) == (1, 0)


@pytest.mark.parametrize(("policy", "gpu_s"), [("each", FIVE_HOURS), ("all", 4 * FIVE_HOURS)])
def test_a_task_that_did_not_save_loses_its_work_or_that_of_the_set(
    cluster: Driver, policy: str, gpu_s: int
) -> None:
    job = running(cluster, checkpoint=policy)
    begin_eviction(cluster, job)
    save(cluster, job, 0, 1, 3)
    cluster.stop(job)
    assert gpu_s_lost(cluster, job) == gpu_s


def test_a_failed_task_could_not_save(cluster: Driver) -> None:
    job = running(cluster, checkpoint="each")
    cluster.fail(job, 2)
    save(cluster, job, 0, 1, 3)
    cluster.stop(job)
    assert gpu_s_lost(cluster, job) == FIVE_HOURS


def test_work_reported_safe_while_stopping_is_not_lost(cluster: Driver) -> None:
    job = running(cluster)
    begin_eviction(cluster, job)
    task = cluster.task(job, 0)
    cluster.apply(events.Progressed(task.id, task.epoch, 100, safe=True))
    cluster.stop(job)
    assert gpu_s_lost(cluster, job) == 0


def test_a_task_that_restarts_alone_loses_its_own_work(cluster: Driver) -> None:
    job = running(cluster, restart="task", match="once-satisfied")
    cluster.fail(job, 2)
    lost = cluster.job(job).losses
    assert lost is not None
    assert lost.total.gpu // 1_000_000_000 == FIVE_HOURS


def test_a_shrink_loses_the_work_of_its_tasks_only(cluster: Driver) -> None:
    job = running(cluster, min_available=2)
    cluster.apply(events.Shrunk(job, (2, 3), by="ml/urgent"))
    cluster.stop(job, 2)
    assert cluster.job(job).losses is None
    cluster.restart()
    cluster.stop(job, 3)
    lost = cluster.job(job).losses
    assert lost is not None
    [eviction] = lost.evictions
    assert (eviction.by, dollars(eviction.cost)) == ("ml/urgent", "$35.00")
    assert str(eviction.cause) == "shrunk for job ml/urgent"


def test_a_stop_during_a_shrink_charges_both(cluster: Driver) -> None:
    job = running(cluster, min_available=2)
    cluster.apply(events.Shrunk(job, (2, 3), by="ml/urgent"))
    cluster.stop(job, 2)
    cluster.fail(job, 0)
    cluster.stop(job)
    lost = cluster.job(job).losses
    assert lost is not None
    assert (dollars(lost.eviction.cost), dollars(lost.failure.cost)) == ("$17.50", "$52.50")


def test_a_cancelled_job_loses_no_work(cluster: Driver) -> None:
    job = running(cluster)
    cluster.apply(events.CancelRequested(job))
    cluster.stop(job)
    assert cluster.phase(job) is Phase.CANCELLED
    assert cluster.job(job).losses is None
    assert cluster.accounts == {}


def test_a_drained_worker_evicts_in_the_name_of_its_operator(cluster: Driver) -> None:
    job = running(cluster)
    cluster.apply(
        events.DrainRequested("w-1", "new disk", by="ada", deadline=cluster.now + 60_000_000)
    )
    assert cluster.job(job).losses is None
    cluster.restart()
    cluster.advance(61)
    cluster.stop(job)
    lost = cluster.job(job).losses
    assert lost is not None
    assert [eviction.by for eviction in lost.evictions] == ["ada"]


def test_a_stop_is_priced_once_however_many_causes_it_has(cluster: Driver) -> None:
    job = running(cluster)
    begin_eviction(cluster, job)
    cluster.fail(job, 0)
    cluster.stop(job)
    lost = cluster.job(job).losses
    assert lost is not None
    assert dollars(lost.total.cost) == "$70.00"
    assert [r.to for r in cluster.records if isinstance(r, WorkLost)] == [LostTo.EVICTION]


def test_a_queue_keeps_its_account_when_its_jobs_are_gone(cluster: Driver) -> None:
    job = running(cluster)
    evict_for_team_b(cluster, job)
    cluster.run(job, "w-1", "w-2", "w-3", "w-4")
    cluster.advance(FIVE_HOURS)
    cluster.fail(job, 0)
    cluster.stop(job)
    cluster.apply(events.CancelRequested(job))
    cluster.restart()
    account = cluster.cluster.accounts["research"]
    assert dollars(account.eviction.cost) == "$70.00"
    assert dollars(account.failure.cost) == "$70.00"
    assert account.eviction.count == 1
    assert dollars(account.evictors["ml/team-b-urgent"].cost) == "$70.00"
    assert dollars(account.jobs[job].lost.cost) == "$140.00"


def test_the_lists_are_bounded_and_the_totals_exact(cluster: Driver) -> None:
    job = cluster.submit(spec(1, role=GPU, queue="research"))
    rounds = max(EVICTIONS_KEPT, NAMES_KEPT) + 5
    for number in range(rounds):
        cluster.run(job, "w-1")
        cluster.advance(60)
        cluster.apply(events.Evicted(job, by=f"operator-{number}", why="a test"))
        cluster.stop(job)
    lost = cluster.job(job).losses
    assert lost is not None
    assert [e.by for e in lost.evictions] == [
        f"operator-{n}" for n in range(rounds - EVICTIONS_KEPT, rounds)
    ]
    account = cluster.accounts["research"]
    assert len(account.evictors) == NAMES_KEPT
    assert account.eviction == lost.eviction
    assert lost.eviction.count == rounds


def test_evictions_by_jobs_are_counted_by_day_for_a_week(cluster: Driver) -> None:
    job = cluster.submit(spec(2, role=GPU, queue="research", min_available=1))
    for _ in range(DAYS_KEPT + 3):
        cluster.run(job, "w-1", "w-2")
        cluster.apply(events.Shrunk(job, (1,), by="ml/urgent"))
        cluster.stop(job)
        cluster.apply(events.Evicted(job, by="ops", why="requeued by ops"))
        cluster.stop(job)
        cluster.advance(24 * 3600)
    account = cluster.accounts["research"]
    assert sorted(account.days.values()) == [1] * DAYS_KEPT
    assert account.preemptions_since(max(account.days)) == 1
    assert account.eviction.count == 2 * (DAYS_KEPT + 3)
