"""The transition table: every move in it is possible, and no other."""

from itertools import product

import pytest
from msgspec.structs import replace
from tests.builders import a_job, a_role, a_spec, a_task

from phalanx.core.changes import Changes
from phalanx.core.cluster import Cluster
from phalanx.core.errors import IllegalTransition
from phalanx.core.gang import Gang
from phalanx.core.model import Place, Task
from phalanx.core.states import PLACED, TABLE, TARGETS, TERMINAL, UNPLACED, Move, State

PAIRS = list(product(State, (False, True), Move))


def transaction(state: State, *, released: bool) -> tuple[Changes, Gang, Task]:
    task = a_task(state=state, epoch=3, place=Place("w-1", 4, released_at=5) if released else None)
    spec = a_spec(roles=(a_role(replicas=2, min=2),), min_available=2)
    gang = Gang(a_job(spec=spec, epoch=3), [task, a_task(index=1)])
    return Changes(Cluster(), 10), gang, task


@pytest.mark.parametrize(("state", "released", "move"), PAIRS)
def test_a_task_moves_where_the_table_leads_and_nowhere_else(
    state: State, released: bool, move: Move
) -> None:
    allowed = TARGETS.get((state, released, move), frozenset())
    for target in State:
        tx, gang, task = transaction(state, released=released)
        counts, tasks = gang.counts, list(gang.tasks)
        if target in allowed:
            assert tx.move(gang, task, move, target) == replace(task, state=target)
            assert tx.tasks == {(task.job, 0): gang.tasks[0]}
            assert gang.count(target) == sum(t.state is target for t in gang.tasks)
        else:
            with pytest.raises(IllegalTransition, match=r"j-1\.0 is .* in attempt 3") as refusal:
                tx.move(gang, task, move, target)
            assert str(move) in str(refusal.value)
            assert (gang.counts, gang.tasks, tx.tasks) == (counts, tasks, {})


#: The table of the design, event by event. `+` and `-` stand for after and before the release.
DESIGN = {
    "blocked Placed": "reserved",
    "blocked DependenciesMet": "pending",
    "blocked MembersJoined": "pending",
    "blocked StopSettled": "failed cancelled",
    "pending MembersJoined": "blocked",
    "pending Placed": "reserved",
    "pending Claimed": "running",
    "pending StopSettled": "failed cancelled",
    "reserved- ReservationExpired": "blocked pending",
    "reserved- WorkerLost": "blocked pending",
    "reserved- SpawnFailed": "blocked pending",
    "reserved- StopBegan": "blocked pending",
    "reserved+ Started": "running",
    "reserved+ Exited(0)": "done",
    "reserved+ Exited(≠0)": "preempted blocked pending",
    "reserved+ StartTimedOut": "preempted blocked pending",
    "reserved+ SpawnFailed": "preempted blocked pending",
    "reserved+ WorkerLost": "preempted blocked pending",
    "reserved+ Vanished": "preempted blocked pending",
    "reserved+ Stopped": "preempted blocked pending",
    "reserved+ StopBegan": "preempting blocked pending",
    "reserved+ Shrunk": "preempting blocked pending",
    "running Exited(0)": "done",
    "running Exited(≠0)": "preempted blocked pending",
    "running WorkerLost": "preempted blocked pending",
    "running Vanished": "preempted blocked pending",
    "running Stalled": "preempted blocked pending",
    "running Stopped": "preempted blocked pending",
    "running StopBegan": "preempting",
    "running Shrunk": "preempting",
    "preempting Stopped": "preempted",
    "preempting Exited(0)": "preempted",
    "preempting Exited(≠0)": "preempted",
    "preempting SpawnFailed": "preempted",
    "preempting WorkerLost": "preempted",
    "preempting Vanished": "preempted",
    "preempting StopTimedOut": "preempted",
    "preempted ShrinkSettled": "blocked pending done",
    "preempted StopSettled": "blocked pending done failed cancelled",
    "done GangRestarted": "blocked pending",
}


def test_the_table_is_the_one_of_the_design() -> None:
    release = {None: "", False: "-", True: "+"}
    table = {
        f"{rule.source}{release[rule.released]} {rule.move}": {str(t) for t in rule.targets}
        for rule in TABLE
    }
    assert table == {key: set(targets.split()) for key, targets in DESIGN.items()}
    assert len(TABLE) == len(table)


def test_done_failed_and_cancelled_are_terminal() -> None:
    assert {State.DONE, State.FAILED, State.CANCELLED} == TERMINAL
    moves = {move for source, _, move in TARGETS if source in TERMINAL}
    assert moves == {Move.GANG_RESTARTED}


def test_every_state_is_unplaced_placed_stopped_or_terminal() -> None:
    assert set(State) == UNPLACED | PLACED | {State.PREEMPTED} | TERMINAL
    assert not UNPLACED & PLACED


def test_every_state_is_reachable_from_an_unplaced_one() -> None:
    reached = set(UNPLACED)
    while True:
        more = {t for rule in TABLE if rule.source in reached for t in rule.targets} - reached
        if not more:
            break
        reached |= more
    assert reached == set(State)
