"""When a pending gang is due, as `phalanx why` prints it: by the rule that orders the queues."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.test_scenario import gang, scenario, task

from phalanx.core.reasons import NeverFits, NotEnough, OnHold, QueueLimit, Reason, WaitingForGroup
from phalanx.core.time_units import HOUR, SECOND, Micros
from phalanx.plan.cycle import plan
from phalanx.plan.explain.due_times import DueTimes, due_times
from phalanx.plan.explain.whatif import forecast, remedy
from phalanx.plan.state.planner_state import PlannerState
from phalanx.scenario.times import NOW

DAY = 24 * HOUR
#: Of gangs with a time limit of one hour: the tasks may take 45 seconds to stop.
LIMIT = 3645 * SECOND
SHORT: Reason = NotEnough(1, 0, "gpu")


def cluster(*pending: dict[str, Any], **fields: Any) -> PlannerState:
    """3 GPUs in use, of which queue own deserves 2 and uses 1."""
    mine = gang("mine", task("o0", node="n2"), queue="own")
    theirs = gang("theirs", task("r0", node="n1"), task("r1", node="n1"), queue="other")
    more = gang("more", "m0", "m1", queue="other")
    queues = [{"name": "own", "quota": {"gpu": 2}, "weight": 0}, {"name": "other"}]
    fields = {"queues": queues, "running": [mine, theirs], **fields}
    return scenario(pending=[*pending, more], **fields).state()


def due(state: PlannerState, job: str, reason: Reason | None = SHORT) -> DueTimes | None:
    return due_times(state.at(NOW), job, reason)


def submitted(state: PlannerState, job: str) -> Micros:
    return state.pending.gangs[job].created_at


def test_a_gang_is_due_by_its_submission_its_limit_and_the_share_of_its_queue() -> None:
    state = cluster(gang("wide", "t0", "t1", queue="own", time_limit_s=3600))
    found = due(state, "wide")
    assert found is not None
    [level] = found.queues
    assert (level.queue, level.used_share, level.counted_share) == ("own", 0.5, 0.5)
    assert level.at == submitted(state, "wide") + round(1.75 * LIMIT) + 7 * DAY


def test_a_queue_above_its_share_is_due_as_if_it_used_its_whole_share() -> None:
    state = cluster(gang("wide", "t0", "t1", queue="other"), gang("next", "x0", queue="own"))
    found = due(state, "wide")
    assert found is not None
    [level] = found.queues
    assert (level.used_share, level.counted_share) == (2.0, 1.0)
    assert level.at == submitted(state, "wide") + round(1.75 * 14 * DAY) + 14 * DAY


@pytest.mark.parametrize("queue", ["idle", "guest"])
def test_a_queue_that_deserves_nothing_is_due_as_if_it_used_its_whole_share(queue: str) -> None:
    """Both have weight 0 and no quota; queue guest uses a GPU."""
    queues: list[dict[str, Any]] = [{"name": "own", "quota": {"gpu": 2}}, {"name": "other"}]
    queues += ({"name": name, "weight": 0} for name in ("idle", "guest"))
    theirs = gang("theirs", task("r0", node="n1"), task("r1", node="n1"), queue="other")
    lent = gang("lent", task("l0", node="n2"), queue="guest", preemptible=False)
    mine = gang("mine2", "x0", "x1", queue="own")
    state = cluster(
        gang("wide", "t0", "t1", queue=queue), mine, queues=queues, running=[theirs, lent]
    )
    found = due(state, "wide")
    assert found is not None
    [level] = found.queues
    assert (level.used_share, level.counted_share) == (None, 1.0)


def test_where_the_shortest_do_not_go_first_time_limits_do_not_count() -> None:
    wide = gang("wide", "t0", "t1", queue="own", time_limit_s=3600)
    state = cluster(wide, policy={"order": ["priority", "created"]})
    found = due(state, "wide")
    assert found is not None
    assert [each.at for each in found.queues] == [submitted(state, "wide") + 7 * DAY]


def test_a_gang_is_due_by_every_queue_above_its_own() -> None:
    queues = [{"name": "lab"}, {"name": "own", "parent": "lab"}, {"name": "other"}]
    wide = gang("wide", "t0", "t1", queue="own", time_limit_s=3600)
    found = due(cluster(wide, queues=queues), "wide")
    assert found is not None
    assert [each.queue for each in found.queues] == ["own", "lab"]


@pytest.mark.parametrize("days", [3, 4])
def test_the_queue_that_is_due_first_goes_first(days: int) -> None:
    """Queue a uses 3/4 of its share and b 2/4: that counts as 3.5 days of waiting."""
    later = days * 86_400
    fields: dict[str, Any] = {"time_limit_s": 86_400}
    running = [
        gang("a1", task("a10", node="n1", resources={"gpu": 3}), queue="a"),
        gang("b1", task("b10", node="n1", resources={"gpu": 2}), queue="b"),
        gang("c1", task("c10", node="n1", resources={"gpu": 2}), queue="c", preemptible=False),
    ]
    pending = [
        gang("old", "o0", queue="a", submit_order=0, waiting_s=later, **fields),
        gang("new", "n0", queue="b", submit_order=later, **fields),
        gang("next", "x0", queue="b", submit_order=later + 1, **fields),
    ]
    state = scenario(
        nodes=[{"name": "n1", "resources": {"gpu": 8}}],
        queues=[{"name": "a"}, {"name": "b"}, {"name": "c", "weight": 0}],
        running=running,
        pending=pending,
    ).state()
    times = {}
    for job in ("old", "new"):
        found = due(state, job)
        assert found is not None
        times[job] = found.queues[0].at
    first = min(times, key=lambda job: times[job])
    assert first == ("old" if days == 4 else "new")
    assert forecast(plan(state, NOW), first).starts_now


def test_a_gang_is_overdue_after_max_wait_times_its_limit() -> None:
    wide = gang("wide", "t0", "t1", queue="own", time_limit_s=3600, waiting_s=100)
    found = due(cluster(wide), "wide")
    assert found is not None
    assert found.overdue_at == NOW - 100 * SECOND + 10 * LIMIT
    never = due(cluster(wide, policy={"max_wait": 0}), "wide")
    assert never is not None
    assert never.overdue_at is None


def test_a_group_is_due_by_its_last_member_and_overdue_by_the_longest_bound() -> None:
    one = gang("one", "t0", queue="own", group=["two"], submit_order=1, time_limit_s=60)
    two = gang("two", "t1", queue="own", group=["one"], submit_order=2, time_limit_s=3600)
    state = cluster(one, two)
    for job in ("one", "two"):
        found = due(state, job)
        assert found is not None
        [level] = found.queues
        assert level.at == submitted(state, "two") + round(1.75 * LIMIT) + 7 * DAY
        assert found.overdue_at == NOW + 10 * LIMIT


@pytest.mark.parametrize(
    "reason", [None, OnHold(), NeverFits("gpu", 9, 3), WaitingForGroup(("two",))]
)
def test_a_gang_that_does_not_wait_for_its_turn_is_not_due(reason: Reason | None) -> None:
    assert due(cluster(gang("wide", "t0", "t1", queue="own")), "wide", reason) is None
    assert due(cluster(), "unknown") is None


def test_a_gang_that_exceeds_the_limit_of_its_queue_by_itself_is_not_due() -> None:
    state = cluster(gang("wide", "t0", "t1", queue="own"))
    assert due(state, "wide", QueueLimit("own", "gpu")) is not None
    state.set_queues({**state.queues, "own": replace(state.queues["own"], limit={"gpu": 1000})})
    reason = plan(state, NOW).reasons["wide"]
    assert str(reason) == "the gang needs 2 GPUs, the limit of queue own is 1"
    assert remedy(reason) == "request less, or raise that limit"
    assert due(state, "wide", reason) is None
