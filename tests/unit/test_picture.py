"""The planner's picture: what is durable, no more and no less, at the cost of what changed."""

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


def test_the_picture_is_the_cluster_after_every_turn_that_was_noted() -> None:
    cluster = Cluster()
    picture = Picture(cluster)
    for event in EVENTS:
        turn = Turn(cluster, NOW)
        turn.apply(event)
        picture.note(turn)
        assert seen(picture) == snapshot_of(cluster, NOW, SECOND)


def test_several_turns_between_two_plans_are_seen_together() -> None:
    cluster = Cluster()
    picture = Picture(cluster)
    for event in EVENTS:
        turn = Turn(cluster, NOW)
        turn.apply(event)
        picture.note(turn)
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
    turn = Turn(cluster, NOW)
    turn.apply(Submitted("j-1", spec()))
    picture.note(turn)
    assert "j-1" not in given.gangs
