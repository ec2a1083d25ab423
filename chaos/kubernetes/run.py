"""One run: gangs come and go, schedulers are killed or nodes disappear, and a checker looks on."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from tests.kubernetes.control_plane import ApiServer
from tests.kubernetes.pool import Pool

from chaos.kubernetes.checker import RuleViolation
from chaos.kubernetes.gangs import random_gang
from chaos.kubernetes.schedulers import KillPoint, SchedulerPair, Write
from chaos.kubernetes.world import KubeWorld

NODES = 8
#: Gangs that exist at once, about twice as many as fit.
GANGS = 14
GANG_TIMEOUT_S = 15.0
#: Longer than any step takes on a busy machine.
PATIENCE_S = 120.0
#: A takeover on a busy machine counts towards the time in which a gang may be bound in part.
_TAKEOVER_S = 60.0
#: A leader that writes nothing for this long has nothing to write.
_QUIET_S = 1.0
#: After so long the watch shows what the API server did last for a killed scheduler.
_SHOWN_S = 0.2


class KubeRunResult(NamedTuple):
    violations: list[RuleViolation]
    seconds: float
    kills: Counter[Write]  #: by what the killed scheduler wrote last
    left_partial: int  #: kills after which a gang was bound in part
    takeovers: list[float]
    gangs: int
    binds: int
    rounds: int
    evictions: int
    node_losses: int


class KubeRun:
    """Gangs and faults in an order that follows from the seed."""

    def __init__(self, api: ApiServer, pool: Pool, folder: Path, seed: int) -> None:
        #: Only this run draws from it, in its own order: the same seed gives the same faults.
        self._chance = random.Random(seed)
        limit_s = GANG_TIMEOUT_S + _TAKEOVER_S
        self._world = KubeWorld(pool, NODES, limit_s, random.Random(seed))
        self._schedulers = SchedulerPair(api, pool, folder, GANG_TIMEOUT_S)
        self._gangs = 0
        self._kills: Counter[Write] = Counter()
        self._left_partial = 0
        self._node_losses = 0

    async def kill_schedulers(self, kills: int) -> KubeRunResult:
        """Kill the leader at so many random points while it binds and evicts."""
        return await self._run(lambda: self._kill(kills))

    async def churn(self, seconds: float) -> KubeRunResult:
        """Create and delete gangs, and let nodes go and come back, for so long."""
        return await self._run(lambda: self._churn(seconds))

    async def _run(self, faults: Callable[[], Coroutine[Any, Any, None]]) -> KubeRunResult:
        began = time.monotonic()
        history = self._world.history
        try:
            await self._world.start()
            async with self._schedulers.running(PATIENCE_S):
                await faults()
                violations = await self._end()
        finally:
            await self._world.stop()
        return KubeRunResult(
            [*history.violations, *violations],
            time.monotonic() - began,
            self._kills,
            self._left_partial,
            self._schedulers.takeovers,
            self._gangs,
            history.binds,
            history.rounds,
            len(history.evictions),
            self._node_losses,
        )

    async def _kill(self, kills: int) -> None:
        for _ in range(GANGS):
            self._change_gangs()
        while self._kills.total() < kills:
            for _ in range(self._chance.randint(1, 4)):
                self._change_gangs()
            [kind] = self._chance.choices([*Write], weights=(5, 1, 2, 3))
            point = KillPoint(kind, self._chance.randint(1, 4), self._chance.random() < 0.4)
            if not await self._schedulers.kill_leader_at(point, _QUIET_S):
                continue  # nothing is written; other gangs change that
            self._kills[kind] += 1
            await asyncio.sleep(_SHOWN_S)
            self._left_partial += self._world.history.partial_rounds() > 0
            await self._schedulers.take_over(PATIENCE_S)
            self._check()

    async def _churn(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            match self._chance.randrange(10):
                case 0:
                    await self._lose_node()
                case 1:
                    await self._bring_node_back()
                case _:
                    self._change_gangs()
            await asyncio.sleep(self._chance.uniform(0, 0.6))
            self._check()
        while len(self._world.up) < NODES:
            await self._bring_node_back()

    def _check(self) -> None:
        self._world.check()
        self._schedulers.check()

    def _change_gangs(self) -> None:
        """Create a gang; if there are many, delete one."""
        self._gangs += 1
        self._world.add_gang(random_gang(self._gangs, self._chance))
        if len(self._world.wanted) > GANGS:
            self._world.remove_gang(self._chance.choice(sorted(self._world.wanted)))

    async def _lose_node(self) -> None:
        if len(self._world.up) > NODES // 2:
            self._node_losses += 1
            await self._world.remove_node(self._chance.choice(sorted(self._world.up)))

    async def _bring_node_back(self) -> None:
        down = sorted({*self._world.nodes} - self._world.up)
        if down:
            await self._world.add_node(self._chance.choice(down))

    async def _end(self) -> list[RuleViolation]:
        """Wait until nothing has to happen any more; what is missing if that takes too long."""
        world = self._world
        until = time.monotonic() + PATIENCE_S
        while True:
            missing = world.history.unsettled(world.wanted.values(), world.up)
            unused = world.history.unused_evictions()
            if not (missing or unused) or time.monotonic() > until:
                return [*missing, *unused]
            await asyncio.sleep(0.2)
            self._check()
