"""When to plan, and what becomes of a plan: each decision is checked again when it is applied.

One plan at a time. It runs when something it depends on has changed, after a moment in which more
can gather and never sooner than the last one took, and every few seconds regardless.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from phalanx.core.errors import CoreError
from phalanx.core.events import Placed
from phalanx.core.reasons import Reason
from phalanx.engine.errors import NotLeading, Unavailable
from phalanx.engine.picture import Picture
from phalanx.engine.reign import Reign
from phalanx.engine.settings import EngineSettings
from phalanx.engine.turn import Turn
from phalanx.engine.watching import UNWATCHED, Watcher
from phalanx.plan.cycle import plan
from phalanx.plan.snapshot import Plan, Snapshot

Planner = Callable[[Snapshot], Awaitable[Plan]]


async def plan_inline(snapshot: Snapshot) -> Plan:
    """In the loop itself: for simulations, where every run has to be the same."""
    return plan(snapshot)


async def plan_beside(snapshot: Snapshot) -> Plan:
    """In a thread, so that the loop goes on answering."""
    return await asyncio.to_thread(plan, snapshot)


class Planning:
    def __init__(
        self,
        reign: Reign,
        picture: Picture,
        planner: Planner,
        settings: EngineSettings,
        watcher: Watcher = UNWATCHED,
    ) -> None:
        self._watcher = watcher
        self._reign = reign
        self._picture = picture
        self._planner = planner
        self._settings = settings
        self._changed = asyncio.Event()
        self._changed.set()
        #: Why each waiting job waits, as of the last plan.
        self.reasons: Mapping[str, Reason] = {}
        #: Decisions that no longer held when they came to be applied, by cause.
        self.rejected: Counter[str] = Counter()

    def observe(self, turn: Turn) -> None:
        self._picture.note(turn)
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
            await asyncio.sleep(self._settings.plan_debounce_s)
            self._changed.clear()
            began = loop.time()
            try:
                await self._plan_once()
            except (NotLeading, Unavailable):
                # Whoever leads next plans; if the lease was only late, it is we, a tick later.
                self._changed.set()
                await asyncio.sleep(self._settings.plan_tick_s)
            await asyncio.sleep(loop.time() - began)

    async def _plan_once(self) -> None:
        snapshot = self._picture.snapshot(self._reign.tell_time(), self._settings.starve_after)
        began = asyncio.get_running_loop().time()
        made = await self._planner(snapshot)
        self._watcher.planned(asyncio.get_running_loop().time() - began, snapshot, made)
        self.reasons = made.reasons
        if made.decisions:
            await self._reign.do(lambda turn: self._carry_out(turn, made))

    def _carry_out(self, turn: Turn, made: Plan) -> None:
        for decision in made.decisions:
            try:
                turn.apply(Placed(decision.placements))
            except CoreError as error:
                self.rejected[type(error).__name__] += 1
                self._watcher.rejected(type(error).__name__)
