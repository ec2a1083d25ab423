"""Crons on servers that crash, freeze and lose their store: no scheduled time may run twice."""

import asyncio
from collections import Counter
from random import Random

from phalanx.core import events
from phalanx.core.records import CronDenied
from phalanx.core.spec.validation import job_spec
from phalanx.core.time_units import MINUTE, SECOND, Micros
from phalanx.engine.engine import Engine
from phalanx.engine.errors import NotLeading, Unavailable
from phalanx.engine.settings import EngineSettings
from phalanx.sim.faulty_store import SharedDatabase
from phalanx.sim.server import SimulatedServer
from phalanx.store import rows

_START: Micros = 1_700_000_000 * SECOND
_HOUR_S = 3600.0
_CRON = job_spec(
    {
        "name": "every-minute",
        "schedule": {"cron": "* * * * *", "concurrency": "allow", "keep": {"done": 1000}},
        "roles": {"a": {"command": "x"}},
    }
)


class _CronSimulation:
    """Two servers with one database, and random faults."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311
        loop = asyncio.get_running_loop()
        self.database = SharedDatabase(lambda: _START + int(loop.time() * SECOND))
        settings = EngineSettings()
        self.servers = [
            SimulatedServer(name, self.random, self.database, settings)
            for name in ("north", "south")
        ]

    def leader(self) -> Engine | None:
        engines = (server.engine for server in self.servers if server.is_up)
        return next((engine for engine in engines if engine.is_leading), None)

    async def apply(self, event: events.Event) -> None:
        """Apply an event, and retry until a leader has acknowledged it."""
        while True:
            leader = self.leader()
            try:
                if leader is not None:
                    await leader.apply(event)
                    return
            except (NotLeading, Unavailable):
                pass
            await asyncio.sleep(0.5)

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

    def has_denied(self) -> bool:
        """Whether a run of the cron was denied."""
        records = self.database.content.records.values()
        return any(isinstance(rows.record_from(row.doc), CronDenied) for row in records)

    def runs_by_minute(self) -> Counter[int]:
        """The number of runs for each scheduled minute since the start."""
        jobs = (rows.job_from(row.doc) for row in self.database.content.jobs.values())
        return Counter(((job.due_at or 0) - _START) // MINUTE for job in jobs if job.cron)


async def simulate_crons(seed: int) -> list[int]:
    """Simulate an hour with a cron that runs every minute; return the minutes that ran.

    Raises AssertionError if a minute ran twice.
    """
    simulation = _CronSimulation(seed)
    for server in simulation.servers:
        server.boot()
    await simulation.apply(events.CronSet(_CRON))
    loop = asyncio.get_running_loop()
    while loop.time() < _HOUR_S:
        await simulation.inject_fault()
        await asyncio.sleep(simulation.random.uniform(0, 30))
        for server in simulation.servers:
            server.check_alive()
    await asyncio.sleep(120.0)
    for server in simulation.servers:
        server.kill()
    runs = simulation.runs_by_minute()
    # A second run of a minute would be denied for its name; it must not even be attempted.
    if simulation.has_denied() or any(count > 1 for count in runs.values()):
        raise AssertionError(f"bug: scheduled times of a cron ran twice: {runs}")
    return sorted(runs)
