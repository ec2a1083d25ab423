"""Servers under load: agents that run gangs, clients that submit them, and what must hold after."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.compliance.backends import PostgresServer
from tests.integration.server.processes import ServerProcess, Start
from tests.integration.server.traffic import Agents, Fleet, Submitter, all_done

#: Faster than usual, but no worker is lost because a process of the test is slow.
FAST = ("--sync-wait=2s", "--lost-after=1m", "--plan-tick=1s")

_GANG = {"roles": {"worker": {"command": "true", "replicas": 2, "resources": {"gpu": 1}}}}
#: What must not be in any story when nothing but a server fails.
_BLAME = ("WorkerDeclaredLost", "TaskFailed", "GangStopping", "TaskStopped", "TaskStopTimedOut")


async def a_pair(start: Start, store: str, *flags: str) -> tuple[ServerProcess, ServerProcess]:
    """A leader and a standby."""
    first = await start(store, "first", *flags)
    await first.line("leading")
    second = await start(store, "second", *flags)
    await second.line("standing by")
    return first, second


class Load:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._agents = Agents(fleet, 3)
        self._agents.boot()
        self._clients = [Submitter(fleet, **_GANG) for _ in range(4)]

    async def more(self, count: int) -> None:
        """Until so many more jobs of each client are acknowledged."""
        await asyncio.gather(*(client.more(count) for client in self._clients))

    async def check(self) -> None:
        """No more is submitted. Nothing that was acknowledged is missing, and nothing ran twice."""
        jobs = [job for client in self._clients for job in await client.stop()]
        await all_done(self.fleet, jobs)
        ran = self._agents.ran()
        assert set(ran.values()) == {1}
        tasks = [task for task, _ in ran]
        assert len(tasks) == len(set(tasks)), "a task ran in two attempts, and none had failed"
        assert set(tasks) >= {f"{job}.{index}" for job in jobs for index in range(2)}

    def crash(self) -> None:
        self._agents.crash()


@asynccontextmanager
async def loaded(*servers: ServerProcess) -> AsyncIterator[Load]:
    """Servers under load. At the end of the block every submitted job must be done."""
    fleet = Fleet(*(server.url for server in servers))
    load = Load(fleet)
    await load.more(10)
    yield load
    await load.check()
    load.crash()
    await fleet.close()


async def blame(postgres: PostgresServer, dsn: str) -> list[str]:
    """The records that blame a worker or a task for something."""
    schema = dsn.partition("search_path=")[2].partition("&")[0]
    rows = await postgres.execute(f"SELECT doc FROM {schema}.records ORDER BY seq")  # noqa: S608
    return [doc for (doc,) in rows if any(f'"kind":"{kind}"' in doc for kind in _BLAME)]
