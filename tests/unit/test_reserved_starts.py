"""Reserved starts from plan to plan: what they free again, and which of them are kept."""

from typing import Any

from msgspec.structs import replace

from phalanx.core.model import Nomination
from phalanx.core.time_units import SECOND
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Evict, Plan
from phalanx.plan.model import PlannerPolicy
from phalanx.plan.state.planner_state import PlannerState
from phalanx.scenario.scenario import Scenario, read_scenario
from phalanx.scenario.times import NOW

#: How long a task may take to stop at its time limit.
STOP_S = 45


def gang(name: str, gpus: int, **fields: Any) -> dict[str, Any]:
    node = {"node": fields.pop("node")} if "node" in fields else {}
    task = {"name": f"{name}0", "resources": {"gpu": gpus}, **node}
    return {"gang": name, "tasks": [task], **fields}


def running(name: str, gpus: int, ends_s: int | None, node: str = "n1") -> dict[str, Any]:
    """A gang that has certainly ended after so many seconds."""
    limit = {} if ends_s is None else {"time_limit_s": ends_s - STOP_S, "started_s_ago": 0}
    return gang(name, gpus, node=node, preemptible=False, **limit)


def scenario(
    gpus: int,
    runs: list[dict[str, Any]],
    waits: list[dict[str, Any]],
    nodes: tuple[str, ...] = ("n1",),
    **policy: object,
) -> Scenario:
    read = read_scenario(
        {
            "name": "reserved-starts",
            "nodes": [
                {"name": name, "labels": {"name": name}, "resources": {"gpu": gpus}}
                for name in nodes
            ],
            "running": runs,
            "pending": waits,
        }
    )
    return replace(read, policy=replace(PlannerPolicy(), **policy))


