"""Crons across leaders that die, freeze and lose their store: no time may be run twice."""

import asyncio
from collections import Counter
from random import Random

from phalanx.core import events
from phalanx.core.records import CronDenied
from phalanx.core.spec.job import MINUTE, SECOND, Micros
from phalanx.core.spec.validation import job_spec
from phalanx.engine.engine import Engine
from phalanx.engine.errors import NotLeading, Unavailable
from phalanx.engine.settings import EngineSettings
from phalanx.sim.faults import Faults
from phalanx.sim.server import SimulatedServer
from phalanx.store import rows

_BEGIN: Micros = 1_700_000_000 * SECOND
_HOUR_S = 3600.0
_CRON = job_spec(
    {
        "name": "often",
        "schedule": {"cron": "* * * * *", "concurrency": "allow", "keep": {"done": 1000}},
        "roles": {"a": {"command": "x"}},
    }
)


class _Scene:
    """Two servers on one database, and somebody who breaks things."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311
        loop = asyncio.get_running_loop()
        self.faults = Faults(lambda: _BEGIN + int(loop.time() * SECOND))
        settings = EngineSettings()
        self.servers = [
            SimulatedServer(name, self.random, self.faults, settings) for name in ("north", "south")
        ]

    def leader(self) -> Engine | None:
        engines = (server.engine for server in self.servers if server.is_up)
        return next((engine for engine in engines if engine.is_leading), None)

    async def tell(self, event: events.Event) -> None:
        """Until somebody has taken it."""
        while True:
            leader = self.leader()
            try:
                if leader is not None:
                    await leader.apply(event)
                    return
            except (NotLeading, Unavailable):
                pass
            await asyncio.sleep(0.5)

    async def break_something(self) -> None:
        server = self.random.choice(self.servers)
        what = self.random.random()
        if what < 0.5 and server.is_up:
            server.kill()
            await asyncio.sleep(self.random.uniform(0, 20))
            server.boot()
        elif what < 0.75:
            server.store.awake.clear()
            await asyncio.sleep(self.random.uniform(0, 20))
            server.store.awake.set()
        else:
            self.faults.rate = 0.3
            await asyncio.sleep(self.random.uniform(0, 20))
            self.faults.rate = 0.0

    def has_denied(self) -> bool:
        """Whether the job of a run was refused."""
        found = self.faults.database.records.values()
        return any(isinstance(rows.record_from(row.doc), CronDenied) for row in found)

    def fired(self) -> Counter[int]:
        """How often each time was run, by the minute since the beginning."""
        jobs = (rows.job_from(row.doc) for row in self.faults.database.jobs.values())
        return Counter(((job.due_at or 0) - _BEGIN) // MINUTE for job in jobs if job.cron)


async def simulate_crons(seed: int) -> list[int]:
    """An hour with a cron of every minute: the minutes that were run. Raises AssertionError if one
    was run twice."""
    scene = _Scene(seed)
    for server in scene.servers:
        server.boot()
    await scene.tell(events.CronSet(_CRON))
    loop = asyncio.get_running_loop()
    while loop.time() < _HOUR_S:
        await scene.break_something()
        await asyncio.sleep(scene.random.uniform(0, 30))
        for server in scene.servers:
            server.check_alive()
    await asyncio.sleep(120.0)
    for server in scene.servers:
        server.kill()
    fired = scene.fired()
    # A second run of a time would be refused for its name; it must not even be tried.
    if scene.has_denied() or any(count > 1 for count in fired.values()):
        raise AssertionError(f"bug: times of a cron were run twice: {fired}")
    return sorted(fired)
