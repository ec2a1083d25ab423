"""When to plan, and what becomes of a plan: each decision is checked again when it is applied.

One plan at a time. It runs when something it depends on has changed, and every few seconds
regardless. After each there is a pause in which changes gather, at least as long as it took; so the
first change in a quiet moment is planned for at once.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from phalanx.core.errors import CoreError
from phalanx.core.events import (
    Event,
    Held,
    HoldsReleased,
    Nominated,
    Placed,
    ScheduleTimedOut,
    Victim,
)
from phalanx.core.reasons import Reason
from phalanx.core.spec.job import Micros
from phalanx.engine.errors import NotLeading, Unavailable
from phalanx.engine.planner_delta import PlannerDelta, plan_anew
from phalanx.engine.settings import EngineSettings
from phalanx.engine.telemetry import UNWATCHED, Telemetry
from phalanx.engine.turn import Turn
from phalanx.engine.writer import Writer
from phalanx.plan.decisions import Decision, Evict, Hold, LetGo, Plan, Reserve
from phalanx.plan.state.planner_state import ClusterState

Planner = Callable[[ClusterState, PlannerDelta, Micros], Awaitable[Plan]]

#: A plan is expected to take no longer than the last one, if little has changed since.
_QUICK_S = 0.002
_FEW = 100


async def plan_inline(picture: ClusterState, news: PlannerDelta, now: Micros) -> Plan:
    """In the loop itself: for simulations, where every run has to be the same."""
    return plan_anew(picture, news, now)


class PlannerThread:
    """In a thread, so that the loop goes on answering, unless it takes less than the way there."""

    def __init__(
        self, plan: Callable[[ClusterState, PlannerDelta, Micros], Plan] = plan_anew
    ) -> None:
        self._plan = plan
        self._took_s = 0.0  #: the last one

    async def __call__(self, picture: ClusterState, news: PlannerDelta, now: Micros) -> Plan:
        if self._took_s > _QUICK_S or news.size > _FEW:
            return await asyncio.to_thread(self._timed, picture, news, now)
        return self._timed(picture, news, now)

    def _timed(self, picture: ClusterState, news: PlannerDelta, now: Micros) -> Plan:
        began = time.perf_counter()
        made = self._plan(picture, news, now)
        self._took_s = time.perf_counter() - began
        return made


class PlannerLoop:
    def __init__(
        self,
        reign: Writer,
        picture: ClusterState,
        planner: Planner,
        settings: EngineSettings,
        watcher: Telemetry = UNWATCHED,
    ) -> None:
        self._watcher = watcher
        self._reign = reign
        self._picture = picture
        self._news = PlannerDelta()
        self._planner = planner
        self._settings = settings
        self._changed = asyncio.Event()
        self._changed.set()
        #: Why each waiting job waits, as of the last plan.
        self.reasons: Mapping[str, Reason] = {}
        #: Decisions that no longer held when they came to be applied, by cause.
        self.rejected: Counter[str] = Counter()

    def observe(self, turn: Turn) -> None:
        self._news.note(turn)
        if turn.replan:
            self._changed.set()

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
            except (NotLeading, Unavailable):
                # Whoever leads next plans; if the lease was only late, it is we, a tick later.
                self._changed.set()
                await asyncio.sleep(self._settings.plan_tick_s)
            await asyncio.sleep(max(self._settings.plan_debounce_s, loop.time() - began))

    async def _plan_once(self) -> None:
        news, self._news = self._news, PlannerDelta()
        began = asyncio.get_running_loop().time()
        made = await self._planner(self._picture, news, self._reign.tell_time())
        self._watcher.planned(asyncio.get_running_loop().time() - began, made)
        self.reasons = made.reasons
        if made.decisions:
            await self._reign.do(lambda turn: self._carry_out(turn, made))

    def _carry_out(self, turn: Turn, made: Plan) -> None:
        if turn.cluster.queues != self._picture.snapshot.queues:
            self._reject("QueuesChanged")  # limits and shares may not be what they were
            return
        for decision in made.decisions:
            try:
                turn.apply(event_of(decision))
            except CoreError as error:
                self._reject(type(error).__name__)

    def _reject(self, cause: str) -> None:
        self.rejected[cause] += 1
        self._watcher.rejected(cause)


def event_of(decision: Decision) -> Event:
    """What a decision means to the core."""
    if isinstance(decision, Reserve):
        return Placed(decision.placements)
    if isinstance(decision, Evict):
        victims = (Victim(victim.job, victim.version, victim.tasks) for victim in decision.victims)
        return Nominated(decision.placements, tuple(victims))
    if isinstance(decision, Hold):
        return Held(decision.placement)
    if isinstance(decision, LetGo):
        return HoldsReleased(decision.job, decision.version, "nobody who holds could ever start")
    return ScheduleTimedOut(decision.job, decision.since)