def starts(made: Plan) -> dict[str, int | None]:
    """By job: the seconds until its reserved start."""
    return {s.job: None if s.at is None else (s.at - NOW) // SECOND for s in made.reserved_starts}


def placed(made: Plan) -> list[str]:
    return [placement.job for placement in made.reserved()]


def next_state(first: Scenario, made: Plan, second: Scenario) -> PlannerState:
    """The second cluster, after the plan for the first one."""
    state = second.state()
    state.accept(made)
    assert first.policy == second.policy
    return state


def test_a_reserved_gang_frees_its_nodes_for_the_next_one_at_its_end() -> None:
    heads = [gang(f"head{n}", 4, priority=9 - n, time_limit_s=600) for n in range(3)]
    made = plan(scenario(4, [running("r", 2, 1000)], heads).state(), NOW)
    assert starts(made) == {"head0": 1000, "head1": 1645, "head2": 2290}


def test_a_reserved_gang_without_a_limit_frees_nothing() -> None:
    heads = [gang("endless", 4, priority=9), gang("head", 4)]
    made = plan(scenario(4, [running("r", 2, 1000)], heads).state(), NOW)
    assert starts(made) == {"endless": 1000}


def test_a_start_is_found_between_two_reserved_starts() -> None:
    runs = [running("r1", 2, 1000), running("r2", 2, 5000)]
    heads = [gang("large", 4, priority=9, time_limit_s=600), gang("small", 2, time_limit_s=2000)]
    assert starts(plan(scenario(4, runs, heads).state(), NOW)) == {"large": 5000, "small": 1000}
    # It would still run when the large gang starts, and 2 GPUs are free after that one has ended.
    heads[1]["time_limit_s"] = 4000
    assert starts(plan(scenario(4, runs, heads).state(), NOW)) == {"large": 5000, "small": 5645}


def test_a_promised_start_is_kept_whatever_is_reserved_after_it() -> None:
    runs = [running("r", 4, 1000)]
    before = scenario(4, runs, [gang("promised", 4, time_limit_s=600)], heads=1)
    made = plan(before.state(), NOW)
    new = [gang(f"new{n}", 4, priority=9, time_limit_s=600) for n in range(20)]
    after = scenario(4, runs, [*new, gang("promised", 4, time_limit_s=600)], heads=1)
    again = plan(next_state(before, made, after), NOW)
    assert starts(again) == starts(made) == {"promised": 1000}
    assert again.broken_starts == ()


def test_new_reservations_are_made_around_promises() -> None:
    runs = [running("r", 4, 1000)]
    before = scenario(4, runs, [gang("promised", 4, time_limit_s=600)])
    made = plan(before.state(), NOW)
    new = gang("new", 4, priority=9, time_limit_s=600)
    after = scenario(4, runs, [new, gang("promised", 4, time_limit_s=600)])
    again = plan(next_state(before, made, after), NOW)
    assert starts(again) == {"promised": 1000, "new": 1645}


def test_a_gang_that_starts_before_the_next_plan_takes_no_slot() -> None:
    runs = [running("r1", 2, 46, "n1"), running("r2", 2, 1000, "n1")]
    heads = [gang("now", 2, priority=9, time_limit_s=10), gang("head", 4, time_limit_s=600)]
    few = scenario(4, runs, heads, heads=1, plan_every=60 * SECOND)
    assert starts(plan(few.state(), NOW)) == {"now": 46, "head": 1000}
    few = replace(few, policy=replace(few.policy, plan_every=30 * SECOND))
    assert starts(plan(few.state(), NOW)) == {"now": 46}


def test_a_start_that_a_more_important_gang_delays_is_broken() -> None:
    runs = [running("r", 2, 1000)]
    before = scenario(4, runs, [gang("head", 4, time_limit_s=600)])
    made = plan(before.state(), NOW)
    urgent = gang("urgent", 2, priority=9, time_limit_s=3000)
    after = scenario(4, runs, [urgent, gang("head", 4, time_limit_s=600)])
    again = plan(next_state(before, made, after), NOW)
    assert placed(again) == ["urgent"]
    assert starts(again) == {"head": 3045}
    assert again.broken_starts == ("head",)
    # A gang of less importance does not delay it.
    later = scenario(4, runs, [gang("head", 4, time_limit_s=600), {**urgent, "priority": -1}])
    kept = plan(next_state(before, made, later), NOW)
    assert (placed(kept), starts(kept), kept.broken_starts) == ([], {"head": 1000}, ())


def test_a_reserved_start_moves_to_other_nodes_rather_than_to_a_later_time() -> None:
    runs = [running("r1", 2, 1000, "n1"), running("r2", 2, 1000, "n2")]
    head = gang("head", 4, time_limit_s=600)
    before = scenario(4, runs, [head], ("n1", "n2"))
    made = plan(before.state(), NOW)
    [start] = made.reserved_starts
    assert starts(made) == {"head": 1000}
    # A more important gang takes the reserved node for longer than that.
    urgent = gang("urgent", 2, priority=9, time_limit_s=3000)
    urgent["tasks"][0]["node_selector"] = {"name": start.nodes[0]}
    other = gang("other", 4, priority=5, time_limit_s=600)
    after = scenario(4, runs, [urgent, other, head], ("n1", "n2"))
    again = plan(next_state(before, made, after), NOW)
    assert placed(again) == ["urgent"]
    assert starts(again) == {"head": 1000, "other": 1645}
    assert again.reserved_starts[0].nodes != start.nodes
    assert again.broken_starts == ()


def test_a_reserved_start_is_kept_while_the_victims_of_a_gang_that_ends_before_it_stop() -> None:
    low = running("low", 2, ends_s=3000) | {"preemptible": True}
    late = gang("late", 5, time_limit_s=3600, waiting_s=12_000)
    waits = [late, gang("vip", 2, priority=9, time_limit_s=600), gang("long", 1)]
    state = scenario(5, [low, running("fixed", 2, ends_s=3000)], waits, max_wait=3.0).state()
    made = plan(state, NOW)
    [evict] = [decision for decision in made.decisions if isinstance(decision, Evict)]
    assert starts(made) == {"late": 3000}
    state.accept(made)
    victim = state.running.by_job["low"].gang
    stopping = tuple(replace(task, stopping=True) for task in victim.tasks)
    state.put_running(replace(victim, tasks=stopping, evicted=True))
    [places] = evict.placements
    nomination = Nomination(places.assignments, NOW, NOW + 60 * SECOND, ("low.0",))
    state.put_pending(replace(state.pending.gangs["vip"], nomination=nomination))
    made = plan(state, NOW + SECOND)
    assert starts(made) == {"late": 3000}
    assert not placed(made)


def test_a_start_is_reserved_on_nodes_that_are_kept_for_another_gang_only_until_it_needs_them() -> (
    None
):
    """For `late`, which waits for work without a known end, the first node is kept."""
    endless = [running("e1", 1, None), running("e2", 1, None, "n2")]
    late = gang("late", 4, priority=9, waiting_s=1_000_000, time_limit_s=600)

    def start_of_next(limit_s: int | None) -> int | None:
        runs = [running("r1", 1, 1000), running("r2", 1, 3000), running("r3", 2, 9000, "n2")]
        limit = {} if limit_s is None else {"time_limit_s": limit_s}
        waits = [late, gang("next", 2, **limit)]
        made = plan(scenario(4, [*endless, *runs], waits, ("n1", "n2")).state(), NOW)
        assert made.reserved_starts[-1].nodes == ("n1",)
        return starts(made)["next"]

    assert start_of_next(600) == 1000
    assert start_of_next(2000) == 9000
    assert start_of_next(None) == 9000


def test_a_reserved_start_is_kept_although_a_shorter_gang_with_the_same_request_comes_first() -> (
    None
):
    runs, long = [running("r", 2, 1000)], gang("long", 4, time_limit_s=600)
    first = scenario(4, runs, [long])
    made = plan(first.state(), NOW)
    second = scenario(4, runs, [long, gang("short", 4, time_limit_s=60)])
    again = plan(next_state(first, made, second), NOW)
    assert starts(again) == {"long": 1000, "short": 1645}
    assert not again.broken_starts
