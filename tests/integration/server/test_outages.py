"""PostgreSQL fails under load: no worker is declared lost, and nothing acknowledged is lost."""

import asyncio
import signal
from itertools import count

import pytest

from phalanx.store.postgres import PostgresStore
from phalanx.store.protocol import StoreError
from tests.compliance.backends import PostgresServer
from tests.compliance.proxy import Proxy
from tests.integration.server.conftest import Frozen
from tests.integration.server.load import FAST, a_pair, blame, loaded
from tests.integration.server.processes import Start
from tests.integration.server.waiting import pass_time


async def test_postgres_restarted_under_load_costs_nothing(
    start: Start, postgres: PostgresServer, dsn: str
) -> None:
    server = await start(dsn, "only", *FAST)
    await server.line("leading")
    async with loaded(server) as load:
        await postgres.restart()
        await load.more(10)
    assert await blame(postgres, dsn) == []


async def test_postgres_hung_for_longer_than_workers_may_be_silent_costs_nothing(
    start: Start, postgres: PostgresServer, dsn: str
) -> None:
    first, second = await a_pair(start, dsn, *FAST, "--lost-after=15s")
    async with loaded(first, second) as load:
        with Frozen(postgres):
            await pass_time(18)
        await load.more(10)
    assert await blame(postgres, dsn) == []


async def test_a_database_that_wakes_up_does_not_make_a_gone_server_the_leader(
    postgres: PostgresServer, dsn: str
) -> None:
    store = PostgresStore(dsn, timeout_s=60)
    await store.open()
    # It has sent the statement before, so that one message is enough.
    assert await store.lead("impatient", "http://impatient", 1) is not None
    store._connections.timeout_s = 0.5
    with Frozen(postgres), pytest.raises(StoreError):
        await store.lead("impatient", "http://impatient", 60_000_000)
    patient = PostgresStore(dsn, timeout_s=60)
    await patient.open()
    assert await patient.lead("patient", "http://patient", 60_000_000) is not None
    await store.close()
    await patient.close()


async def test_a_second_sigterm_leaves_at_once_though_the_store_hangs(
    start: Start, postgres: PostgresServer, dsn: str
) -> None:
    server = await start(dsn, "only", "--stop-wait=1h")
    await server.line("leading")
    with Frozen(postgres):
        server.send(signal.SIGTERM)
        await server.line("stopping")
        server.send(signal.SIGTERM)
        assert await server.ended() == 128 + signal.SIGTERM


async def test_one_sigterm_exits_in_time_while_the_store_hangs(
    start: Start, postgres: PostgresServer, dsn: str
) -> None:
    server = await start(dsn, "only", "--stop-wait=1s")
    await server.line("leading")
    with Frozen(postgres):
        server.send(signal.SIGTERM)
        await server.line("stopped before all requests were answered")
        assert await server.ended() == 1


async def test_a_server_waits_for_a_postgres_that_is_down_at_its_start(
    start: Start, postgres: PostgresServer
) -> None:
    backend = await postgres.backend()
    proxy, attempts = Proxy(postgres.address), count(1)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if next(attempts) <= 2:  # as if no process listened
            writer.transport.abort()
        else:
            await proxy.connect(reader, writer)

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        server = await start(postgres.dsn(schema=backend.schema, through=port), "early")
        await server.line("leading")
        assert len(server.seen("database cannot be reached; trying again")) == 2
        await server.kill()
        await proxy.hang_up()
