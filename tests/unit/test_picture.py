"""The planner's picture: what is durable, no more and no less, at the cost of what changed."""

import pytest
from tests.driver import spec

from phalanx.core.cluster import Cluster
from phalanx.core.events import (
    CancelRequested,
    Event,
    Inventoried,
    QueueRemoved,
    QueueSet,
    Submitted,
    WorkerRegistered,
    WorkerRemoved,
)
from phalanx.core.model import Protocol, Queue
from phalanx.core.spec import SECOND
from phalanx.engine.picture import Picture
from phalanx.engine.turn import Turn
from phalanx.plan.snapshot import Snapshot, snapshot_of

NOW = 1_700_000_000 * SECOND
EVENTS: list[Event] = [
    WorkerRegistered("a", "1", Protocol.SYNC, "a"),
    Inventoried("a", "1", ()),
    QueueSet(Queue("team")),
    Submitted("j-1", spec(2)),
    Submitted("j-2", spec(queue="team")),
    WorkerRegistered("b", "1", Protocol.PLAIN, "b"),
    CancelRequested("j-2"),
    WorkerRemoved("a"),
    QueueRemoved("team"),
    CancelRequested("j-1"),
]


def seen(picture: Picture) -> Snapshot:
    return picture.snapshot(NOW, SECOND)


def take_turn(cluster: Cluster, picture: Picture, event: Event) -> None:
    turn = Turn(cluster, NOW)
    turn.apply(event)
    picture.note(turn)


@pytest.mark.parametrize("turns_between_plans", [1, 2, len(EVENTS)])
def test_the_picture_is_the_cluster_as_it_was_noted(turns_between_plans: int) -> None:
    cluster = Cluster()
    picture = Picture(cluster)
    for n, event in enumerate(EVENTS, 1):
        take_turn(cluster, picture, event)
        if n % turns_between_plans == 0:
            assert seen(picture) == snapshot_of(cluster, NOW, SECOND)


def test_a_turn_that_is_not_durable_yet_is_not_seen() -> None:
    cluster = Cluster()
    picture = Picture(cluster)
    before = snapshot_of(cluster, NOW, SECOND)
    Turn(cluster, NOW).apply(Submitted("j-1", spec()))
    assert seen(picture) == before


def test_a_plan_that_is_being_made_is_not_disturbed() -> None:
    cluster = Cluster()
    picture = Picture(cluster)
    given = seen(picture)
    take_turn(cluster, picture, Submitted("j-1", spec()))
    assert "j-1" not in given.gangs
