"""Overdue gangs that wait for work without a known end, and those that are overdue besides them."""

from typing import Any

from tests.unit.test_scenario import gang, scenario, task

from phalanx.core.reasons import HeldBack
from phalanx.plan.cycle import plan
from phalanx.plan.lineup import Lineup
from phalanx.plan.planning_pass import PlanningPass
from phalanx.plan.state.planner_state import PlannerState
from phalanx.scenario.times import NOW

#: 2 of 4 GPUs are in use without a known end.
ENDLESS = gang("endless", task("e0", node="n1"), task("e1", node="n1"), preemptible=False)
NODES = [{"name": "n1", "resources": {"gpu": 4}}]


def overdue(name: str, tasks: int, waiting_s: int, **fields: Any) -> dict[str, Any]:
    names = [f"{name}{n}" for n in range(tasks)]
    return gang(name, *names, waiting_s=waiting_s, **{"time_limit_s": 3600, **fields})


def lineup(*pending: dict[str, Any], **fields: Any) -> Lineup:
    given = {"nodes": NODES, "running": [ENDLESS], "policy": {"max_wait": 3}, **fields}
    work = PlanningPass(scenario(pending=[*pending], **given).state().at(NOW))
    work.lineup.settle_shares()
    work.lineup.fill()
    return work.lineup


def started_by_second_plan(*pending: dict[str, Any]) -> list[str]:
    """The jobs that start in a plan which knows the nodes that the one before has kept."""
    given: dict[str, Any] = {"nodes": NODES, "running": [ENDLESS], "policy": {"max_wait": 3}}
    state = scenario(pending=[*pending], **given).state()
    state.accept(plan(state, NOW))
    return [placement.job for placement in plan(state, NOW).reserved()]


LATE = overdue("late", 4, 14_000)


def test_the_oldest_overdue_gang_that_is_not_stuck_is_overdue_besides_a_stuck_one() -> None:
    gangs = [overdue("wide", 3, 13_000), overdue("able", 2, 12_000), overdue("next", 1, 11_000)]
    found = lineup(LATE, *gangs)
    assert found.overdue == {"late", "able"}
    assert (found.stuck, found.ahead) == ({"late"}, {"able"})


def test_where_all_overdue_gangs_are_stuck_the_oldest_one_is_overdue() -> None:
    found = lineup(LATE, overdue("wide", 3, 13_000))
    assert (found.overdue, found.stuck) == ({"late"}, {"late"})
    assert not found.ahead


def test_besides_a_gang_that_is_not_stuck_no_other_one_is_overdue() -> None:
    ending = {**ENDLESS, "time_limit_s": 7200, "started_s_ago": 60}
    assert lineup(LATE, overdue("able", 2, 12_000), running=[ending]).overdue == {"late"}


def test_a_gang_that_is_not_overdue_has_no_turn_besides_a_stuck_one() -> None:
    assert lineup(LATE, overdue("new", 2, 10_900)).overdue == {"late"}


def group(tasks: int, waiting_s: int) -> list[dict[str, Any]]:
    return [
        overdue("one", tasks, waiting_s, group=["two"]),
        overdue("two", tasks, waiting_s, group=["one"]),
    ]


def test_a_group_is_overdue_besides_a_stuck_gang() -> None:
    found = lineup(LATE, *group(1, 12_000))
    assert found.overdue == {"late", "one", "two"}
    assert (found.stuck, found.ahead) == ({"late"}, {"one", "two"})


def test_a_gang_is_overdue_besides_a_stuck_group() -> None:
    found = lineup(*group(2, 13_000), overdue("able", 2, 12_000))
    assert found.overdue == {"one", "two", "able"}
    assert (found.stuck, found.ahead) == ({"one", "two"}, {"able"})


def test_a_gang_below_its_min_resources_hides_no_other_overdue_gang() -> None:
    gated = overdue("gated", 1, 14_000, min_resources={"gpu": 3})
    assert lineup(gated, overdue("able", 2, 12_000)).overdue == {"gated", "able"}


def test_a_gang_without_a_time_limit_has_no_turn_on_the_nodes_of_a_stuck_one() -> None:
    late = overdue("late", 4, 5_000_000)
    endless = overdue("later", 2, 4_000_000, time_limit_s=None)
    short = overdue("short", 1, 12_000)
    assert started_by_second_plan(late, endless) == []
    assert started_by_second_plan(late, endless, short) == ["short"]


def test_a_reserved_start_is_not_kept_once_the_quota_that_it_needs_is_kept_for_another_gang() -> (
    None
):
    def queue_with_quota(waiting_s: int, *running: dict[str, Any]) -> PlannerState:
        late = overdue("late", 4, waiting_s, preemptible=False)
        second = gang("second", "s0", "s1", preemptible=False)
        queue = {"name": "default", "quota": {"gpu": 4}, "non_preemptible_within_quota": True}
        given: dict[str, Any] = {"nodes": NODES, "queues": [queue, {"name": "b"}]}
        given["policy"] = {"max_wait": 3}
        return scenario(pending=[late, second], running=[*running], **given).state()

    ending = {"time_limit_s": 7200, "started_s_ago": 60, "preemptible": False}
    own = gang("own", task("o0", node="n1"), **ending)
    of_b = gang("of-b", *(task(f"b{n}", node="n1") for n in range(3)), queue="b", **ending)
    first = plan(queue_with_quota(10_900, own, of_b), NOW)
    assert [start.job for start in first.reserved_starts] == ["second"]
    # Now there is room for it, but the quota is kept for the overdue gang.
    state = queue_with_quota(11_000, own)
    state.accept(first)
    made = plan(state, NOW)
    assert isinstance(made.reasons["second"], HeldBack)
    assert not made.reserved_starts


def test_an_overdue_gang_with_a_reserved_start_is_not_delayed_by_one_of_another_queue() -> None:
    """Else overdue gangs within the share of their queue could delay a larger one for ever."""

    def two_queues(*later: dict[str, Any]) -> PlannerState:
        running = gang("c", task("c0", node="n1"), queue="c")
        running |= {"time_limit_s": 3600, "started_s_ago": 0, "preemptible": False}
        given: dict[str, Any] = {"nodes": NODES, "policy": {"max_wait": 3}}
        given["queues"] = [{"name": name} for name in ("default", "b", "c")]
        return scenario(pending=[*later, LATE], running=[running], **given).state()

    first = plan(two_queues(), NOW)
    assert [start.job for start in first.reserved_starts] == ["late"]
    next_of_b = overdue("next", 1, 13_000, queue="b", time_limit_s=3700)
    state = two_queues(next_of_b)
    assert [placement.job for placement in plan(state, NOW).reserved()] == ["next"]
    state.accept(first)
    made = plan(state, NOW)
    assert isinstance(made.reasons["next"], HeldBack)
    assert made.reserved_starts == first.reserved_starts
