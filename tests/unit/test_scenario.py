"""Scenarios are read by their fields, run by the planner, and held to what they expect."""

from typing import Any

import pytest

from phalanx.core.errors import Invalid
from phalanx.plan.cycle import plan
from phalanx.plan.model import PendingGang, RunningGang
from phalanx.scenario.expectation import differences, read_expectation
from phalanx.scenario.outcome import ScenarioOutcome, settle
from phalanx.scenario.scenario import NOW, Scenario, read_scenario

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
    """One gang evicts another, a third waits, a fourth gives up."""
    return scenario(
        running=[gang("low", task("l0", node="n1"), task("l1", node="n1"))],
        pending=[
            gang("high", task("h0", role="lead"), task("h1"), priority=5),
            gang("late", "t0", schedule_timeout_s=5, waiting_s=6),
            gang("wide", task("w0", resources={"gpu": 2})),
        ],
        expect=expect or None,
    )


def wrongs(**expect: Any) -> list[str]:
    read = crowded(**expect)
    return list(differences(read, read_expectation(read), outcome_of(read)))


def only_claim(read: Scenario) -> PendingGang:
    [claim] = read.claims
    return claim


def only_tenant(read: Scenario) -> RunningGang:
    [tenant] = read.tenants
    return tenant


def test_what_has_settled_is_told_by_name() -> None:
    outcome = outcome_of(crowded())
    assert outcome.placed == {"high": 2}
    assert outcome.evicted == ("l0", "l1")
    assert outcome.pending == ("wide",)
    assert outcome.timed_out == ("late",)
    assert set(outcome.placement) == {"h0", "h1"}


