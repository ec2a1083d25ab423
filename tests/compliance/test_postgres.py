"""Faults of PostgreSQL: a connection that breaks or goes silent, a server that restarts."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import pytest
import pytest_asyncio

from phalanx.store import postgres_connections
from phalanx.store.postgres import PostgresStore
from phalanx.store.protocol import (
    Batch,
    CommitFailed,
    OutcomeUnknown,
    Store,
    StoreError,
    Token,
)
from tests.builders import a_job, a_record, a_task, a_worker
from tests.compliance.backends import PATIENCE_S, PostgresBackend
from tests.compliance.conftest import LEASE
from tests.compliance.proxy import COMMIT, WORKERS, Fault, Proxy, proxy_to

T = TypeVar("T")

BATCH = Batch("b-1", jobs=(a_job(),), workers=(a_worker(),), records=(a_record(1, job="j-1"),))


@pytest_asyncio.fixture
async def proxy(postgres_backend: PostgresBackend) -> AsyncIterator[Proxy]:
    async with proxy_to(postgres_backend.server.address) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def store(postgres_backend: PostgresBackend, proxy: Proxy) -> AsyncIterator[PostgresStore]:
    """A store whose connections go through the proxy."""
    store = postgres_backend.handle_through(proxy.port)
    await store.open()
    yield store
    await store.close()


class Timeouts:
    """The module asyncio as the store sees it: a test decides when its timeouts expire."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._latest: asyncio.Timeout | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def timeout(self, seconds: float) -> asyncio.Timeout:
        self._latest = asyncio.timeout(seconds)
        return self._latest

    async def after(self, fault: Fault, call: Coroutine[Any, Any, T]) -> T:
        """The result of a call; with SILENCE its timeout expires when a message is held back."""
        task = asyncio.create_task(call)
        if fault is Fault.SILENCE:
            await self._proxy.tripped.wait()
            self.expire()
        return await task

    def expire(self) -> None:
        assert self._latest is not None
        self._latest.reschedule(asyncio.get_running_loop().time())


@pytest.fixture
def timeouts(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Timeouts:
    timeouts = Timeouts(proxy)
    monkeypatch.setattr(postgres_connections, "asyncio", timeouts)
    return timeouts


async def _give_up_soon(store: PostgresStore) -> None:
    """From now on PostgreSQL ends a transaction on this connection whose client is silent."""
    async with store._connections.writing("set a timeout") as connection:
        await connection.execute("SET idle_in_transaction_session_timeout = '500ms'")


async def _is_there(store: Store, term: int) -> bool:
    """Whether the batch is stored. It is an error if only a part of it is."""
    rows = await store.load(term)
    records = await store.records(limit=10)
    parts = {bool(rows.jobs), bool(rows.workers), bool(records), rows.last_seq == 1}
    assert len(parts) == 1
    return parts.pop()


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.SILENCE])
async def test_a_connection_that_fails_half_way_fails_the_commit(
    store: PostgresStore, term: int, proxy: Proxy, timeouts: Timeouts, fault: Fault
) -> None:
    proxy.arm(WORKERS, fault)
    with pytest.raises(CommitFailed, match="b-1"):
        await timeouts.after(fault, store.commit(term, BATCH))
    assert proxy.tripped.is_set()
    assert not await store.has_batch("b-1")
    assert not await _is_there(store, term)
    await store.commit(term, BATCH)
    assert await _is_there(store, term)


@pytest.mark.parametrize(
    ("fault", "arrives"),
    [(Fault.CUT_BEFORE, False), (Fault.CUT_AFTER, True), (Fault.SILENCE, False)],
)
async def test_a_connection_that_fails_at_commit_leaves_the_outcome_unknown_until_has_batch(
    store: PostgresStore,
    term: int,
    proxy: Proxy,
    timeouts: Timeouts,
    *,
    fault: Fault,
    arrives: bool,
) -> None:
    await _give_up_soon(store)
    proxy.arm(COMMIT, fault)
    with pytest.raises(OutcomeUnknown, match="b-1"):
        await timeouts.after(fault, store.commit(term, BATCH))
    assert await store.has_batch("b-1") is arrives
    assert await _is_there(store, term) is arrives
    await store.commit(term, BATCH)
    assert await _is_there(store, term)


async def test_has_batch_is_final_even_if_the_commit_arrives_afterwards(
    store: PostgresStore, term: int, proxy: Proxy, timeouts: Timeouts
) -> None:
    await _give_up_soon(store)
    proxy.arm(COMMIT, Fault.SILENCE)
    with pytest.raises(OutcomeUnknown):
        await timeouts.after(Fault.SILENCE, store.commit(term, BATCH))
    # The transaction is still open on the server, and the message that completes it is on its way:
    # the answer must wait until the transaction can no longer complete.
    assert not await store.has_batch("b-1")
    await proxy.deliver_late()
    assert not await store.has_batch("b-1")
    assert not await _is_there(store, term)


async def test_has_batch_waits_for_a_commit_in_progress(
    store: PostgresStore, term: int, proxy: Proxy
) -> None:
    proxy.arm(COMMIT, Fault.SILENCE)
    commit = asyncio.create_task(store.commit(term, BATCH))
    await proxy.tripped.wait()
    commit.cancel()
    await asyncio.gather(commit, return_exceptions=True)
    asked = asyncio.create_task(store.has_batch("b-1"))
    await _until_someone_waits_for_a_lock(store)
    assert not asked.done()
    await proxy.deliver_late()
    assert await asked
    assert await _is_there(store, term)


