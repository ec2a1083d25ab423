"""Commits that are interrupted at every point: an answer is done, not done or unknown, and true."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from phalanx.core.time_units import HOUR
from phalanx.store.protocol import Batch, CommitFailed, OutcomeUnknown, Store
from tests.compliance.backends import Backend
from tests.integration.api.serving import Running, serving

JOB = {"name": "once", "roles": {"a": {"command": "true"}}}


async def nothing() -> None:
    """The hook of a store that does not fail."""


class Interruptible:
    """A store whose commits can be interrupted before and after they take effect."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.before: Callable[[], Awaitable[None]] = nothing
        self.after: Callable[[], Awaitable[None]] = nothing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, term: int, batch: Batch) -> None:
        has_job = bool(batch.jobs)
        if has_job:
            await self.before()
        await self._store.commit(term, batch)
        if has_job:
            await self.after()


def once(error: Exception) -> Callable[[], Awaitable[None]]:
    """A hook that raises this error the first time."""
    errors = [error]

    async def hook() -> None:
        if errors:
            raise errors.pop()

    return hook


@asynccontextmanager
async def interrupted(store: Store) -> AsyncIterator[tuple[Running, Interruptible]]:
    wrapped = Interruptible(store)
    async with serving(cast("Store", wrapped)) as server:
        yield server, wrapped


async def is_stored(store: Store) -> bool:
    term = await store.lead("reader", "http://reader", HOUR)
    assert term is not None
    jobs = (await store.load(term)).jobs
    await store.resign(term)
    return any(job.name == "once" for job in jobs)


async def submit(server: Running, key: str = "k") -> tuple[int, Any]:
    reply = await server.call("POST", "/jobs", JOB, idempotency_key=key)
    return reply.status, reply.body


async def test_a_commit_that_outlasts_the_lease_is_answered_as_done(store: Store) -> None:
    async with interrupted(store) as (server, faulty):
        lease = server.writer._lease

        async def the_lease_ends() -> None:
            lease._until_s = 0.0

        faulty.after = the_lease_ends
        status, body = await submit(server)
        assert (status, body["name"]) == (201, "once")
        reply = await server.call("GET", f"/jobs/{body['id']}")
        assert reply.body["error"]["code"] == "no_leader"  # a read needs the lease


@pytest.mark.parametrize("point", ["before", "after"])
async def test_a_commit_that_is_interrupted_is_answered_as_unknown(
    store: Store, backend: Backend, point: str
) -> None:
    async with interrupted(store) as (server, faulty):
        reached = asyncio.Event()

        async def hang() -> None:
            reached.set()
            await asyncio.Event().wait()

        setattr(faulty, point, hang)
        submitting = asyncio.create_task(submit(server))
        await reached.wait()
        # The server ends its term while the commit is under way.
        running = server.engine._leadership._running
        assert running is not None
        running.cancel()
        status, body = await submitting
        assert (status, body["error"]["code"]) == (504, "outcome_unknown")
        assert "the change may or may not have been made" in body["error"]["message"]
        assert "same Idempotency-Key" in body["error"]["message"]
    await backend.die(store)
    await backend.advance_clock(2 * HOUR)
    other = backend.handle()
    await other.open()
    was_stored = await is_stored(other)
    assert was_stored == (point == "after")
    async with serving(other) as again:
        status, body = await submit(again)
        assert status == (200 if was_stored else 201)
        assert (await submit(again))[1]["id"] == body["id"]
    await other.close()


async def test_a_commit_that_failed_is_answered_as_not_done(store: Store) -> None:
    async with interrupted(store) as (server, faulty):
        faulty.before, writer = once(CommitFailed("the disk is full")), server.writer
        status, body = await submit(server)
        assert (status, body["error"]["code"]) == (503, "unavailable")
        assert "nothing was changed" in body["error"]["message"]
        await server.lead(after=writer)
        assert (await server.call("GET", "/jobs")).body["jobs"] == []
        assert (await submit(server))[0] == 201


@pytest.mark.parametrize("point", ["before", "after"])
async def test_a_lost_connection_is_looked_up_and_answered_as_done(
    store: Store, point: str
) -> None:
    async with interrupted(store) as (server, faulty):
        setattr(faulty, point, once(OutcomeUnknown("the connection was lost")))
        status, body = await submit(server)
        assert status == 201
        again = await submit(server)
        assert again[0] == 200
        assert again[1]["id"] == body["id"]
        assert len((await server.call("GET", "/jobs")).body["jobs"]) == 1
