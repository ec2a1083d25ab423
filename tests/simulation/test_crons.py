"""Crons across leaders that die, freeze and lose their store: no time is run twice."""

import asyncio
from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from phalanx.core import events
from phalanx.core.spec import MINUTE, SECOND, Micros
from phalanx.core.validation import job_spec
from phalanx.engine.engine import Engine
from phalanx.engine.errors import NotLeading, Unavailable
from phalanx.engine.settings import EngineSettings
from phalanx.sim.faults import Faults
from phalanx.sim.loop import run_virtually
from phalanx.sim.server import Server
from phalanx.store import rows

BEGIN: Micros = 1_700_000_000 * SECOND
HOUR_S = 3600.0
CRON = job_spec(
    {
        "name": "often",
        "schedule": {"cron": "* * * * *", "concurrency": "allow", "keep": {"done": 1000}},
        "roles": {"a": {"command": "x"}},
    }
)


class Scene:
    """Two servers on one database, and somebody who breaks things."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311
        loop = asyncio.get_running_loop()
        self.faults = Faults(lambda: BEGIN + int(loop.time() * SECOND))
        settings = EngineSettings()
        self.servers = [
            Server(name, self.random, self.faults, settings) for name in ("north", "south")
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

    def fired(self) -> Counter[int]:
        """How often each time was run, by the minute since the beginning."""
        jobs = (rows.job_from(row.doc) for row in self.faults.database.jobs.values())
        return Counter(((job.due_at or 0) - BEGIN) // MINUTE for job in jobs if job.cron)


async def _an_hour(seed: int) -> Counter[int]:
    scene = Scene(seed)
    for server in scene.servers:
        server.boot()
    await scene.tell(events.CronSet(CRON))
    loop = asyncio.get_running_loop()
    while loop.time() < HOUR_S:
        await scene.break_something()
        await asyncio.sleep(scene.random.uniform(0, 30))
        for server in scene.servers:
            server.check_alive()
    await asyncio.sleep(120.0)
    for server in scene.servers:
        server.kill()
    return scene.fired()


@pytest.mark.parametrize("seed", range(8))
def test_no_time_is_run_twice_and_one_makes_up_for_those_that_nobody_saw(seed: int) -> None:
    fired = run_virtually(_an_hour(seed))
    assert fired
    assert set(fired.values()) == {1}
    # Nobody leads for half a minute at most, so at most one time in a row is passed over.
    times = sorted(fired)
    assert max(later - earlier for earlier, later in pairwise(times)) <= 2
    assert times[-1] - times[0] >= 55