async def _until_someone_waits_for_a_lock(store: PostgresStore) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await store._connections.fetch("SELECT 1 FROM pg_locks WHERE NOT granted"):
            pass


async def test_a_leader_that_falls_silent_half_way_does_not_keep_the_next_one_out(
    store: PostgresStore, postgres_backend: PostgresBackend, proxy: Proxy, timeouts: Timeouts
) -> None:
    term = await store.lead("s-1", "", 0)
    assert term == 1
    await _give_up_soon(store)
    other = postgres_backend.handle()
    await other.open()
    proxy.arm(COMMIT, Fault.SILENCE)
    commit = asyncio.create_task(store.commit(term, BATCH))
    await proxy.tripped.wait()
    timeouts.expire()
    later = await other.lead("s-2", "", LEASE)
    assert later == 2
    await proxy.deliver_late()
    with pytest.raises(OutcomeUnknown):
        await commit
    assert not await _is_there(other, later)
    await other.close()


@pytest.mark.parametrize("message", [WORKERS, COMMIT])
async def test_a_cancelled_commit_leaves_a_store_that_works(
    store: PostgresStore, term: int, proxy: Proxy, message: bytes
) -> None:
    await _give_up_soon(store)
    proxy.arm(message, Fault.SILENCE)
    commit = asyncio.create_task(store.commit(term, BATCH))
    await proxy.tripped.wait()
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    assert not await store.has_batch("b-1")
    await store.commit(term, BATCH)
    assert await _is_there(store, term)


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.SILENCE])
async def test_a_read_that_fails_says_so_and_the_next_one_works(
    store: PostgresStore, term: int, proxy: Proxy, fault: Fault
) -> None:
    await store.commit(term, BATCH)
    assert await store.job("j-1") == (a_job(), ())
    proxy.arm(b"j-1", fault)
    store._connections.timeout_s = 1
    with pytest.raises(StoreError, match="cannot read from PostgreSQL"):
        await store.job("j-1")
    store._connections.timeout_s = PATIENCE_S
    assert await store.job("j-1") == (a_job(), ())


@pytest.mark.parametrize(("fault", "arrives"), [(Fault.CUT_BEFORE, False), (Fault.CUT_AFTER, True)])
async def test_a_change_of_a_token_that_fails_at_commit_is_of_unknown_outcome(
    store: PostgresStore, proxy: Proxy, fault: Fault, arrives: bool
) -> None:
    proxy.arm(COMMIT, fault)
    with pytest.raises(OutcomeUnknown, match="cannot change the tokens"):
        await store.add_token(Token("ada", "admin", "digest", "phx_", 1))
    assert bool(await store.tokens()) == arrives


@pytest.mark.parametrize("fault", list(Fault))
async def test_leadership_over_a_broken_connection_is_an_error_and_can_be_retried(
    store: PostgresStore, term: int, proxy: Proxy, timeouts: Timeouts, fault: Fault
) -> None:
    proxy.arm(b"UPDATE leader", fault)
    with pytest.raises(StoreError, match="cannot renew leadership"):
        await timeouts.after(fault, store.renew(term, LEASE))
    await store.renew(term, LEASE)
    await store.commit(term, BATCH)


async def test_a_server_that_restarts_between_commits_fails_one_at_most(
    postgres_backend: PostgresBackend,
) -> None:
    if not postgres_backend.server.can_restart:
        pytest.skip("the server is not ours to restart")
    store = postgres_backend.handle()
    await store.open()
    term = await store.lead("s-1", "", LEASE)
    assert term is not None
    await store.commit(term, Batch("b-0", tasks=(a_task(),)))
    await postgres_backend.server.restart()
    try:
        await store.commit(term, BATCH)
    except CommitFailed:
        assert not await store.has_batch("b-1")
        await store.commit(term, BATCH)
    assert await _is_there(store, term)
    assert await store.has_batch("b-0")
    await store.close()


async def test_a_server_that_does_not_answer_is_an_error_with_its_reason() -> None:
    store = PostgresStore("postgresql://nobody@127.0.0.1:1/nothing", timeout_s=1)
    with pytest.raises(StoreError, match="cannot open PostgreSQL"):
        await store.open()


async def test_a_commit_on_a_closed_store_fails(store: PostgresStore, term: int) -> None:
    await store.close()
    with pytest.raises(CommitFailed, match="closed"):
        await store.commit(term, BATCH)
    with pytest.raises(StoreError, match="closed"):
        await store.job("j-1")


async def test_every_session_flushes_what_it_commits(store: PostgresStore) -> None:
    reading = await store._connections.fetch("SHOW synchronous_commit")
    assert reading[0][0] == "on"
    async with store._connections.writing("look") as connection:
        assert await connection.fetchval("SHOW synchronous_commit") == "on"


async def test_a_commit_takes_three_round_trips(store: PostgresStore, term: int) -> None:
    # The first batch of a connection also asks what an array is.
    await store.commit(term, Batch("b-0", tasks=(a_task(),)))
    statements: list[str] = []
    async with store._connections.writing("listen") as connection:
        connection.add_query_logger(lambda query: statements.append(query.query.split("(")[0]))
    await store.commit(
        term, Batch("b-1", jobs=(a_job(),), tasks=tuple(a_task(index=n) for n in range(1_000)))
    )
    await asyncio.sleep(0)  # asyncpg calls its listeners in the next iteration of the loop
    assert [" ".join(statement.split()[:3]) for statement in statements] == [
        "BEGIN",
        "WITH fence AS",
        "COMMIT",
    ]
