"""Forecasts that compute only a part of a plan give the answer of the whole plan."""

from collections.abc import Iterator

from hypothesis import given, settings
from msgspec.structs import replace
from tests.unit.test_planner_properties import World
from tests.unit.test_planner_purity import TIMES, varied_worlds

from phalanx.core.reasons import HeldBack
from phalanx.core.time_units import SECOND
from phalanx.plan.cycle import decision_for, plan
from phalanx.plan.decisions import Decision, Evict, Gather, Plan, Reserve
from phalanx.plan.explain.whatif import (
    Alternative,
    Fewer,
    Forecast,
    Higher,
    Shorter,
    alternatives,
    forecast,
)
from phalanx.plan.state.planner_state import PlannerState

STOP = 15 * SECOND


def decision_in(made: Plan, job: str) -> Decision | None:
    for decision in made.decisions:
        if isinstance(decision, Reserve | Evict):
            if job in [placement.job for placement in decision.placements]:
                return decision
        elif isinstance(decision, Gather) and decision.placement.job == job:
            return decision
    return None


@settings(max_examples=100)
@given(varied_worlds(), TIMES)
def test_the_decision_for_one_gang_is_that_of_the_plan(world: World, now: int) -> None:
    state = world.state()
    made = plan(state, now)
    for job, gang in world.pending.items():
        if gang.group:
            continue
        found, expected = decision_for(state, now, job), decision_in(made, job)
        if isinstance(expected, Reserve):
            # Growth comes after the last start.
            assert isinstance(found, Reserve)
            [placed], [grown] = found.placements, expected.placements
            assert set(placed.assignments) <= set(grown.assignments)
            assert len(placed.assignments) == gang.need
        else:
            assert found == expected


@settings(max_examples=60)
@given(varied_worlds(), TIMES)
def test_alternatives_are_those_that_whole_plans_give(world: World, now: int) -> None:
    state = world.state()
    made = plan(state, now)
    for job in world.pending:
        found = forecast(made, job)
        if not found.places:
            shown = alternatives(state, now, job, found.reason, STOP)
            assert list(shown) == list(by_whole_plans(state, now, job, found))


def by_whole_plans(
    state: PlannerState, now: int, job: str, seen: Forecast
) -> Iterator[Alternative]:
    """The same search as `alternatives`, where every trial is a whole plan."""
    gang = state.pending.gangs[job]
    if gang.ineligible is not None or gang.group:
        return

    def tried(**changes: object) -> Forecast:
        fork = state.fork()
        fork.put_pending(replace(gang, **changes))
        return forecast(plan(fork, now), job)

    if isinstance(seen.reason, HeldBack) and seen.reason.until is not None:
        limit = (seen.reason.until - now - STOP) // SECOND * SECOND
        if limit > 0 and tried(duration=limit + STOP).starts_now:
            yield Shorter(limit)
    [role] = gang.roles

    def starts_with(tasks: int) -> bool:
        fewer = replace(role, need=max(0, role.need - (gang.need - tasks)))
        return tried(roles=(fewer,), need=tasks, evicts_from=None).starts_now

    if gang.need > 1 and starts_with(1):
        low, high = 1, gang.need - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if starts_with(middle) else (low, middle - 1)
        yield Fewer(low, gang.need)
    running = [occupancy.gang for occupancy in state.running.by_job.values()]
    above = {each.priority for each in running if each.queue == gang.queue}
    for priority in sorted(each + 1 for each in above if each >= gang.priority):
        higher = tried(priority=priority, evicts_from=0)
        if higher.victims:
            yield Higher(priority, higher.victims)
            break