@pytest.mark.parametrize(
    ("expect", "told"),
    [
        ({"placed": {"high": 2}}, None),
        ({"placed": {"high": 1}}, "placed: expected 1 of high, got 2 of high"),
        ({"placed": {}, "placed_also_ok": [{"high": 2}]}, None),
        ({"placed": {}, "placed_also_ok": {"high": 2}}, None),
        ({"pending": ["wide"]}, None),
        ({"pending": []}, "pending: expected nobody, got wide"),
        ({"evicted_any_of": [["l0"], ["l1", "l0"]]}, None),
        ({"evicted_any_of": [[], ["l0"]]}, "evicted: expected nobody or l0, got l0, l1"),
        ({"evicted_count": {"n": 2, "from": ["l0", "l1", "l2"]}}, None),
        ({"evicted_count": {"n": 1}}, "evicted: expected 1 tasks, got 2: l0, l1"),
        ({"evicted_count": {"n": 2, "from": ["l0"]}}, "expected only from l0, got l0, l1"),
        ({"evicted_count": {"n": 2, "one_from_each": [["l0"], ["l1"]]}}, None),
        (
            {"evicted_count": {"n": 2, "one_from_each": [["l0", "l1"]]}},
            "evicted: expected one of l0, l1, got l0, l1",
        ),
        ({"moved_any_of": [[]]}, None),
        ({"moved_any_of": [["l0"]]}, "moved: expected l0, got nobody"),
        ({"placement": {"h1": "n3"}}, "h1: expected on n3, got n"),
        ({"placement": {"t0": "n1"}}, "t0: expected on n1, got no place"),
        ({"placement": {"high": ["n1", "n1"]}}, "high: expected on n1, n1, got"),
        ({"placement": {"roles": {"lead": 1, "worker": 1}}}, None),
        ({"placement": {"roles": {"lead": 2}}}, "roles: expected 2 of lead, got"),
        ({"timed_out": ["late"]}, None),
        ({"timed_out": []}, "timed out: expected nobody, got late"),
        ({"released": []}, None),
        ({"released": ["wide"]}, "released: expected wide, got nobody"),
        ({"reasons": {"high": "WaitingForVictims"}}, None),
        ({"reasons": {"wide": "Backoff"}}, "the reason of wide: expected Backoff, got "),
        ({"reasons": {"late": "Backoff"}}, "the reason of late: expected Backoff, got no reason"),
    ],
)
def test_what_differs_is_said(expect: dict[str, Any], told: str | None) -> None:
    found = wrongs(**expect)
    if told is None:
        assert found == []
    else:
        assert len(found) == 1
        assert told in found[0]


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
        ({"pending": [gang("g", task("t", node="n1"))]}, "pending[0].tasks[0].node is for tasks"),
        ({"pending": [gang("g", task("t", held="n9"))]}, "tasks[0].held is n9, which is not"),
        ({"running": [gang("g", "t")]}, "running[0].tasks[0].node is missing"),
        ({"pending": [gang("g", "t", queue="q")]}, "pending[0].queue is q, which is not listed"),
        ({"pending": [gang("g", "t"), gang("h", "t")]}, "pending[1].tasks[0].name is t, which"),
        ({"queues": [{"name": "q", "parent": "p"}]}, "queues[0].parent is p, which is not"),
        ({"queues": [{"name": "q"}, {"name": "q"}]}, "queues[1].name is q, which is listed"),
        ({"pending": [gang("g", "t", topology={})]}, "pending[0].topology names none or both"),
        ({"pending": [gang("g", "t", waiting_s=-1)]}, "pending[0].waiting_s is -1"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(Invalid) as refusal:
        scenario(**fields)
    assert path in str(refusal.value)


@pytest.mark.parametrize(
    ("expect", "path"),
    [
        ({"place": {}}, "expect.place is not a known field"),
        ({"placed": {"nobody": 1}}, "expect.placed names the gang nobody"),
        ({"evicted_any_of": ["l0"]}, "expect.evicted_any_of[0] is"),
    ],
)
def test_an_expectation_that_cannot_come_true_is_refused(expect: Any, path: str) -> None:
    with pytest.raises(Invalid) as refusal:
        read_expectation(crowded(**expect))
    assert path in str(refusal.value)


def test_a_scenario_that_expects_nothing_cannot_be_checked() -> None:
    with pytest.raises(Invalid, match="expect is missing"):
        read_expectation(crowded())


def test_a_gang_in_two_lists_is_one_gang() -> None:
    read = scenario(
        running=[gang("g", task("t0", node="n1"), min_available=2, priority=3)],
        pending=[gang("g", "t1")],
    )
    claim, tenant = only_claim(read), only_tenant(read)
    assert (claim.size, claim.need, claim.is_repair, claim.priority) == (2, 1, True, 3)
    assert [part.tasks for part in claim.roles] == [(1,)]
    assert [place.index for place in tenant.tasks] == [0]


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
    says = {"min_available": 4, "restart": "task", "match": match, **fields}
    read = scenario(
        running=[gang("g", task("t0", node="n1"), **says)],
        pending=[gang("g", "t1", "t2", "t3")],
    )
    assert only_claim(read).need == need


def test_tasks_that_ask_for_the_same_are_one_part() -> None:
    big = {"resources": {"gpu": 2}}
    read = scenario(pending=[gang("g", "t0", task("t1", **big), "t2", task("t3", role="ps"))])
    parts = only_claim(read).roles
    assert [(part.tasks, part.need) for part in parts] == [((0, 2), 2), ((1,), 1), ((3,), 1)]
    assert len({part.name for part in parts}) == 3


def test_the_minimums_of_roles_bind_only_where_they_are_given() -> None:
    tasks = [task("a0", role="a"), task("a1", role="a"), task("b0", role="b")]
    free = scenario(pending=[gang("g", *tasks, min_available=2)])
    assert [part.need for part in only_claim(free).roles] == [0, 0]
    bound = scenario(pending=[gang("g", *tasks, min_available=2, min_per_role={"b": 1})])
    assert [part.need for part in only_claim(bound).roles] == [0, 1]


def test_the_devices_of_running_tasks_are_told_apart() -> None:
    halves = [task(f"t{n}", node="n1", resources={"gpu": 0.6}) for n in range(2)]
    tenant = only_tenant(scenario(running=[gang("g", *halves)]))
    assert [place.devices for place in tenant.tasks] == [(0,), (1,)]


def test_patience_counts_from_the_first_hold_of_a_gang_that_gathers() -> None:
    says = {"mode": "non-strict", "schedule_timeout_s": 60, "waiting_s": 50}
    waits = only_claim(scenario(pending=[gang("g", "t0", **says)]))
    holds = only_claim(scenario(pending=[gang("g", task("t0", held="n1"), "t1", **says)]))
    assert waits.expires_at is None
    assert holds.expires_at == NOW + 10_000_000


def test_what_runs_was_there_before_what_waits() -> None:
    read = scenario(running=[gang("r", task("r0", node="n1"))], pending=[gang("p", "p0")])
    assert only_tenant(read).created_at < only_claim(read).created_at


def test_a_question_is_answered_at_once_however_many_evict() -> None:
    many = range(40)
    read = scenario(
        nodes=[{"name": "n1", "resources": {"gpu": len(many)}}],
        running=[gang(f"low-{n}", task(f"l{n}", node="n1")) for n in many],
        pending=[gang(f"high-{n}", f"h{n}", priority=5) for n in many],
    )
    assert outcome_of(read).placed == {f"high-{n}": 1 for n in many}


def test_the_nodes_of_a_gang_may_be_those_of_its_new_tasks() -> None:
    for nodes in (["n1", "n2"], ["n2"]):
        read = scenario(
            running=[gang("g", task("g0", node="n1", resources={"gpu": 2}))],
            pending=[gang("g", task("g1"))],
            expect={"placement": {"g": nodes}},
        )
        assert not [*differences(read, read_expectation(read), outcome_of(read))]


def test_roles_that_are_not_named_are_not_counted() -> None:
    read = scenario(
        pending=[gang("g", task("g0", role="lead")), gang("other", "o0")],
        expect={"placement": {"roles": {"lead": 1}}},
    )
    assert not [*differences(read, read_expectation(read), outcome_of(read))]
