"""When plans are made, and where: at once in a quiet moment, beside the loop if they are long."""

import asyncio
import threading

import pytest
from msgspec.structs import replace
from tests.driver import Driver

from phalanx.core.time_units import Micros
from phalanx.engine import planner_loop as planning_module
from phalanx.engine.commits import Commits
from phalanx.engine.host import HostEnvironment
from phalanx.engine.leader_lease import LeaderLease
from phalanx.engine.planner_loop import Planner, PlannerLoop, PlannerThread
from phalanx.engine.settings import EngineSettings
from phalanx.engine.writer import Writer
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Plan
from phalanx.plan.preemption.search_budget import SearchCursor
from phalanx.plan.state.delta import PlannerDelta
from phalanx.plan.state.planner_state import PlannerState
from phalanx.store.memory import MemoryStore

HOUR_S = 3600.0


class Counted:
    """A planner that says where it was asked, and how often."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.asked = asyncio.Event()

    def plan(self, state: PlannerState, delta: PlannerDelta, now: Micros) -> Plan:
        self.threads.append(threading.get_ident())
        return plan(state, now)

    async def __call__(self, state: PlannerState, delta: PlannerDelta, now: Micros) -> Plan:
        self.asked.set()
        return self.plan(state, delta, now)


def a_state() -> PlannerState:
    return PlannerState.of(Driver().cluster)


async def test_a_short_plan_is_made_in_the_loop() -> None:
    counted = Counted()
    await PlannerThread(counted.plan)(a_state(), PlannerDelta(), 0)
    assert counted.threads == [threading.get_ident()]


async def test_a_plan_with_many_changes_is_made_beside_the_loop() -> None:
    counted = Counted()
    delta = PlannerDelta(nodes={f"w{number}": None for number in range(1_000)})
    await PlannerThread(counted.plan)(a_state(), delta, 0)
    assert threading.get_ident() not in counted.threads


async def test_after_a_long_plan_the_next_is_made_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning_module, "_QUICK_S", 0.0)
    counted = Counted()
    beside = PlannerThread(counted.plan)
    for _ in range(2):
        await beside(a_state(), PlannerDelta(), 0)
    first, second = counted.threads
    assert first == threading.get_ident() != second


def a_loop(planner: Planner, debounce_s: float = HOUR_S) -> PlannerLoop:
    """It plans once at its start, and after that only for changes."""
    cluster = Driver().cluster
    settings = EngineSettings(plan_debounce_s=debounce_s, plan_tick_s=HOUR_S)
    began = asyncio.get_running_loop().time()
    store = MemoryStore(clock=lambda: 0)
    host = HostEnvironment("s", "", lambda: 0, lambda: "b-1")
    commits, lease = Commits(store, 1, lambda: "b-1"), LeaderLease(store, 1, HOUR_S, began)
    writer = Writer(cluster, commits, lease, settings, host)
    return PlannerLoop(writer, PlannerState.of(cluster), planner, settings)


async def test_a_fork_waits_for_the_plan_that_is_being_made() -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(state: PlannerState, delta: PlannerDelta, now: Micros) -> Plan:
        begun.set()
        await may_end.wait()
        return plan(state, now)

    planning = a_loop(slow)
    running = asyncio.create_task(planning.run())
    async with asyncio.timeout(60):
        await begun.wait()
        fork = asyncio.create_task(planning.fork())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not fork.done()
        may_end.set()
        await fork
    running.cancel()


async def test_in_a_quiet_moment_a_change_is_planned_for_at_once() -> None:
    counted = Counted()
    planning = a_loop(counted)
    running = asyncio.create_task(planning.run())
    async with asyncio.timeout(60):
        await counted.asked.wait()
    # What comes within the hour waits for its end.
    planning._changed.set()
    for _ in range(10):
        await asyncio.sleep(0)
    running.cancel()
    assert len(counted.threads) == 1


async def test_a_plan_whose_searches_left_gangs_out_is_followed_by_another_at_once() -> None:
    cursors = [SearchCursor(frozenset({"j-1"})), SearchCursor(doubled=1), SearchCursor()]
    made: list[Plan] = []

    async def searching(state: PlannerState, delta: PlannerDelta, now: Micros) -> Plan:
        made.append(replace(plan(state, now), cursor=cursors[len(made)]))
        return made[-1]

    planning = a_loop(searching, debounce_s=0.0)
    running = asyncio.create_task(planning.run())
    async with asyncio.timeout(60):
        while len(made) < len(cursors):
            await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    running.cancel()
    assert len(made) == len(cursors)
