"""Two servers on one PostgreSQL: the leader is killed, frozen and woken under load."""

import signal

from phalanx.core.time_units import HOUR
from tests.compliance.backends import PostgresBackend, PostgresServer
from tests.integration.server.load import FAST, a_pair, blame, loaded
from tests.integration.server.processes import Start
from tests.integration.server.traffic import Fleet
from tests.integration.server.waiting import PATIENCE_S, eventually


async def test_a_standby_leads_after_the_leader_is_killed(
    start: Start, postgres: PostgresServer, database: PostgresBackend, dsn: str
) -> None:
    first, second = await a_pair(start, dsn, "--lease=1h")
    async with loaded(first, second) as load:
        await first.kill()
        await database.advance_clock(HOUR)
        await second.line("leading")
        await load.more(10)
    assert await blame(postgres, dsn) == []


async def test_a_leader_that_was_frozen_past_its_lease_writes_nothing_and_stops_nothing(
    start: Start, postgres: PostgresServer, dsn: str
) -> None:
    first = await start(dsn, "first", *FAST)
    await first.line("leading")
    # Its own lease does not end if it is slow.
    second = await start(dsn, "second", *FAST, "--lease=1h")
    await second.line("standing by")
    async with loaded(first, second) as load:
        first.send(signal.SIGSTOP)
        leading = await second.line("leading")
        first.send(signal.SIGCONT)
        await first.line("standing by")
        assert not await first.ready()
        await load.more(10)
    assert await blame(postgres, dsn) == []
    assert [line["term"] for line in second.seen("leading")] == [leading["term"]]
    assert len(first.seen("leading")) == 1


async def test_a_leader_that_is_stopped_hands_over_at_once(start: Start, dsn: str) -> None:
    first, second = await a_pair(start, dsn, "--lease=1h")
    async with loaded(first, second) as load:
        first.send(signal.SIGTERM)
        assert await first.ended() == 0
        await second.line("leading")
        await load.more(5)


async def test_acknowledged_output_survives_the_leader(
    start: Start, database: PostgresBackend, dsn: str
) -> None:
    first, second = await a_pair(start, dsn, *FAST, "--lease=1h")
    fleet = Fleet(first.url, second.url)
    await fleet.insist("POST", "/workers/register", json={"id": "w-1"})
    job = (await fleet.insist("POST", "/jobs", json={"command": "true"})).json()["id"]
    claim = await fleet.insist("GET", "/jobs/next", params={"worker_id": "w-1"})
    where = {"task": claim.json()["id"], "attempt": 1}

    async def bring(offset: int, data: bytes) -> int:
        path, params = "/workers/w-1/output", {**where, "offset": offset}
        answer = await fleet.insist("POST", path, params=params, content=data)
        wanted: int = answer.json()["next"]
        return wanted

    acknowledged = 0
    for number in range(100):
        acknowledged = await bring(acknowledged, b"line %d\n" % number)
    await first.kill()
    await database.advance_clock(HOUR)
    assert await bring(acknowledged, b"") == acknowledged
    await bring(acknowledged, b"the end\n")
    told = (await fleet.insist("GET", f"/jobs/{job}/logs")).text
    assert told.splitlines() == [*(f"line {number}" for number in range(100)), "the end"]
    assert len(second.seen("leading")) == 1
    await fleet.close()


async def test_a_standby_names_the_leader(start: Start, dsn: str) -> None:
    first = await start(dsn, "first", "--advertise-url=http://first.example:1234")
    await first.line("leading")
    second = await start(dsn, "second")
    line = await second.line("standing by")
    assert (line["leader"], line["url"]) == ("first", "http://first.example:1234")
    await eventually(first.ready, PATIENCE_S)
    assert not await second.ready()
