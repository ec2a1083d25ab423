"""The stream of all events: from now on, resumed, and after a resync."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from phalanx.api.services import Info
from phalanx.host.clock import wall_clock
from phalanx.store.memory import MemoryDatabase, MemoryStore
from tests.integration.api.serving import Running, serving
from tests.integration.api.test_jobs import submit
from tests.integration.api.test_tokens import Tokens


class Event(NamedTuple):
    id: int
    kind: str
    data: dict[str, object]


@asynccontextmanager
async def following(
    server: Running, path: str = "/events", **headers: str
) -> AsyncIterator[AsyncIterator[Event]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with server.client.stream("GET", path, headers=named) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = reply.aiter_lines()
        assert (await anext(lines)).startswith(":")  # from here on nothing is missed
        yield _events(lines)


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[Event]:
    fields: dict[str, str] = {}
    async for line in lines:
        name, _, value = line.partition(": ")
        if name in ("id", "event", "data"):
            fields[name] = value
        if not line and fields:
            yield Event(int(fields["id"]), fields["event"], json.loads(fields["data"]))
            fields = {}


async def test_events_are_streamed_and_resumed(
    on_each_store: Running,
) -> None:
    server = on_each_store
    await submit(server)
    async with following(server) as events:
        made = await submit(server)
        first = await anext(events)
        assert (first.kind, first.data["job"]) == ("JobSubmitted", made["id"])
        await server.call("DELETE", f"/jobs/{made['id']}")
        rest = [await anext(events) for _ in range(2)]
        assert [event.kind for event in rest] == ["JobCancelRequested", "JobEnded"]
        assert [event.id for event in rest] == [first.id + 1, first.id + 2]
    async with following(server, f"/events?since={first.id}") as events:
        assert [await anext(events) for _ in range(2)] == rest
    async with following(server, last_event_id=str(first.id)) as events:
        assert [await anext(events) for _ in range(2)] == rest
    async with following(server, "/events?since=0") as events:
        assert (await anext(events)).id == 1


async def test_a_reader_that_is_too_far_behind_gets_a_resync() -> None:
    async with serving(MemoryStore(clock=wall_clock), buffer_size=3) as server:
        for _ in range(5):
            await submit(server)
        async with following(server, "/events?since=1") as events:
            told = await anext(events)
            assert (told.kind, told.data) == ("resync", {"last": 5})
            await submit(server)
            assert (await anext(events)).id == 6
        async with following(server, "/events?since=4") as events:
            assert [(await anext(events)).id for _ in range(2)] == [5, 6]
        async with following(server, "/events?since=99") as events:
            assert (await anext(events)).kind == "resync"


async def test_after_a_restart_earlier_events_need_a_resync() -> None:
    database = MemoryDatabase()
    async with serving(MemoryStore(clock=wall_clock, database=database)) as server:
        await submit(server)
        await submit(server)
        await server.engine.stop()
    async with serving(MemoryStore(clock=wall_clock, database=database)) as server:
        async with following(server, "/events?since=1") as events:
            assert await anext(events) == Event(2, "resync", {"last": 2})
            await submit(server)
            assert (await anext(events)).id == 3
        async with following(server, "/events?since=2") as events:
            assert (await anext(events)).id == 3


async def test_a_quiet_stream_sends_keep_alives() -> None:
    info = Info(keepalive_s=0.01)
    async with (
        serving(MemoryStore(clock=wall_clock), info=info) as server,
        server.client.stream("GET", "/events") as reply,
    ):
        quiet = [line async for line, _ in _some(reply.aiter_lines(), 6) if line]
        assert quiet == [": start of the stream", ": keep-alive", ": keep-alive"]


async def _some(lines: AsyncIterator[str], count: int) -> AsyncIterator[tuple[str, int]]:
    for number in range(count):
        yield await anext(lines), number


async def test_users_get_events_of_their_namespaces_only() -> None:
    async with serving(MemoryStore(clock=wall_clock), auth=Tokens()) as server:
        role = {"roles": {"w": {"command": "x"}}}
        async with following(server, authorization="Bearer t-ann") as events:
            root = {"authorization": "Bearer t-root"}
            await submit(server, {**role, "namespace": "cv"}, **root)
            made = await submit(server, {**role, "namespace": "ml"}, **root)
            told = await anext(events)
            assert told.data["job"] == made["id"]
            await server.call("DELETE", f"/jobs/{made['id']}", **root)
            kinds = [(await anext(events)).kind for _ in range(2)]
            assert kinds == ["JobCancelRequested", "JobEnded"]
