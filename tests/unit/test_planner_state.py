"""The planner state: everything that is durable and nothing else, updated by deltas."""

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
from phalanx.core.time_units import SECOND
from phalanx.engine.turn import Turn
from phalanx.plan.state import planner_state
from phalanx.plan.state.delta import PlannerDelta
from phalanx.plan.state.planner_state import PlannerState

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


def content(state: PlannerState) -> object:
    """Everything that a plan could depend on."""
    table = state.table
    nodes = {
        name: {row: (table.capacity[n, at], table.free[n, at]) for row, n in table.rows.items()}
        for name, at in table.index.items()
    }
    running = {job: known.gang for job, known in state.running.by_job.items()}
    used = {
        queue: {resource: amount for resource, amount in used.items() if amount}
        for queue, used in state.running.used.items()
        if any(used.values())
    }
    return state.pending.gangs, running, used, nodes, state.queues


def take_turn(cluster: Cluster, delta: PlannerDelta, event: Event) -> None:
    turn = Turn(cluster, NOW)
    turn.apply(event)
    for changes in turn.changes:
        delta.note(cluster, changes)


@pytest.mark.parametrize("turns_between_plans", [1, 2, len(EVENTS)])
def test_an_updated_state_equals_that_of_the_whole_cluster(
    turns_between_plans: int,
) -> None:
    cluster = Cluster()
    state, delta = PlannerState.of(cluster), PlannerDelta()
    for n, event in enumerate(EVENTS, 1):
        take_turn(cluster, delta, event)
        if n % turns_between_plans == 0:
            state.update(delta)
            delta = PlannerDelta()
            fresh = PlannerState.of(cluster)
            # Rows that were once asked for stay, with nothing in them.
            for resource in state.table.rows:
                fresh.table.row(resource)
            assert content(state) == content(fresh)


def test_changes_that_are_not_in_a_delta_are_not_seen() -> None:
    cluster = Cluster()
    state = PlannerState.of(cluster)
    Turn(cluster, NOW).apply(Submitted("j-1", spec()))
    state.update(PlannerDelta())
    assert not state.pending.gangs


def test_a_delta_changes_the_state_only_when_it_is_applied() -> None:
    cluster = Cluster()
    state, delta = PlannerState.of(cluster), PlannerDelta()
    take_turn(cluster, delta, Submitted("j-1", spec()))
    assert "j-1" not in state.pending.gangs


def test_a_state_is_made_anew_when_it_keeps_answers_about_many_ended_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planner_state, "KEPT_ANSWERS", 20)
    cluster = Cluster()
    state = PlannerState.of(cluster)
    for n in range(100):
        delta = PlannerDelta()
        take_turn(cluster, delta, Submitted(f"j-{n}", spec(role={"resources": {"cpu": n + 1}})))
        take_turn(cluster, delta, CancelRequested(f"j-{n - 1}")) if n else None
        state.update(delta)
    assert state.table.computed <= 40
    assert content(state) == content(PlannerState.of(cluster))


def test_resources_that_no_node_has_do_not_fill_the_table() -> None:
    cluster = Cluster()
    for n in range(300):
        role: dict[str, object] = {"resources": {f"example.com/r{n}": 1}}
        Turn(cluster, NOW).apply(Submitted(f"j-{n}", spec(role=role)))
    state, delta = PlannerState.of(cluster), PlannerDelta()
    assert len(state.table.rows) <= planner_state.ROW_LIMIT
    last = state.pending.gangs["j-299"].ineligible
    assert last is not None
    assert "example.com/r299" in str(last)
    has_it = WorkerRegistered("a", "1", Protocol.PLAIN, "a", resources={"example.com/r299": 1})
    take_turn(cluster, delta, has_it)
    state.update(delta)
    assert state.pending.gangs["j-299"].ineligible is None
