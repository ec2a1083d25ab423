"""A simulated server: the production engine with a faulty connection to the database.

It can be killed, frozen beyond its lease, and resumed.
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
from phalanx.engine.telemetry import TelemetryFanout
from phalanx.engine.turn import Turn
from phalanx.sim.faulty_store import FaultyStore, SharedDatabase


class SimulatedServer:
    def __init__(
        self, name: str, random: Random, database: SharedDatabase, settings: EngineSettings
    ) -> None:
        self.name = name
        self._random = random
        self._database = database
        self._settings = settings
        self._ids = 0
        self._task: asyncio.Task[None] | None = None
        self.store: FaultyStore
        self.engine: Engine
        self.agent_sync: AgentSync

    def boot(self) -> None:
        """Start the server as a new process, without memory of an earlier one."""
        self.store = FaultyStore(self._random, self._database)
        host = HostEnvironment(self.name, f"http://{self.name}", self._database.clock, self._new_id)
        observers: list[Callable[[Turn], None]] = [_check]
        self.engine = Engine(
            self.store, host, self._settings, planner=plan_inline, observers=observers
        )
        self.engine.telemetry = _StrictTelemetry()
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
        """Raise AssertionError if a bug has ended the engine's task."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            error = self._task.exception()
            raise AssertionError(f"bug: server {self.name} crashed") from error


class _StrictTelemetry(TelemetryFanout):
    """Ends the simulation where a server would log a bug and continue."""

    def timer_refused(self, event: str, error: str) -> None:
        raise AssertionError(f"bug: timer {event} was refused: {error}")


def _check(turn: Turn) -> None:
    invariants.check(turn.cluster)
