"""What a plan means for one gang, and the alternatives that the planner has tried for it."""

from typing import Any

import pytest
from tests.unit.test_scenario import gang, scenario, task

from phalanx.core.reasons import NeverFits, OnHold, QueueLimit, WaitingForMembers, WaitingForVictims
from phalanx.core.settings import CoreSettings
from phalanx.core.time_units import MINUTE, SECOND
from phalanx.plan.cycle import plan
from phalanx.plan.explain.whatif import (
    Alternative,
    Fewer,
    Forecast,
    Higher,
    Shorter,
    alternatives,
    forecast,
    remedy,
)
from phalanx.scenario.scenario import Scenario
from phalanx.scenario.times import NOW

STOP = CoreSettings().stop_timeout(15 * SECOND)


def foreseen(read: Scenario, job: str) -> Forecast:
    return forecast(plan(read.state(), NOW), job)


def tried(read: Scenario, job: str) -> list[Alternative]:
    state = read.state()
    reason = forecast(plan(state, NOW), job).reason
    return list(alternatives(state, NOW, job, reason, STOP))


def busy(*pending: dict[str, Any], **fields: Any) -> Scenario:
    """Three GPUs, of which one is taken for another 50 minutes."""
    says = {"time_limit_s": 3600, "started_s_ago": 600, "priority": 3, **fields}
    running = gang("busy", task("b0", node="n1"), **says)
    return scenario(running=[running], pending=list(pending))


def test_a_gang_that_fits_starts_now() -> None:
    found = foreseen(busy(gang("g", "t0", "t1")), "g")
    assert found.starts_now
    assert sorted(place.worker for place in found.places) == ["n1", "n2"]


def test_the_forecast_of_a_gang_that_evicts_names_victims_and_lost_work() -> None:
    found = foreseen(busy(gang("g", "t0", "t1", "t2", priority=9)), "g")
    assert not found.starts_now
    assert [victim.job for victim in found.victims] == ["busy"]
    assert [victim.lost for victim in found.victims] == pytest.approx([600])
    assert isinstance(found.reason, WaitingForVictims)


def test_the_forecast_of_a_gang_with_a_reserved_start_has_its_time() -> None:
    found = foreseen(busy(gang("g", "t0", "t1", "t2")), "g")
    assert found.reserved_start is not None
    assert found.reserved_start.at == NOW + 50 * MINUTE + STOP
    assert not found.places


def test_the_largest_number_of_tasks_that_would_start_is_found() -> None:
    assert Fewer(2, 3) in tried(busy(gang("g", "t0", "t1", "t2"), preemptible=False), "g")


def test_a_gang_of_which_no_task_fits_has_no_alternative_with_fewer_tasks() -> None:
    wide = [task(f"t{n}", resources={"gpu": 2}) for n in range(3)]
    read = busy(gang("g", *wide), preemptible=False)
    assert not any(isinstance(each, Fewer) for each in tried(read, "g"))


def test_the_lowest_priority_with_which_others_are_evicted_is_found() -> None:
    [found] = [e for e in tried(busy(gang("g", "t0", "t1", "t2")), "g") if isinstance(e, Higher)]
    assert found.priority == 4
    assert [victim.job for victim in found.victims] == ["busy"]


def test_gangs_that_cannot_be_evicted_offer_no_higher_priority() -> None:
    read = busy(gang("g", "t0", "t1", "t2"), preemptible=False)
    assert not any(isinstance(each, Higher) for each in tried(read, "g"))


def test_a_gang_that_is_held_back_has_an_alternative_with_a_shorter_limit() -> None:
    read = busy(gang("head", "h0", "h1", "h2"), gang("g", "t0", submit_order=9), preemptible=False)
    assert tried(read, "g") == [Shorter(50 * MINUTE)]


def test_trying_alternatives_does_not_change_the_state() -> None:
    read = busy(gang("g", "t0", "t1", "t2"))
    state = read.state()
    before = state.pending.gangs["g"]
    list(alternatives(state, NOW, "g", None, STOP))
    assert state.pending.gangs["g"] == before


def test_an_unknown_gang_has_no_alternatives() -> None:
    assert tried(busy(gang("g", "t0")), "other") == []


def test_the_remedy_of_a_reason_says_what_would_have_to_change() -> None:
    assert remedy(QueueLimit("ml", "gpu")) == (
        "wait for jobs of queue ml to end, or raise its GPU limit"
    )
    assert remedy(NeverFits("gpu", 8000, 4000)) == "add workers with more GPUs, or request less"
    assert remedy(WaitingForMembers(1, 2)) == "submit the missing members"
    assert remedy(WaitingForMembers(1, 2, 1)) == (
        "submit the job again with a match policy that counts running and done members"
    )
    assert remedy(OnHold()) == "release the job"
    assert remedy(WaitingForVictims(("j-1.0",))) is None
