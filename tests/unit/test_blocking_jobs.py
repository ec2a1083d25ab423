"""The running jobs without a time limit that a gang waits for which has been pending for long."""

from typing import Any

import pytest
from tests.unit.test_scenario import gang, scenario, task

from phalanx.core.reasons import QueueLimit, QueueQuota
from phalanx.plan.cycle import plan
from phalanx.plan.explain.blocking_jobs import BlockingJobs, blocking_jobs
from phalanx.plan.explain.whatif import forecast
from phalanx.scenario.times import NOW

HOUR_S = 3600


def running(name: str, gpus: int = 1, node: str = "n1", **fields: Any) -> dict[str, Any]:
    fields = {"preemptible": False, **fields}
    return gang(name, task(f"{name}0", node=node, resources={"gpu": gpus}), **fields)


def blocking(*pending: dict[str, Any], job: str = "late", **fields: Any) -> BlockingJobs | None:
    """The jobs that block a gang on one node with 4 GPUs."""
    nodes = [{"name": "n1", "resources": {"gpu": 4}}]
    state = scenario(pending=pending, **{"nodes": nodes, **fields}).state()
    return blocking_jobs(state.at(NOW), job, forecast(plan(state, NOW), job))


def late(gpus: int = 4, **fields: Any) -> dict[str, Any]:
    """A gang that is starving."""
    fields = {"waiting_s": 700, **fields}
    return gang("late", task("t0", resources={"gpu": gpus}), **fields)


def test_a_job_without_a_time_limit_on_the_nodes_of_a_starving_gang_blocks_it() -> None:
    found = blocking(late(), running=[running("endless", 2)])
    assert found == BlockingJobs(("endless",), ("n1",))


def test_before_it_starves_no_nodes_are_kept_for_a_gang_that_could_be_blocked() -> None:
    assert blocking(late(waiting_s=0), running=[running("endless", 2)]) is None


def test_a_gang_with_a_reserved_start_is_not_blocked() -> None:
    assert blocking(late(), running=[running("ends", 2, time_limit_s=HOUR_S)]) is None


def test_jobs_with_a_time_limit_do_not_block_a_gang() -> None:
    ends = running("ends", 3, time_limit_s=HOUR_S)
    assert blocking(late(), running=[running("endless"), ends]) == BlockingJobs(
        ("endless",), ("n1",)
    )


def test_only_as_many_jobs_are_named_as_would_have_to_end() -> None:
    endless = [running("one", 1), running("two", 2)]
    assert blocking(late(3), running=endless) == BlockingJobs(("two",), ("n1",))
    assert blocking(late(4), running=endless) == BlockingJobs(("two", "one"), ("n1",))


def test_jobs_on_all_nodes_that_are_kept_for_a_gang_block_it() -> None:
    nodes = [{"name": name, "resources": {"gpu": 4}} for name in ("n2", "n1")]
    wide = gang("late", *(task(f"t{n}", resources={"gpu": 4}) for n in range(2)), waiting_s=700)
    endless = [running("one", 1), running("two", 2, "n2")]
    found = blocking(wide, nodes=nodes, running=endless)
    assert found == BlockingJobs(("two", "one"), ("n1", "n2"))


def test_jobs_on_other_nodes_do_not_block_a_gang() -> None:
    nodes = [
        {"name": "n1", "resources": {"gpu": 4}},
        {"name": "n2", "resources": {"gpu": 4}, "labels": {"zone": "b"}},
    ]
    selective = gang(
        "late",
        task("t0", resources={"gpu": 4}, node_selector={"zone": "b"}),
        waiting_s=700,
    )
    everywhere = [running("here", 4), running("there", 1, "n2")]
    found = blocking(selective, nodes=nodes, running=everywhere)
    assert found == BlockingJobs(("there",), ("n2",))


def test_the_gangs_of_a_group_are_blocked_together() -> None:
    group = [
        gang("late", task("t0", resources={"gpu": 2}), waiting_s=700, group=["mate"]),
        gang("mate", task("m0", resources={"gpu": 2}), waiting_s=700),
    ]
    found = blocking(*group, running=[running("endless", 1)])
    assert found == BlockingJobs(("endless",), ("n1",))
    assert blocking(*group, running=[running("endless", 1)], job="mate") == found
    young = [group[0], {**group[1], "waiting_s": 0}]
    assert blocking(*young, running=[running("endless", 1)]) is None


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        ({"limit": {"gpu": 3}}, QueueLimit("own", "gpu")),
        ({"quota": {"gpu": 3}, "non_preemptible_within_quota": True}, QueueQuota("own", "gpu")),
    ],
)
def test_jobs_without_a_time_limit_use_the_limit_or_the_quota_of_a_starving_gang(
    bound: dict[str, Any], expected: QueueLimit | QueueQuota
) -> None:
    queues = [{"name": "own", **bound}, {"name": "below", "parent": "own"}, {"name": "other"}]
    nodes = [{"name": "n1", "resources": {"gpu": 8}}]
    mine = late(2, queue="own", preemptible=False)
    fields: dict[str, Any] = {"queues": queues, "nodes": nodes}
    theirs = running("theirs", 2, queue="other")
    found = blocking(mine, running=[running("endless", 2, queue="below"), theirs], **fields)
    assert found == BlockingJobs(("endless",), bound=expected)
    ends = running("ends", 2, queue="below", time_limit_s=HOUR_S)
    assert blocking(mine, running=[ends, theirs], **fields) is None


def test_preemptible_jobs_do_not_use_the_quota_of_those_that_are_not() -> None:
    queues = [{"name": "own", "quota": {"gpu": 3}, "non_preemptible_within_quota": True}]
    nodes = [{"name": "n1", "resources": {"gpu": 8}}]
    used = [running("kept", 2, queue="own"), running("lent", 3, queue="own", preemptible=True)]
    found = blocking(
        late(2, queue="own", preemptible=False), running=used, queues=queues, nodes=nodes
    )
    assert found == BlockingJobs(("kept",), bound=QueueQuota("own", "gpu"))


def test_a_gang_larger_than_the_limit_is_not_blocked_by_other_jobs() -> None:
    queues = [{"name": "own", "limit": {"gpu": 1}}]
    found = blocking(late(2, queue="own"), running=[running("r", 1, queue="own")], queues=queues)
    assert found is None
