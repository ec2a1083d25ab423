"""Predicates, preferences and rules between tasks, as the planner applies them."""

from collections import Counter
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from phalanx.core.model import Queue
from phalanx.core.reasons import NotEnough
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Evict, Reserve
from phalanx.plan.model import (
    NodeFacts,
    NodeTaint,
    PendingGang,
    RoleRequest,
    RunningGang,
    RunningTask,
    TaskRequest,
    selecting,
)
from phalanx.plan.placement.trial import PlacementTrial
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.nodes import NodeSpec, NodeTable
from phalanx.plan.state.placement_rules import Restriction, strictest
from phalanx.plan.state.planner_state import PlannerState

CPU = (("cpu", 1000),)


class OnePerZone:
    """Placed tasks with one rule: tasks of the same color are in different zones."""

    def __init__(self, places: Counter[tuple[Hashable, int]] | None = None) -> None:
        self.places = Counter(places)

    def fork(self) -> "OnePerZone":
        return OnePerZone(self.places)

    def place(self, traits: Hashable, node: int, count: int) -> None:
        self.places[traits, node] += count
        assert self.places[traits, node] >= 0

    def restriction(self, traits: Hashable, table: NodeTable) -> Restriction | None:
        codes, _ = table.domains("zone")
        used = {codes[node] for (color, node), n in self.places.items() if n and color == traits}
        nodes = np.isin(codes, list(used), invert=True)
        return Restriction(nodes, one_by_one=True, rules=("one task per zone",))


class Untainted:
    """Prefers nodes without taints."""

    def penalty(self, node: NodeFacts) -> float:
        return min(1.0, len(node.taints) / 4)


def table_of(zones: str, cpus: int = 4, **fields: Any) -> NodeTable:
    """One node for each letter, which is its zone: n0, n1 …"""
    table = NodeTable()
    for n, zone in enumerate(zones):
        table.put(f"n{n}", NodeSpec({"cpu": cpus * 1000}, {}, {"zone": zone}, **fields))
    return table


def gang_of(tasks: int, request: TaskRequest, job: str = "j-1", **fields: Any) -> PendingGang:
    role = RoleRequest("worker", request, tuple(range(tasks)), tasks)
    return PendingGang(
        *(job, f"default/{job}", 0, "q", 0, 0), size=tasks, roles=(role,), need=tasks, **fields
    )


def nodes_of(trial: PlacementTrial) -> list[str]:
    return sorted(place.worker for place in trial.assignments())


def test_a_mask_follows_the_labels_of_a_node() -> None:
    table = table_of("ab")
    request = TaskRequest(CPU, selecting({"zone": "a"}))
    before = table.mask(request)
    assert before[:2].tolist() == [True, False]
    table.put("n1", NodeSpec({"cpu": 4000}, {}, {"zone": "a"}))
    assert table.mask(request)[:2].tolist() == [True, True]
    assert before[:2].tolist() == [True, False], "a plan may hold the array"
    table.remove("n0")
    assert table.mask(request)[:2].tolist() == [False, True]


def test_a_preferred_node_is_used_before_a_fuller_one() -> None:
    """Best fit alone would take n0, which is nearly full."""
    table = NodeTable()
    table.put("n0", NodeSpec({"cpu": 4000}, {"cpu": 3000}, {}, taints=(NodeTaint("a", "", "x"),)))
    table.put("n1", NodeSpec({"cpu": 4000}, {}, {}))
    assert nodes_of(placed(table, TaskRequest(CPU))) == ["n0"]
    preference = Untainted()
    assert nodes_of(placed(table, TaskRequest(CPU, preference=preference))) == ["n1"]
    table.put("n1", NodeSpec({"cpu": 4000}, {}, {}, taints=(NodeTaint("a", "", "x"),) * 2))
    assert nodes_of(placed(table, TaskRequest(CPU, preference=preference))) == ["n0"]


def placed(table: NodeTable, request: TaskRequest) -> PlacementTrial:
    trial = PlacementTrial(gang_of(1, request), (FreeCapacity(table).fork(),))
    assert trial.place_minimum()
    return trial


def test_tasks_that_exclude_each_other_are_placed_one_by_one() -> None:
    free = FreeCapacity(table_of("aab"))
    free.placed = OnePerZone()
    fork = free.fork()
    request = TaskRequest(CPU, traits="red")
    trial = PlacementTrial(gang_of(2, request), (fork,))
    assert trial.place_minimum()
    zones = {fork.table.facts(fork.table.index[node]).labels["zone"] for node in nodes_of(trial)}
    assert zones == {"a", "b"}
    assert not free.placed.places, "a fork has tasks of its own"


