"""Reading scenario files, settling a plan into an outcome, and comparing it with expectations."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from phalanx.core.errors import Invalid
from phalanx.core.model import PreemptWithin, Queue, ReclaimFrom
from phalanx.plan.cycle import plan
from phalanx.plan.model import PendingGang, RunningGang
from phalanx.scenario.expectation import differences, read_expectation
from phalanx.scenario.file_format import GangEntry, ScenarioFile, TaskEntry
from phalanx.scenario.outcome import ScenarioOutcome, settle
from phalanx.scenario.scenario import Scenario, read_scenario
from phalanx.scenario.times import NOW

ONE = {"gpu": 1}


def task(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "resources": ONE, **fields}


def gang(name: str, *tasks: str | dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"gang": name, "tasks": [task(t) if isinstance(t, str) else t for t in tasks], **fields}


def scenario(**fields: Any) -> Scenario:
    nodes = [{"name": "n1", "resources": {"gpu": 2}}, {"name": "n2", "resources": {"gpu": 1}}]
    return read_scenario({"name": "a-test", "nodes": nodes, **fields})


def outcome_of(read: Scenario) -> ScenarioOutcome:
    return settle(read, plan(read.state(), NOW))


def crowded(**expect: Any) -> Scenario:
    """One gang evicts another, a third is pending, a fourth times out."""
    return scenario(
        running=[gang("low", task("l0", node="n1"), task("l1", node="n1"))],
        pending=[
            gang("high", task("h0", role="lead"), task("h1"), priority=5),
            gang("late", "t0", schedule_timeout_s=5, waiting_s=6),
            gang("wide", task("w0", resources={"gpu": 2})),
        ],
        expect=expect or None,
    )


def differences_of(**expect: Any) -> list[str]:
    read = crowded(**expect)
    return list(differences(read, read_expectation(read), outcome_of(read)))


def only_pending(read: Scenario) -> PendingGang:
    [pending] = read.pending
    return pending


def only_running(read: Scenario) -> RunningGang:
    [running] = read.running
    return running


def test_an_outcome_names_gangs_and_tasks() -> None:
    outcome = outcome_of(crowded())
    assert outcome.placed == {"high": 2}
    assert outcome.evicted == ("l0", "l1")
    assert outcome.pending == ("wide",)
    assert outcome.timed_out == ("late",)
    assert set(outcome.placement) == {"h0", "h1"}


@pytest.mark.parametrize(
    ("expect", "difference"),
    [
        ({"placed": {"high": 2}}, None),
        ({"placed": {"high": 1}}, "placed: expected 1 of high, got 2 of high"),
        ({"placed": {}, "placed_also_ok": [{"high": 2}]}, None),
        ({"placed": {}, "placed_also_ok": {"high": 2}}, None),
        ({"pending": ["wide"]}, None),
        ({"pending": []}, "pending: expected none, got wide"),
        ({"evicted_any_of": [["l0"], ["l1", "l0"]]}, None),
        ({"evicted_any_of": [[], ["l0"]]}, "evicted: expected none or l0, got l0, l1"),
        ({"evicted_count": {"n": 2, "from": ["l0", "l1", "l2"]}}, None),
        ({"evicted_count": {"n": 1}}, "evicted: expected 1 task, got 2: l0, l1"),
        ({"evicted_count": {"n": 2, "from": ["l0"]}}, "expected only tasks of l0, got l0, l1"),
        ({"evicted_count": {"n": 2, "one_from_each": [["l0"], ["l1"]]}}, None),
        (
            {"evicted_count": {"n": 2, "one_from_each": [["l0", "l1"]]}},
            "evicted: expected one of l0, l1, got l0, l1",
        ),
        ({"moved_any_of": [[]]}, None),
        ({"moved_any_of": [["l0"]]}, "moved: expected l0, got none"),
        ({"placement": {"h1": "n3"}}, "h1: expected on n3, got n"),
        ({"placement": {"t0": "n1"}}, "t0: expected on n1, got no node"),
        ({"placement": {"high": ["n1", "n1"]}}, "high: expected on n1, n1, got"),
        ({"placement": {"roles": {"lead": 1, "worker": 1}}}, None),
        ({"placement": {"roles": {"lead": 2}}}, "roles: expected 2 of lead, got"),
        ({"timed_out": ["late"]}, None),
        ({"timed_out": []}, "timed out: expected none, got late"),
        ({"released": []}, None),
        ({"released": ["wide"]}, "released: expected wide, got none"),
        ({"reasons": {"high": "WaitingForVictims"}}, None),
        ({"reasons": {"wide": "Backoff"}}, "reason of wide: expected Backoff, got "),
        ({"reasons": {"late": "Backoff"}}, "reason of late: expected Backoff, got no reason"),
    ],
)
def test_each_difference_is_one_sentence(expect: dict[str, Any], difference: str | None) -> None:
    sentences = differences_of(**expect)
    if difference is None:
        assert sentences == []
    else:
        assert len(sentences) == 1
        assert difference in sentences[0]


def test_every_field_of_a_queue_that_the_planner_uses_can_be_written() -> None:
    changed = Queue(
        "q",
        parent="p",
        weight=3000,  # in thousandths, as a weight in a file may be a fraction
        quota={"gpu": 1000},
        limit={"gpu": 2000},
        stopped=True,
        priority=1,
        preempt_within_queue=PreemptWithin.NEVER,
        reclaim_from_siblings=ReclaimFrom.NEVER,
        reclaimable=False,
        non_preemptible_within_quota=True,
        consolidation=True,
    )
    fields = msgspec.to_builtins(changed)
    fields |= {"weight": 3, "quota": {"gpu": 1}, "limit": {"gpu": 2}}
    assert changed in scenario(queues=[{"name": "p"}, fields]).queues
    left_out = set(msgspec.structs.asdict(changed)) - set(fields)
    assert left_out == {"max_priority", "namespaces"}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"node": []}, "node is not a known field; did you mean"),
        ({"nodes": [{"name": "n", "size": 1}]}, "nodes[0].size is not a known field"),
        ({"queues": [{"name": "q", "wait": 1}]}, "queues[0].wait is not a known field"),
        ({"policy": {"orders": []}}, "policy.orders is not a known field"),
        ({"pending": [gang("g", "t", prio=1)]}, "pending[0].prio is not a known field"),
        (
            {"pending": [gang("g", {"name": "t", "gpu": 1})]},
            "pending[0].tasks[0].gpu is not a known field",
        ),
        (
            {"pending": [gang("g", task("t", node="n1"))]},
            "pending[0].tasks[0].node applies to running",
        ),
        ({"pending": [gang("g", task("t", held="n9"))]}, "tasks[0].held is n9, which is not"),
        ({"running": [gang("g", "t")]}, "running[0].tasks[0].node is missing"),
        ({"pending": [gang("g", "t", queue="q")]}, "pending[0].queue is q, which is not listed"),
        ({"pending": [gang("g", "t"), gang("h", "t")]}, "pending[1].tasks[0].name is t, which"),
        ({"queues": [{"name": "q", "parent": "p"}]}, "queues[0].parent is p, which is not"),
        ({"queues": [{"name": "q"}, {"name": "q"}]}, "queues[1].name is q, which is listed"),
        ({"pending": [gang("g", "t", topology={})]}, "pending[0].topology names both or neither"),
        ({"pending": [gang("g", "t", waiting_s=-1)]}, "pending[0].waiting_s is -1"),
    ],
)
def test_every_problem_is_named_by_its_path(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(Invalid) as refusal:
        scenario(**fields)
    assert path in str(refusal.value)


@pytest.mark.parametrize(
    ("expect", "path"),
    [
        ({"place": {}}, "expect.place is not a known field"),
        ({"placed": {"absent": 1}}, "expect.placed names the gang absent"),
        ({"evicted_any_of": ["l0"]}, "expect.evicted_any_of[0] is"),
    ],
)
def test_an_expectation_with_an_unknown_name_is_refused(expect: Any, path: str) -> None:
    with pytest.raises(Invalid) as refusal:
        read_expectation(crowded(**expect))
    assert path in str(refusal.value)


def test_a_scenario_without_an_expectation_cannot_be_checked() -> None:
    with pytest.raises(Invalid, match="expect is missing"):
        read_expectation(crowded())


def test_a_gang_in_two_lists_is_one_gang() -> None:
    read = scenario(
        running=[gang("g", task("t0", node="n1"), min_available=2, priority=3)],
        pending=[gang("g", "t1")],
    )
    pending, running = only_pending(read), only_running(read)
    assert (pending.size, pending.need, pending.is_repair, pending.priority) == (2, 1, True, 3)
    assert [role.tasks for role in pending.roles] == [(1,)]
    assert [task.index for task in running.tasks] == [0]


@pytest.mark.parametrize(
    ("match", "fields", "need"),
    [
        (None, {}, 3),
        ("only-waiting", {}, 4),
        ("waiting-and-running", {}, 3),
        ("waiting-and-running", {"finished_members": 1}, 3),
        ("waiting-running-succeed", {"finished_members": 1}, 2),
        ("once-satisfied", {"satisfied": False}, 3),
        ("once-satisfied", {}, 1),
        ("only-waiting", {"min_available": 1}, 0),
    ],
)
def test_what_counts_towards_the_minimum(match: str | None, fields: Any, need: int) -> None:
    minimum = {"min_available": 4, "restart": "task", "match": match, **fields}
    read = scenario(
        running=[gang("g", task("t0", node="n1"), **minimum)],
        pending=[gang("g", "t1", "t2", "t3")],
    )
    assert only_pending(read).need == need


def test_tasks_with_equal_requests_are_one_role() -> None:
    big = {"resources": {"gpu": 2}}
    read = scenario(pending=[gang("g", "t0", task("t1", **big), "t2", task("t3", role="ps"))])
    roles = only_pending(read).roles
    assert [(role.tasks, role.need) for role in roles] == [((0, 2), 2), ((1,), 1), ((3,), 1)]
    assert len({role.name for role in roles}) == 3


def test_the_minimums_of_roles_bind_only_where_they_are_given() -> None:
    tasks = [task("a0", role="a"), task("a1", role="a"), task("b0", role="b")]
    free = scenario(pending=[gang("g", *tasks, min_available=2)])
    assert [role.need for role in only_pending(free).roles] == [0, 0]
    bound = scenario(pending=[gang("g", *tasks, min_available=2, min_per_role={"b": 1})])
    assert [role.need for role in only_pending(bound).roles] == [0, 1]


def test_running_tasks_occupy_different_devices() -> None:
    halves = [task(f"t{n}", node="n1", resources={"gpu": 0.6}) for n in range(2)]
    running = only_running(scenario(running=[gang("g", *halves)]))
    assert [task.devices for task in running.tasks] == [(0,), (1,)]


def test_the_gather_timeout_of_a_gang_begins_with_its_first_gathered_place() -> None:
    fields = {"mode": "non-strict", "gather_timeout_s": 60, "waiting_s": 50}
    without = only_pending(scenario(pending=[gang("g", "t0", **fields)]))
    gathered = only_pending(scenario(pending=[gang("g", task("t0", held="n1"), "t1", **fields)]))
    assert without.expires_at is None
    assert gathered.expires_at == NOW + 10_000_000


def test_running_gangs_were_submitted_before_pending_gangs() -> None:
    read = scenario(running=[gang("r", task("r0", node="n1"))], pending=[gang("p", "p0")])
    assert only_running(read).created_at < only_pending(read).created_at


def test_one_plan_serves_any_number_of_preemptors() -> None:
    many = range(40)
    read = scenario(
        nodes=[{"name": "n1", "resources": {"gpu": len(many)}}],
        running=[gang(f"low-{n}", task(f"l{n}", node="n1")) for n in many],
        pending=[gang(f"high-{n}", f"h{n}", priority=5) for n in many],
    )
    assert outcome_of(read).placed == {f"high-{n}": 1 for n in many}


def test_the_expected_nodes_of_a_gang_may_be_those_of_its_new_tasks() -> None:
    for nodes in (["n1", "n2"], ["n2"]):
        read = scenario(
            running=[gang("g", task("g0", node="n1", resources={"gpu": 2}))],
            pending=[gang("g", task("g1"))],
            expect={"placement": {"g": nodes}},
        )
        assert not [*differences(read, read_expectation(read), outcome_of(read))]


def test_roles_that_an_expectation_omits_are_not_compared() -> None:
    read = scenario(
        pending=[gang("g", task("g0", role="lead")), gang("other", "o0")],
        expect={"placement": {"roles": {"lead": 1}}},
    )
    assert not [*differences(read, read_expectation(read), outcome_of(read))]


@pytest.mark.parametrize("entry", [GangEntry, TaskEntry, ScenarioFile])
def test_the_scenario_page_describes_every_field(entry: type[msgspec.Struct]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "scenarios.md").read_text("utf-8")
    assert [field for field in entry.__struct_fields__ if f"`{field}`" not in page] == []
