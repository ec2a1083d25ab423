"""What every queue uses and deserves, as users read it: the numbers that a pass begins with."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.test_scenario import gang, scenario, task

from phalanx.plan.explain.queue_shares import SettledShare, queue_shares
from phalanx.plan.state.planner_state import PlannerState
from phalanx.scenario.times import NOW

BUSY = gang("busy", task("b0", node="n1"), task("b1", node="n1"), queue="owner")
QUEUES: list[dict[str, Any]] = [{"name": "owner", "quota": {"gpu": 3}}, {"name": "guest"}]


def cluster(*pending: dict[str, Any], **fields: Any) -> PlannerState:
    """A cluster whose 3 GPUs are the quota of queue owner, which uses 2 of them and wants 3."""
    more = gang("more", "m0", queue="owner")
    fields = {"queues": QUEUES, "running": [BUSY], **fields}
    return scenario(pending=[more, *pending], **fields).state()


def shares(state: PlannerState) -> dict[str, SettledShare]:
    return {share.queue.name: share for share in queue_shares(state.at(NOW))}


@pytest.mark.parametrize(("waiting_s", "deserved"), [(0, {}), (700, {"gpu": 1000})])
def test_a_queue_without_a_share_deserves_its_first_gang_once_it_starves(
    waiting_s: int, deserved: dict[str, int]
) -> None:
    found = shares(cluster(gang("late", "t0", queue="guest", waiting_s=waiting_s)))
    assert found["guest"].deserved == deserved
    assert found["owner"].deserved == {"gpu": 3000}


def test_what_a_queue_deserves_by_a_starving_gang_is_not_borrowed() -> None:
    mine = gang("mine", task("g0", node="n2"), queue="guest")
    late = gang("late", "t0", queue="guest", waiting_s=700)
    guest = shares(cluster(late, running=[BUSY, mine]))["guest"]
    assert (guest.used, guest.deserved, guest.borrowed) == ({"gpu": 1000}, {"gpu": 1000}, {})


def test_a_stopped_queue_deserves_what_it_uses() -> None:
    state = cluster(gang("new", "t0", queue="guest"))
    state.set_queues({**state.queues, "owner": replace(state.queues["owner"], stopped=True)})
    found = shares(state)
    assert (found["owner"].requested, found["owner"].deserved) == ({}, {"gpu": 2000})
    assert found["guest"].deserved == {"gpu": 1000}


def test_unused_shares_that_are_remembered_are_deserved() -> None:
    queues = [{"name": "owner"}, {"name": "guest"}]
    fields: dict[str, Any] = {"queues": queues, "unused_shares": {"guest": {"gpu": 1}}}
    wide = gang("wide", "t0", "t1", "t2", queue="guest")
    without = shares(cluster(wide, **fields))["guest"].deserved["gpu"]
    remembering = cluster(wide, **fields, policy={"share_half_life_s": 3600})
    assert shares(remembering)["guest"].deserved["gpu"] == without + 1000