def test_a_trial_that_fails_or_is_undone_leaves_no_task_behind() -> None:
    free = FreeCapacity(table_of("aab"))
    free.placed = OnePerZone()
    fork = free.fork()
    before = fork.free.copy()
    assert not PlacementTrial(gang_of(3, TaskRequest(CPU, traits="red")), (fork,)).place_minimum()
    trial = PlacementTrial(gang_of(2, TaskRequest(CPU, traits="red")), (fork,))
    assert trial.place_minimum()
    trial.undo()
    assert isinstance(fork.placed, OnePerZone)
    assert not +fork.placed.places
    assert (fork.free == before).all()


def state_of(zones: str, *running: RunningGang) -> PlannerState:
    state = PlannerState()
    state.set_queues({"q": Queue("q")})
    placed = OnePerZone()
    used = Counter(task.node for gang in running for task in gang.tasks)
    for n, zone in enumerate(zones):
        usage = {"cpu": 1000 * used[f"n{n}"]}
        state.put_node(f"n{n}", NodeSpec({"cpu": 4000}, usage, {"zone": zone}))
    for gang in running:
        state.put_running(gang)
        for task in gang.tasks:
            placed.place(task.traits, state.table.index[task.node], 1)
    state.set_placed(placed)
    return state


def running_on(
    *nodes: str, job: str = "j-0", traits: str = "red", priority: int = 0
) -> RunningGang:
    tasks = tuple(
        RunningTask(n, "worker", node, CPU, traits=traits) for n, node in enumerate(nodes)
    )
    return RunningGang(job, job, 0, "q", 0, 0, 0, tasks, min_available=len(tasks))


def test_a_gang_starts_beside_the_tasks_of_others_only_where_the_rules_allow() -> None:
    state = state_of("abb", running_on("n0"))
    state.put_pending(gang_of(1, TaskRequest(CPU, traits="red")))
    (decision,) = plan(state, 0).decisions
    assert isinstance(decision, Reserve)
    assert decision.placements[0].assignments[0].worker in {"n1", "n2"}


def test_gangs_of_one_pass_see_each_other() -> None:
    state = state_of("aab")
    for n in range(3):
        state.put_pending(gang_of(1, TaskRequest(CPU, traits="red"), f"j-{n + 1}"))
    made = plan(state, 0)
    zones = {place.assignments[0].worker == "n2" for place in made.reserved()}
    assert len(list(made.reserved())) == 2
    assert zones == {True, False}
    (reason,) = dict(made.reasons).values()
    assert reason == NotEnough(1, 0, "nodes allowed by one task per zone")


def test_a_victim_is_found_whose_task_only_a_rule_minds() -> None:
    """Enough is free everywhere: the victim frees no resource that is short."""
    state = state_of("ab", running_on("n0", job="j-0"), running_on("n1", job="j-9", traits="blue"))
    gang = replace(gang_of(2, TaskRequest(CPU, traits="red")), priority=5)
    state.put_pending(gang)
    (decision,) = plan(state, 10**12).decisions
    assert isinstance(decision, Evict)
    assert [victim.job for victim in decision.victims] == ["j-0"]


@given(
    st.lists(
        st.none()
        | st.builds(
            Restriction,
            st.none() | st.lists(st.booleans(), min_size=3, max_size=3).map(np.array),
            st.none() | st.integers(1, 3),
            st.booleans(),
            st.lists(st.sampled_from("xyz")).map(tuple),
        ),
        max_size=4,
    )
)
def test_the_strictest_restriction_allows_what_all_allow(some: list[Restriction | None]) -> None:
    strict = strictest(some)
    real = [each for each in some if each is not None]
    assert (strict is None) == (not real)
    if strict is None:
        return
    for node in range(3):
        allowed = all(each.nodes is None or each.nodes[node] for each in real)
        assert (strict.nodes is None or bool(strict.nodes[node])) == allowed
    limits = [each.per_node for each in real if each.per_node is not None]
    assert strict.per_node == min(limits, default=None)
    assert strict.one_by_one == any(each.one_by_one for each in real)
    assert set(strict.rules) == {rule for each in real for rule in each.rules}


@pytest.mark.parametrize("is_open", [True, False])
def test_what_others_use_is_not_shared_by_the_queues(*, is_open: bool) -> None:
    table = table_of("ab", unshared={"cpu": 1500}, closed="" if is_open else "cordoned")
    assert table.shared_capacity()[table.rows["cpu"]] == (5000 if is_open else 0)
