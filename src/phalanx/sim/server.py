"""A simulated server process: the production engine on its own way to the database.

It can be killed, frozen past its lease and woken, and reached over a network that loses messages.
"""

import asyncio
from collections.abc import Callable
from random import Random

from phalanx.core import invariants
from phalanx.engine.agent_sync import AgentSync
from phalanx.engine.engine import Engine
from phalanx.engine.host import HostEnvironment
from phalanx.engine.planner_loop import plan_inline
from phalanx.engine.settings import EngineSettings
from phalanx.engine.turn import Turn
from phalanx.sim.faults import Faults, FaultyStore


class SimulatedServer:
    def __init__(self, name: str, random: Random, faults: Faults, settings: EngineSettings) -> None:
        self.name = name
        self._random = random
        self._faults = faults
        self._settings = settings
        self._ids = 0
        self._task: asyncio.Task[None] | None = None
        self.store: FaultyStore
        self.engine: Engine
        self.agent_sync: AgentSync

    def boot(self) -> None:
        """A process that remembers nothing."""
        self.store = FaultyStore(self._random, self._faults)
        host = HostEnvironment(self.name, f"http://{self.name}", self._faults.clock, self._new_id)
        observers: list[Callable[[Turn], None]] = [_check]
        self.engine = Engine(
            self.store, host, self._settings, planner=plan_inline, observers=observers
        )
        self.agent_sync = AgentSync(self.engine, self.store)
        self.engine.observers.append(self.agent_sync.observe)
        self._task = asyncio.create_task(self.engine.run())

    def kill(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = None

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self.name}-{self._ids}-{self._random.getrandbits(32):08x}"

    @property
    def is_up(self) -> bool:
        return self._task is not None

    def check_alive(self) -> None:
        """A bug inside the engine ends its task; it must not end in silence."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            error = self._task.exception()
            raise AssertionError(f"bug: server {self.name} ended") from error


def _check(turn: Turn) -> None:
    invariants.check(turn.cluster)
