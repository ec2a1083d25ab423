"""When plans are made and how they are carried out.

One plan is made at a time: when something it depends on has changed, when the searches of the last
plan left gangs out, and every few seconds regardless. A pause as long as the plan took follows each
plan, so that changes gather and commits go on; the first change in a quiet moment is planned for at
once. Every decision is checked again when it is applied.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from phalanx.core.errors import CoreError
from phalanx.core.events import (
    Event,
    GangGathered,
    GatheringEnded,
    Nominated,
    Placed,
    ScheduleTimedOut,
    Victim,
)
from phalanx.core.reasons import Reason
from phalanx.core.time_units import MINUTE, Micros
from phalanx.engine.errors import NoAnswer
from phalanx.engine.settings import EngineSettings
from phalanx.engine.telemetry import NO_TELEMETRY, Telemetry
from phalanx.engine.turn import Turn
from phalanx.engine.writer import Writer
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Decision, Evict, Gather, Plan, ReleaseGathered, Reserve
from phalanx.plan.state.delta import PlannerDelta
from phalanx.plan.state.planner_state import PlannerState

Planner = Callable[[PlannerState, PlannerDelta, Micros], Awaitable[Plan]]

#: While forks are asked for, the state before each plan is kept: a long plan holds up no question.
_FORKS_KEPT: Micros = MINUTE
#: A plan is expected to take no longer than the last one, if little has changed since.
_QUICK_S = 0.002
_FEW = 100


def update_and_plan(state: PlannerState, delta: PlannerDelta, now: Micros) -> Plan:
    """Update the state, plan, and let the next plan go on from this one."""
    state.update(delta)
    made = plan(state, now)
    state.accept(made)
    return made


async def plan_inline(state: PlannerState, delta: PlannerDelta, now: Micros) -> Plan:
    """Plan in the event loop: for simulations, in which every run is the same."""
    return update_and_plan(state, delta, now)


class PlannerThread:
    """Plan in a thread, so that the event loop goes on, unless the plan is expected to be short."""

    def __init__(
        self, planner: Callable[[PlannerState, PlannerDelta, Micros], Plan] = update_and_plan
    ) -> None:
        self._planner = planner
        self._took_s = 0.0  #: the last plan

    async def __call__(self, state: PlannerState, delta: PlannerDelta, now: Micros) -> Plan:
        if self._took_s > _QUICK_S or delta.size > _FEW:
            return await asyncio.to_thread(self._timed, state, delta, now)
        return self._timed(state, delta, now)

    def _timed(self, state: PlannerState, delta: PlannerDelta, now: Micros) -> Plan:
        began = time.perf_counter()
        made = self._planner(state, delta, now)
        self._took_s = time.perf_counter() - began
        return made


class ForkedState(NamedTuple):
    """A fork of the planner state, and what has changed since it was last updated."""

    state: PlannerState
    delta: PlannerDelta
    now: Micros


class PlannerLoop:
    def __init__(
        self,
        writer: Writer,
        state: PlannerState,
        planner: Planner,
        settings: EngineSettings,
        telemetry: Telemetry = NO_TELEMETRY,
    ) -> None:
        self._telemetry = telemetry
        self._writer = writer
        self._state = state
        #: What has become durable since the last plan began; no plan relies on what may be lost.
        self._delta = PlannerDelta()
        self._planner = planner
        self._settings = settings
        #: Held while a plan is made: only the planner reads and changes the state then.
        self._planning = asyncio.Lock()
        #: The state before the plan that is being made, and when a fork was last asked for.
        self._before_plan: ForkedState | None = None
        self._forked_at: Micros = -_FORKS_KEPT
        self._changed = asyncio.Event()
        self._changed.set()
        #: Why each pending job is pending, as of the last plan.
        self.reasons: Mapping[str, Reason] = {}
        #: Decisions that no longer held when they were to be applied, by cause.
        self.rejected: Counter[str] = Counter()

    def observe(self, turn: Turn) -> None:
        for changes in turn.changes:
            self._delta.note(turn.cluster, changes)
        if turn.replan:
            self._changed.set()

    async def fork(self) -> ForkedState:
        """The state with everything that is durable by now.

        Waits for a plan that is being made, unless forks were asked for shortly before it began.
        """
        self._forked_at = self._writer.now()
        if self._planning.locked() and self._before_plan is not None:
            state, delta, now = self._before_plan
            return ForkedState(state.fork(), delta.followed_by(self._delta), now)
        async with self._planning:
            return ForkedState(self._state.fork(), self._delta.copy(), self._writer.now())

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(self._settings.plan_tick_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            began = loop.time()
            try:
                await self._plan_once()
            except NoAnswer:
                # The next leader plans; if only the lease was late, this server does, a tick later.
                self._changed.set()
                await asyncio.sleep(self._settings.plan_tick_s)
            await asyncio.sleep(max(self._settings.plan_debounce_s, loop.time() - began))

    async def _plan_once(self) -> None:
        async with self._planning:
            delta, self._delta = self._delta, PlannerDelta()
            began, now = asyncio.get_running_loop().time(), self._writer.now()
            if now - self._forked_at < _FORKS_KEPT:
                self._before_plan = ForkedState(self._state.fork(), delta.copy(), now)
            try:
                made = await self._planner(self._state, delta, now)
            finally:
                self._before_plan = None
        self._telemetry.planned(asyncio.get_running_loop().time() - began, made)
        self.reasons = made.reasons
        if not made.cursor.is_at_start:
            self._changed.set()
        if made.decisions:
            await self._writer.do(lambda turn: self._apply(turn, made))

    def _apply(self, turn: Turn, made: Plan) -> None:
        if turn.cluster.queues != self._state.queues:
            self._reject("QueuesChanged")  # limits and fair shares may have changed
            return
        for decision in made.decisions:
            try:
                turn.apply(event_of(decision))
            except CoreError as error:
                self._reject(type(error).__name__)

    def _reject(self, cause: str) -> None:
        self.rejected[cause] += 1
        self._telemetry.rejected(cause)
        self._changed.set()


#: Why gathered places are released.
_STUCK = "no gathering gang could reach its minimum"


def event_of(decision: Decision) -> Event:
    """The event that carries out a decision."""
    if isinstance(decision, Reserve):
        return Placed(decision.placements)
    if isinstance(decision, Evict):
        victims = tuple(Victim(v.job, v.version, v.tasks, v.lost) for v in decision.victims)
        return Nominated(decision.placements, victims, decision.moves)
    if isinstance(decision, Gather):
        return GangGathered(decision.placement)
    if isinstance(decision, ReleaseGathered):
        return GatheringEnded(decision.job, decision.version, _STUCK)
    return ScheduleTimedOut(decision.job, decision.at)
