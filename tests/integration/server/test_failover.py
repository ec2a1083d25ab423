"""Two servers on one PostgreSQL: the leader is killed, frozen and woken under load."""

import asyncio
import signal

from tests.compliance.backends import PostgresServer
from tests.integration.server.processes import Start
from tests.integration.server.traffic import Agents, Fleet, Submitter, all_done
from tests.integration.server.waiting import eventually

#: The usual settings, five times as fast.
FAST = ("--lease=2s", "--sync-wait=2s", "--lost-after=6s", "--plan-tick=1s")
GANG = {"roles": {"worker": {"command": "true", "replicas": 2, "resources": {"gpu": 1}}}}

#: What must not be in any story when nothing but a server fails.
BLAME = ("WorkerLost", "TaskFailed", "DrainBegan", "TaskStopped", "StopTimedOut")


async def blame(postgres: PostgresServer, dsn: str) -> list[str]:
    """The records that blame a worker or a task for something."""
    schema = dsn.partition("search_path=")[2].partition("&")[0]
    rows = await postgres.execute(f"SELECT doc FROM {schema}.records ORDER BY seq")  # noqa: S608
    return [doc for (doc,) in rows if any(f'"kind":"{kind}"' in doc for kind in BLAME)]


async def check(fleet: Fleet, agents: Agents, jobs: list[str]) -> None:
    """Nothing that was acknowledged is missing, and nothing ran twice."""
    await all_done(fleet, jobs)
    ran = agents.ran()
    assert set(ran.values()) == {1}
    tasks = [task for task, _ in ran]
    assert sorted(tasks) == sorted(set(tasks)), "a task ran in two attempts, and none had failed"
    assert set(tasks) >= {f"{job}.{index}" for job in jobs for index in range(2)}


async def test_a_standby_leads_within_15_seconds_of_a_kill(
    start: Start, postgres: PostgresServer, dsn: str
) -> None:
    first = await start(dsn, "first")
    await first.line("leading")
    second = await start(dsn, "second")
    await second.line("standing by")
    fleet = Fleet(first.url, second.url)
    agents = Agents(fleet, 3)
    agents.boot()
    load = [Submitter(fleet, **GANG) for _ in range(4)]
    await asyncio.gather(*(each.more(10) for each in load))
    first.send(signal.SIGKILL)
    await second.line("leading", deadline_s=15)
    await asyncio.gather(*(each.more(10) for each in load))
    jobs = [job for each in load for job in await each.stop()]
    await check(fleet, agents, jobs)
    assert await blame(postgres, dsn) == []
    agents.crash()
    await fleet.close()


async def test_a_leader_that_was_frozen_past_its_lease_writes_nothing_and_stops_nothing(
    start: Start, postgres: PostgresServer, dsn: str
) -> None:
    first = await start(dsn, "first", *FAST)
    await first.line("leading")
    second = await start(dsn, "second", *FAST)
    await second.line("standing by")
    fleet = Fleet(first.url, second.url)
    agents = Agents(fleet, 3)
    agents.boot()
    load = [Submitter(fleet, **GANG) for _ in range(4)]
    await asyncio.gather(*(each.more(10) for each in load))
    first.send(signal.SIGSTOP)
    leading = await second.line("leading")
    first.send(signal.SIGCONT)
    await first.line("standing by")
    assert not await first.ready()
    await asyncio.gather(*(each.more(10) for each in load))
    jobs = [job for each in load for job in await each.stop()]
    await check(fleet, agents, jobs)
    assert await blame(postgres, dsn) == []
    assert [line["term"] for line in second.seen("leading")] == [leading["term"]]
    assert len(first.seen("leading")) == 1
    agents.crash()
    await fleet.close()


async def test_a_leader_that_is_asked_to_stop_hands_over_at_once(start: Start, dsn: str) -> None:
    first = await start(dsn, "first")
    await first.line("leading")
    second = await start(dsn, "second")
    await second.line("standing by")
    fleet = Fleet(first.url, second.url)
    agents = Agents(fleet, 3)
    agents.boot()
    load = [Submitter(fleet, **GANG) for _ in range(4)]
    await asyncio.gather(*(each.more(10) for each in load))
    first.send(signal.SIGTERM)
    assert await first.ended(5) == 0
    await second.line("leading", deadline_s=2)
    await asyncio.gather(*(each.more(5) for each in load))
    jobs = [job for each in load for job in await each.stop()]
    await check(fleet, agents, jobs)
    agents.crash()
    await fleet.close()


async def test_a_standby_names_the_leader(start: Start, dsn: str) -> None:
    first = await start(dsn, "first", "--advertise-url=http://first.example:1234")
    await first.line("leading")
    second = await start(dsn, "second")
    line = await second.line("standing by")
    assert (line["leader"], line["url"]) == ("first", "http://first.example:1234")
    await eventually(first.ready, 5)
    assert not await second.ready()
