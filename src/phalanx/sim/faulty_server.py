"""Two servers with one database, and random faults: crashes, freezes, a store that fails."""

import asyncio
from random import Random

from phalanx.core.time_units import SECOND, Micros
from phalanx.engine.engine import Engine
from phalanx.engine.settings import EngineSettings
from phalanx.sim.faulty_store import SharedDatabase
from phalanx.sim.server import SimulatedServer

#: The wall clock at the start of a simulation.
START: Micros = 1_700_000_000 * SECOND


class FaultyServers:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311
        loop = asyncio.get_running_loop()
        self.database = SharedDatabase(lambda: START + int(loop.time() * SECOND))
        settings = EngineSettings()
        self.servers = [
            SimulatedServer(name, self.random, self.database, settings)
            for name in ("north", "south")
        ]

    def boot(self) -> None:
        for server in self.servers:
            server.boot()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def check_alive(self) -> None:
        """Raise AssertionError if a bug has ended an engine's task."""
        for server in self.servers:
            server.check_alive()

    def leader(self) -> Engine | None:
        engines = (server.engine for server in self.servers if server.is_up)
        return next((engine for engine in engines if engine.is_leading), None)

    async def inject_fault(self) -> None:
        server = self.random.choice(self.servers)
        kind = self.random.random()
        if kind < 0.5 and server.is_up:
            server.kill()
            await asyncio.sleep(self.random.uniform(0, 20))
            server.boot()
        elif kind < 0.75:
            server.store.awake.clear()
            await asyncio.sleep(self.random.uniform(0, 20))
            server.store.awake.set()
        else:
            self.database.fault_rate = 0.3
            await asyncio.sleep(self.random.uniform(0, 20))
            self.database.fault_rate = 0.0
