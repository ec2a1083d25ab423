"""The memory of a planning pass."""

import gc
import weakref

import pytest
from tests.unit.test_scenario import gang, scenario, task

from phalanx.plan import cycle
from phalanx.plan.planning_pass import PlanningPass
from phalanx.plan.state.planner_state import Moment
from phalanx.scenario.times import NOW


def test_the_parts_of_a_pass_are_freed_without_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts: list[weakref.ref[object]] = []

    class WatchedPass(PlanningPass):
        def __init__(self, state: Moment) -> None:
            super().__init__(state)
            watched = (self.lineup, self.order, self.shares, self.shares.tree, self.reservations)
            parts.extend(map(weakref.ref, watched))

    monkeypatch.setattr(cycle, "PlanningPass", WatchedPass)
    runs = gang("runs", task("r0", node="n1"), time_limit_s=60)
    state = scenario(pending=[gang("wide", "w0", "w1", "w2"), gang("small", "s0")], running=[runs])
    planner_state = state.state()
    gc.disable()
    try:
        made = cycle.plan(planner_state, NOW)
    finally:
        gc.enable()
    assert made.decisions
    assert [part() for part in parts] == [None] * 5
