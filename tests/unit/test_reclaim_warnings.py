"""Which queues may reclaim from a job, by the settings of the queues."""

from typing import Any

from hypothesis import given, settings
from tests.driver import spec
from tests.unit.test_planner_properties import GPU, World, borrowed_worlds, worlds

from phalanx.core.model import Queue, ReclaimFrom
from phalanx.core.reclaim import Reclaimers, reclaimers
from phalanx.core.spec.job import Resources
from phalanx.plan.decisions import Evict


def found(
    *queues: Queue,
    used: dict[str, Resources] | None = None,
    highest: dict[str, int] | None = None,
    **fields: Any,
) -> Reclaimers | None:
    """The queues that may reclaim from a job with 4 GPUs in queue own."""
    given_queues = {queue.name: queue for queue in queues}
    job = spec(4, role={"resources": {"gpu": 1}}, queue="own", **fields)
    return reclaimers(job, given_queues, used or {}, highest or {})


def names(may: Reclaimers | None) -> tuple[str, ...]:
    return () if may is None else may.queues


OWN = Queue("own")
RIVAL = Queue("rival", quota={"gpu": 1000})


def test_a_queue_with_a_quota_or_with_jobs_may_reclaim_from_a_queue_without_a_quota() -> None:
    idle, busy = Queue("idle"), Queue("busy")
    may = found(OWN, RIVAL, idle, busy, highest={"busy": 0})
    assert may == Reclaimers(("busy", "rival"), "queue own has no quota")


def test_a_queue_within_its_quota_loses_nothing() -> None:
    own = Queue("own", quota={"gpu": 8000})
    assert found(own, RIVAL, used={"own": {"gpu": 4000}}) is None
    may = found(own, RIVAL, used={"own": {"gpu": 5000}})
    assert may == Reclaimers(("rival",), "queue own would exceed its GPU quota")


def test_a_queue_that_other_queues_do_not_reclaim_from_loses_nothing() -> None:
    assert found(Queue("own", reclaimable=False), RIVAL) is None
    top = Queue("top", reclaimable=False)
    assert found(Queue("own", "top"), top, RIVAL) is None


def test_a_quota_of_another_resource_does_not_protect_a_job() -> None:
    may = found(Queue("own", quota={"cpu": 8000}), RIVAL)
    assert may == Reclaimers(("rival",), "queue own has no GPU quota")


def test_a_job_without_resources_is_not_reclaimed() -> None:
    queues = {"own": OWN, "rival": RIVAL}
    assert reclaimers(spec(queue="own"), queues, {}, {}) is None


def test_a_queue_without_a_share_may_not_reclaim() -> None:
    idle, cpu_only = Queue("idle", weight=0), Queue("cpu", weight=0, quota={"cpu": 1000})
    granted = Queue("granted", weight=0, quota={"gpu": 1000})
    highest = {"idle": 9, "cpu": 9, "granted": 9}
    assert names(found(OWN, idle, cpu_only, granted, highest=highest)) == ("granted",)


def test_a_queue_below_one_without_a_share_may_reclaim_only_from_its_siblings() -> None:
    top, child = Queue("top", weight=0), Queue("child", "top")
    assert found(OWN, top, child, highest={"child": 9}) is None
    assert names(found(Queue("own", "top"), top, child, highest={"child": 9})) == ("child",)


def test_a_queue_within_the_quota_of_its_parent_loses_nothing_to_queues_elsewhere() -> None:
    top, own, sibling = Queue("top", quota={"gpu": 8000}), Queue("own", "top"), Queue("s", "top")
    used = {"top": {"gpu": 4000}, "own": {"gpu": 4000}}
    assert found(top, own, sibling, RIVAL, used=used) is None
    may = found(top, own, sibling, RIVAL, used=used, highest={"s": 0})
    assert may == Reclaimers(("s",), "queue own has no quota")
    used["top"] = {"gpu": 5000}
    may = found(top, own, sibling, RIVAL, used=used)
    assert may == Reclaimers(("rival",), "queue top would exceed its GPU quota")


def test_a_parent_without_a_quota_has_the_sum_of_the_quotas_below_it() -> None:
    top, sibling = Queue("top"), Queue("s", "top", quota={"gpu": 8000})
    own = Queue("own", "top")
    assert names(found(top, own, sibling, RIVAL)) == ("s",)
    assert names(found(top, own, sibling, RIVAL, used={"top": {"gpu": 5000}})) == ("rival", "s")


def test_queues_above_and_below_the_queue_of_the_job_do_not_reclaim_from_it() -> None:
    top, below = Queue("top", quota={"gpu": 1000}), Queue("below", "own", quota={"gpu": 1000})
    assert found(Queue("own", "top"), top, below, highest={"top": 9, "below": 9}) is None


def test_a_queue_that_reclaims_from_lower_priorities_needs_a_job_of_a_higher_one() -> None:
    lower = Queue("lower", reclaim_from_siblings=ReclaimFrom.LOWER_PRIORITY)
    never = Queue("never", quota={"gpu": 1000}, reclaim_from_siblings=ReclaimFrom.NEVER)
    highest = {"lower": 5, "never": 9}
    assert names(found(OWN, lower, never, highest=highest, priority=4)) == ("lower",)
    assert found(OWN, lower, never, highest=highest, priority=5) is None


@settings(max_examples=300)
@given(worlds() | borrowed_worlds())
def test_the_planner_reclaims_only_what_the_settings_allow(world: World) -> None:
    for decision in world.plan().decisions:
        if not isinstance(decision, Evict):
            continue
        preemptor = world.pending[decision.placements[0].job]
        for victim in decision.victims:
            gang = world.running[victim.job]
            if gang.queue != preemptor.queue:
                assert preemptor.queue in names(_open_to(world, victim.job))


def _open_to(world: World, job: str) -> Reclaimers | None:
    """The queues that may reclaim from a running job."""
    gang = world.running[job]
    gpus = sum(dict(task.resources)["gpu"] for task in gang.tasks)
    submitted = spec(
        role={"resources": {"gpu": gpus // GPU}}, queue=gang.queue, priority=gang.priority
    )
    without = world._replace(running={j: g for j, g in world.running.items() if j != job})
    used = {name: {"gpu": without.used(name)} for name in world.queues}
    pending = world.pending.values()
    highest = {
        name: max((gang.priority for gang in pending if gang.queue == name), default=-1)
        for name in world.queues
    }
    return reclaimers(submitted, world.queues, used, highest)
