"""The planner's picture: what is durable, no more and no less, at the cost of what changed."""

import pytest
from tests.driver import spec

from phalanx.core.cluster import Cluster
from phalanx.core.events import (
    CancelRequested,
    Event,
    Inventoried,
    Placed,
    Placement,
    QueueRemoved,
    QueueSet,
    Submitted,
    WorkerRegistered,
    WorkerRemoved,
)
from phalanx.core.model import Assignment, Protocol, Queue
from phalanx.core.spec.job import SECOND
from phalanx.engine.planner_delta import PlannerDelta
from phalanx.engine.turn import Turn
from phalanx.plan.state.planner_state import ClusterState
from phalanx.plan.state.snapshot import Snapshot

NOW = 1_700_000_000 * SECOND
EVENTS: list[Event] = [
    WorkerRegistered("a", "1", Protocol.SYNC, "a", resources={"gpu": 2000}),
    Inventoried("a", "1", ()),
    QueueSet(Queue("team")),
    Submitted("j-1", spec(2, role={"resources": {"gpu": 1}})),
    Submitted("j-2", spec(queue="team")),
    Placed((Placement("j-1", 0, (Assignment(0, "a"), Assignment(1, "a"))),)),
    WorkerRegistered("b", "1", Protocol.PLAIN, "b"),
    CancelRequested("j-2"),
    WorkerRemoved("a"),
    QueueRemoved("team"),
    CancelRequested("j-1"),
]


def told(snapshot: Snapshot) -> object:
    """All that a plan could depend on."""
    table = snapshot.table
    nodes = {
        name: {row: (table.capacity[n, at], table.free[n, at]) for row, n in table.rows.items()}
        for name, at in table.index.items()
    }
    tenants = {job: known.tenant for job, known in snapshot.tenants.by_job.items()}
    used = {
        queue: {resource: amount for resource, amount in used.items() if amount}
        for queue, used in snapshot.tenants.used.items()
        if any(used.values())
    }
    return snapshot.waiting.claims, tenants, used, nodes, snapshot.queues


def take_turn(cluster: Cluster, news: PlannerDelta, event: Event) -> None:
    turn = Turn(cluster, NOW)
    turn.apply(event)
    news.note(turn)


@pytest.mark.parametrize("turns_between_plans", [1, 2, len(EVENTS)])
def test_the_picture_is_the_cluster_as_it_was_noted(turns_between_plans: int) -> None:
    cluster = Cluster()
    picture, news = ClusterState(cluster), PlannerDelta()
    for n, event in enumerate(EVENTS, 1):
        take_turn(cluster, news, event)
        if n % turns_between_plans == 0:
            picture.update(news.gangs, news.nodes, news.queues)
            news = PlannerDelta()
            fresh = ClusterState(cluster)
            # Rows that were once asked for stay, with nothing in them.
            for resource in picture.snapshot.table.rows:
                fresh.snapshot.table.row(resource)
            assert told(picture.snapshot) == told(fresh.snapshot)


def test_what_was_not_noted_is_not_seen() -> None:
    cluster = Cluster()
    picture = ClusterState(cluster)
    Turn(cluster, NOW).apply(Submitted("j-1", spec()))
    picture.update({}, {}, None)
    assert not picture.snapshot.waiting.claims


def test_a_plan_that_is_being_made_is_not_disturbed() -> None:
    cluster = Cluster()
    picture, news = ClusterState(cluster), PlannerDelta()
    take_turn(cluster, news, Submitted("j-1", spec()))
    assert "j-1" not in picture.snapshot.waiting.claims
