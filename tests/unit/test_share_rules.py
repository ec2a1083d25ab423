"""The rule of fair share that makes a gang wait, in words."""

from typing import Any

import pytest
from tests.unit.test_scenario import gang, scenario, task

from phalanx.plan.explain.share_rules import share_rule
from phalanx.scenario.times import NOW


def rule(job: str, *pending: dict[str, Any], **fields: Any) -> str | None:
    """The rule for a gang in queue own, beside a queue with twice its weight and two of three
    GPUs."""
    theirs = gang("theirs", task("r0", node="n1"), task("r1", node="n1"), queue="other")
    more = gang("more", "m0", "m1", queue="other")
    fields = {"queues": [{"name": "own"}, {"name": "other", "weight": 2}], **fields}
    fields["running"] = [theirs, *fields.get("running", ())]
    state = scenario(pending=[*pending, more], **fields).state()
    found = share_rule(state.at(NOW), job)
    return None if found is None else f"{found}. {found.remedy}"


WIDE = ("t0", "t1", "t2")
LARGER = "larger than the share of queue own, 1 GPU; "
REMEDY = ". raise the quota or the weight of queue own, or request less"
QUOTAS: list[dict[str, Any]] = [{"name": "own"}, {"name": "other", "quota": {"gpu": 3}}]
NO_QUOTA = "queue own has no quota, and other quotas take all gpu; "


def test_a_gang_larger_than_the_share_waits_for_idle_capacity() -> None:
    wide = gang("wide", *WIDE, queue="own", waiting_s=360)
    starts = "starts when it finds 3 GPUs idle; in 4m the queue deserves the job"
    assert rule("wide", wide) == LARGER + starts + REMEDY


def test_a_starving_gang_larger_than_the_share_waits_for_its_queue_to_be_empty() -> None:
    wide = gang("wide", *WIDE, queue="own", waiting_s=3600)
    mine = gang("mine", task("o0", node="n2"), queue="own")
    starts = "starts when the queue has freed the 1 GPU that it uses"
    assert rule("wide", wide, running=[mine]) == LARGER + starts + REMEDY
    starts = "the queue is empty and deserves the job; starts when it finds 3 GPUs free"
    assert rule("wide", wide) == LARGER + starts + REMEDY


@pytest.mark.parametrize(
    ("weight", "waited", "expected"),
    [
        (1, 0, NO_QUOTA + "starts when it finds 1 GPU idle; in 10m the queue deserves the job"),
        (1, 3600, NO_QUOTA + "the queue deserves one job; starts when it finds 1 GPU free"),
        (0, 3600, "queue own has no quota and weight 0; starts when it finds 1 GPU idle"),
    ],
)
def test_a_queue_without_a_quota_deserves_nothing(weight: int, waited: int, expected: str) -> None:
    narrow = gang("narrow", "t0", queue="own", waiting_s=waited)
    queues = [{**QUOTAS[0], "weight": weight}, QUOTAS[1]]
    found = rule("narrow", narrow, queues=queues)
    assert found == expected + ". set a quota for queue own"


def test_a_queue_that_uses_its_share_starts_no_further_gang() -> None:
    mine = gang("mine", task("o0", node="n2"), queue="own")
    narrow = gang("narrow", "t0", queue="own")
    assert rule("narrow", narrow, running=[mine]) == (
        "queue own uses 1 of the 1 GPU that it deserves; starts when jobs of the queue end, or "
        "other queues leave capacity idle. wait for jobs of queue own to end, or raise its quota or"
        " weight"
    )


def test_a_queue_above_its_share_is_said_to_use_more_than_it_deserves() -> None:
    borrowed = gang("mine", task("o0", node="n2"), task("o1", node="n1"), queue="own")
    theirs = gang("theirs", task("r0", node="n1"), queue="other")
    pending = [gang("narrow", "t0", queue="own"), gang("more", "m0", "m1", "m2", queue="other")]
    queues = [{"name": "own"}, {"name": "other", "weight": 2}]
    state = scenario(queues=queues, running=[borrowed, theirs], pending=pending).state()
    assert str(share_rule(state.at(NOW), "narrow")) == (
        "queue own uses 2 GPUs, more than the 1 that it deserves; starts when jobs of the queue"
        " end, or other queues leave capacity idle"
    )


def test_an_overdue_gang_comes_before_all_queues() -> None:
    late = gang("late", *WIDE, queue="own", waiting_s=7200, time_limit_s=600)
    assert rule("late", late) == (
        "pending for 2h, longer than max_wait; the oldest such job of its queue goes before all"
        " queues. "
        "wait for jobs to end, or add workers"
    )


def test_a_gang_of_a_group_is_overdue_with_its_group() -> None:
    late = gang("late", *WIDE, queue="own", waiting_s=7200, time_limit_s=600, group=["other"])
    for waiting_s, is_overdue in ((7200, True), (0, False)):
        limit = {"waiting_s": waiting_s, "time_limit_s": 600}
        other = gang("other", "s0", queue="own", group=["late"], **limit)
        said = rule("late", late, other)
        assert said is not None
        assert said.startswith("pending for 2h") == is_overdue


def test_a_starving_gang_within_its_quota_may_exceed_the_share() -> None:
    mine = gang("mine", task("o0", node="n2"), queue="own")
    quotas = [{"name": name, "quota": {"gpu": 8}} for name in ("own", "other")]
    for waiting_s, ending in (
        (0, "or other queues leave capacity idle"),
        (700, "other queues leave capacity idle, or it is due before their jobs"),
    ):
        narrow = gang("narrow", "t0", queue="own", waiting_s=waiting_s)
        said = rule("narrow", narrow, running=[mine], queues=quotas)
        assert said is not None
        assert f"starts when jobs of the queue end, {ending}. " in said


def test_a_gang_within_the_share_waits_by_no_rule() -> None:
    assert rule("narrow", gang("narrow", "t0", queue="own")) is None
    assert rule("unknown") is None
