"""The budget of a pass for searches for victims: it delays evictions and starves no gang."""

import sys

from hypothesis import given, settings
from msgspec.structs import replace
from tests.unit.test_planner_properties import NOW, World, borrowed_worlds, worlds

from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Evict, Plan
from phalanx.plan.model import PlannerPolicy
from phalanx.plan.preemption.search_budget import SearchCursor

SMALLEST = PlannerPolicy(searches=1, search_work=1)
UNLIMITED = replace(SMALLEST, searches=1_000, search_work=sys.maxsize)
#: More passes than the rounds of any of these clusters take.
PASSES = 1000


def planned(world: World, policy: PlannerPolicy, cursor: SearchCursor) -> Plan:
    state = world.state(policy)
    state.cursor = cursor
    return plan(state, NOW)


def settled_with_smallest_budget(world: World) -> World:
    """The world after a round of searches, each with the smallest budget, that decides nothing."""
    cursor, has_decided = SearchCursor(), True
    for _ in range(PASSES):
        if cursor == SearchCursor():
            if not has_decided:
                return world
            has_decided = False
        made = planned(world, SMALLEST, cursor)
        has_decided = has_decided or bool(made.decisions)
        world, cursor = world.settled(made), made.cursor
    raise AssertionError("the rounds of searches do not end")


@settings(max_examples=60)
@given(worlds() | borrowed_worlds())
def test_the_smallest_budget_evicts_all_that_an_unlimited_one_does(world: World) -> None:
    made = planned(settled_with_smallest_budget(world), UNLIMITED, SearchCursor())
    assert not any(isinstance(decision, Evict) for decision in made.decisions)
