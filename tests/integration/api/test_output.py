"""The output of tasks: uploaded in chunks by workers, read and followed by users."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from phalanx.api.log_reader import LogReader
from phalanx.api.services import Info
from phalanx.core.states import State
from phalanx.core.time_units import HOUR
from phalanx.engine.engine import Engine
from phalanx.engine.output import chunk_writer
from phalanx.host.clock import wall_clock
from phalanx.store.memory import MemoryDatabase, MemoryStore
from phalanx.store.protocol import OutputChunk, Store, StoreError
from tests.integration.api.serving import Reply, Running, quick, serving
from tests.integration.api.test_jobs import submit
from tests.integration.api.test_plain import a_worker, claim
from tests.integration.server.waiting import PATIENCE_S

GANG = {"roles": {"ps": {"command": "x"}, "worker": {"command": "x", "replicas": 2}}}
RETRIED = {"roles": {"w": {"command": "x"}}, "max_retries": 9, "backoff": "0s"}
GAP = " bytes left out …\n".encode()
NO_LINGER = Info(linger_s=0.0)


class Writer(NamedTuple):
    """A running attempt, and uploads of its output."""

    server: Running
    worker: str
    task: str
    attempt: int

    async def bring(self, offset: int, data: bytes, **other: Any) -> Reply:
        of = {"task": self.task, "attempt": self.attempt, "worker": self.worker} | other
        query = f"task={of['task']}&attempt={of['attempt']}&offset={offset}"
        return await self.server.call("POST", f"/workers/{of['worker']}/output?{query}", data)

    async def write(self, offset: int, data: bytes) -> int:
        reply = await self.bring(offset, data)
        assert reply.status == 200, reply
        found: int = reply.body["next"]
        return found

    async def end(self, how: str = "done") -> None:
        path = f"/jobs/{self.task}/{how}?epoch={self.attempt}"
        assert (await self.server.call("POST", path)).status == 200

    @property
    def job(self) -> str:
        return self.task.rpartition(".")[0]


async def writing(server: Running, worker: str = "w-1") -> Writer:
    """The next task for this worker, claimed."""
    found = await claim(server, worker, wait=60)
    return Writer(server, worker, found["id"], found["reservation_epoch"])


async def a_writer(server: Running, **job: Any) -> Writer:
    await a_worker(server)
    await submit(server, job or {"command": "x"})
    return await writing(server)


async def a_gang(server: Running) -> list[Writer]:
    for number in range(3):
        await a_worker(server, f"w-{number}")
    job = (await submit(server, GANG))["id"]
    await server.until(lambda c: c.gangs[job].count(State.RESERVED) == 3)
    found = [await writing(server, f"w-{number}") for number in range(3)]
    return sorted(found, key=lambda writer: writer.task)


async def logs(server: Running, job: str, query: str = "") -> bytes:
    reply = await server.client.get(f"/jobs/{job}/logs?{query}")
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    return reply.content


@asynccontextmanager
async def following(
    server: Running, job: str, query: str = "follow=true"
) -> AsyncIterator[AsyncIterator[str]]:
    async with server.client.stream("GET", f"/jobs/{job}/logs?{query}") as reply:
        assert reply.status_code == 200
        yield reply.aiter_lines()


# Bringing


async def test_output_is_read_back_unchanged(on_each_store: Running) -> None:
    writer = await a_writer(on_each_store)
    assert await logs(on_each_store, writer.job) == b""
    assert await writer.write(0, b"one\ntw") == 6
    assert await writer.write(6, b"o\n\x00\xff no end") == 17
    assert await logs(on_each_store, writer.job) == b"one\ntwo\n\x00\xff no end"
    assert await logs(on_each_store, writer.task) == b"one\ntwo\n\x00\xff no end"
    await writer.end()
    assert await writer.write(17, b"\nlate\n") == 23
    told = await logs(on_each_store, writer.job, "task=0&follow=true")
    assert told == b"one\ntwo\n\x00\xff no end\nlate\n"


async def test_repeated_and_overlapping_output_is_ignored(on_each_store: Running) -> None:
    writer = await a_writer(on_each_store)
    assert await writer.write(0, b"") == 0
    assert await writer.write(0, b"abcd") == 4
    assert await writer.write(0, b"abcd") == 4
    assert await writer.write(1, b"bc") == 4
    assert await writer.write(2, b"cdef") == 6
    assert await writer.write(99, b"") == 6
    at_once = await asyncio.gather(*(writer.write(6, b"gh") for _ in range(5)))
    assert at_once == [8] * 5
    assert await logs(on_each_store, writer.job) == b"abcdefgh"


async def test_skipped_output_is_shown_as_a_gap(on_each_store: Running) -> None:
    writer = await a_writer(on_each_store)
    assert await writer.write(10, b"begun") == 15
    assert await writer.write(2**61, b"far\n") == 2**61 + 4
    assert await writer.write(20, b"too late") == 2**61 + 4
    told = (await logs(on_each_store, writer.job)).decode()
    assert told == f"… {2**61} bytes left out …\nfar\n"  # the rest is beyond what is kept


async def test_a_gap_has_a_line_of_its_own(server: Running) -> None:
    writer = await a_writer(server)
    await writer.write(0, b"half a line")
    await writer.write(20, b"on\n")
    told = (await logs(server, writer.job)).decode()
    assert told == "half a line\n… 9 bytes left out …\non\n"


async def test_only_the_last_of_an_attempt_is_kept(store: Store) -> None:
    async with serving(store, info=Info(output_limit_bytes=100)) as server:
        writer = await a_writer(server)
        for number in range(30):
            await writer.write(number * 10, b"line %04d\n" % number)
        told = (await logs(server, writer.job)).decode().splitlines()
        assert told == ["… 200 bytes left out …", *(f"line {n:04}" for n in range(20, 30))]


async def test_a_chunk_has_a_size_limit(server: Running) -> None:
    writer = await a_writer(server)
    assert await writer.write(0, b"x" * 262_144) == 262_144
    for data in (b"x" * 262_145, b"x" * 900_000):
        reply = await writer.bring(262_144, data)
        assert (reply.status, reply.body["error"]["code"]) == (413, "too_large")
    assert await writer.write(262_144, b"") == 262_144


async def test_output_of_a_task_of_another_worker_is_refused(
    on_each_store: Running,
) -> None:
    server = on_each_store
    writer = await a_writer(server)
    await a_worker(server, "w-2")
    for other, status, said in (
        ({"worker": "w-2"}, 404, "attempt 1 of task"),
        ({"worker": "w-3"}, 404, "was not on worker w-3"),
        ({"task": "j-nobody.0"}, 404, "there is no task j-nobody.0"),
        ({"task": f"{writer.job}.1"}, 404, f"there is no task {writer.job}.1"),
        ({"task": writer.job}, 404, "a task id is JOB.INDEX"),
        ({"attempt": 2}, 409, "is at attempt 1; there is no attempt 2"),
        ({"attempt": 0}, 404, "was not on worker w-1"),
        ({"attempt": -1}, 400, "attempt"),
        ({"attempt": "x"}, 400, "attempt"),
    ):
        reply = await writer.bring(0, b"x", **other)
        assert (reply.status, said in str(reply.body)) == (status, True), reply
    for offset in (-1, 2**63):
        assert (await writer.bring(offset, b"x")).status == 400
    assert await logs(server, writer.job) == b""


async def test_too_much_output_at_once_is_to_be_sent_again(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_writer, "_MEMORY_BYTES", 10)
    writer = await a_writer(server)
    reply = await writer.bring(0, b"x" * 11)
    assert (reply.status, reply.body["error"]["code"]) == (503, "unavailable")
    assert await writer.write(0, b"x" * 10) == 10


# Attempts


async def test_attempts_are_marked_and_the_last_three_are_kept(on_each_store: Running) -> None:
    server = on_each_store
    first = writer = await a_writer(server, **RETRIED)
    for number in range(1, 5):
        await writer.write(0, b"this is %d\n" % number)
        if number < 4:
            await writer.end("fail")
            writer = await writing(server)
    assert (await logs(server, writer.job)).decode().splitlines() == [
        "── attempt 2 ──",
        "this is 2",
        "── attempt 3 ──",
        "this is 3",
        "── attempt 4 ──",
        "this is 4",
    ]
    assert await logs(server, writer.job, "attempt=3") == b"this is 3\n"
    assert await logs(server, writer.job, "attempt=1") == b""
    late = await first.bring(10, b"late")
    assert (late.status, late.body["error"]["code"]) == (409, "conflict")
    recent = first._replace(attempt=3)
    assert await recent.write(10, b"late\n") == 15
    assert await logs(server, writer.job, "attempt=3") == b"this is 3\nlate\n"


async def test_the_first_output_of_an_earlier_attempt_is_accepted_late(
    on_each_store: Running,
) -> None:
    """The row of a requeued task no longer names its worker; the records do."""
    first = await a_writer(on_each_store, **RETRIED)
    await first.end("fail")
    second = await writing(on_each_store)
    await second.write(0, b"second\n")
    assert (await first.bring(0, b"x", worker="w-2")).status == 404
    assert await first.write(0, b"first\n") == 6
    told = (await logs(on_each_store, first.job)).decode()
    assert told == "first\n── attempt 2 ──\nsecond\n"


# Reading


async def test_the_lines_of_several_tasks_begin_with_role_and_index(on_each_store: Running) -> None:
    server = on_each_store
    writers = await a_gang(server)
    for number, writer in enumerate(writers):
        await writer.write(0, b"a%d\nb%d" % (number, number))
    job = writers[0].job
    assert (await logs(server, job)).decode().splitlines() == [
        "ps/0 | a0",
        "ps/0 | b0",
        "worker/0 | a1",
        "worker/0 | b1",
        "worker/1 | a2",
        "worker/1 | b2",
    ]
    assert await logs(server, job, "task=1") == b"a1\nb1"
    assert await logs(server, job, "task=worker/0") == b"a1\nb1"


@pytest.mark.parametrize("lines", [0, 1, 2, 3, 4, 5, 6, 7, 100])
async def test_a_tail_is_the_last_lines_over_all_attempts(server: Running, lines: int) -> None:
    first = await a_writer(server, **RETRIED)
    for offset, data in ((0, b"1\n2"), (3, b"\n"), (4, b"3\n4\n")):
        await first.write(offset, data)
    await first.end("fail")
    second = await writing(server)
    for offset, data in ((0, b"5\n"), (2, b"6 has no"), (10, b" end")):
        await second.write(offset, data)
    told = (await logs(server, first.job, f"tail={lines}")).decode().splitlines()
    whole = ["1", "2", "3", "4", "── attempt 2 ──", "5", "6 has no end"]
    expected = whole[-lines:] if 0 < lines <= 2 else whole[-lines - 1 :] if lines else []
    assert told == expected


async def test_a_job_that_never_ran_has_written_nothing(server: Running) -> None:
    job = (await submit(server, {"command": "x", "resources": {"gpu": 1}}))["id"]
    assert await logs(server, job) == b""
    reading = asyncio.create_task(logs(server, job, "follow=true"))
    await server.call("DELETE", f"/jobs/{job}")
    assert await reading == b""


async def test_wrong_tasks_and_attempts_are_refused_with_the_valid_ones(server: Running) -> None:
    writers = await a_gang(server)
    job = writers[0].job
    for path, status, said in (
        ("j-nobody/logs", 404, "there is no job j-nobody"),
        (f"{job}/logs?task=3", 404, f"job {job} has no task 3; its tasks are 0 to 2"),
        (f"{job}.3/logs", 404, "there is no job"),
        (
            f"{job}/logs?task=worker/2",
            404,
            "its tasks are 0 to 2 (ps/0, worker/0 to 1)",
        ),
        (f"{job}.1/logs?task=2", 400, "is 2, but the path names task 1"),
        (f"{job}/logs?attempt=2", 404, "has no attempt 2; its only attempt is 1"),
        (f"{job}/logs?task=-1", 400, "task"),
        (f"{job}/logs?task=x", 400, "like 0, or worker/0"),
        (f"{job}/logs?tail=-1", 400, "tail"),
        (f"{job}/logs?follow=perhaps", 400, "follow"),
    ):
        reply = await server.call("GET", f"/jobs/{path}")
        assert (reply.status, said in str(reply.body)) == (status, True), reply


# Following


async def test_output_is_followed_over_attempts_until_the_job_has_ended(
    on_each_store: Running,
) -> None:
    server = on_each_store
    first = await a_writer(server, **RETRIED)
    await first.write(0, b"before\n")
    async with following(server, first.job) as lines:
        assert await anext(lines) == "before"
        await first.write(7, b"while\n")
        assert await anext(lines) == "while"
        await first.end("fail")
        second = await writing(server)
        await second.write(0, b"again\n")
        assert [await anext(lines) for _ in range(2)] == ["── attempt 2 ──", "again"]
        await first.write(13, b"late\n")
        assert [await anext(lines) for _ in range(2)] == ["── attempt 1 ──", "late"]
        await second.end()
        assert [line async for line in lines] == []


async def test_followers_get_output_that_arrives_after_the_end() -> None:
    info = Info(linger_s=PATIENCE_S)
    async with serving(MemoryStore(clock=wall_clock), info=info) as server:
        writer = await a_writer(server)
        async with following(server, writer.job) as lines:
            await writer.end()
            assert (await server.call("GET", f"/jobs/{writer.job}")).body["phase"] == "done"
            await writer.write(0, b"last words\n")
            assert await anext(lines) == "last words"


async def test_the_output_of_a_job_that_has_just_ended_is_read_with_what_arrives_late() -> None:
    info = Info(linger_s=PATIENCE_S)
    async with serving(MemoryStore(clock=wall_clock), info=info) as server:
        writer = await a_writer(server)
        await writer.write(0, b"first\n")
        await writer.end()
        async with following(server, writer.job, query="") as lines:
            assert await anext(lines) == "first"
            await writer.write(6, b"last words\n")
            assert await anext(lines) == "last words"


class Agent:
    """A worker that speaks the sync protocol, one call at a time."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._calls = 0
        self._term = 0

    async def register(self) -> None:
        body = {"id": "w-1", "incarnation": "one", "protocol": "sync"}
        assert (await self._server.call("POST", "/workers/register", body)).status == 201
        await self.sync()

    async def sync(self, *tasks: dict[str, Any], wait_s: float = 0) -> list[dict[str, Any]]:
        """Report on tasks: the instructions."""
        self._calls += 1
        reports = {"tasks": tasks, "full": self._calls < 3}
        call = {"incarnation": "one", "seq": self._calls, "term": self._term, "wait": wait_s}
        reply = await self._server.call("POST", "/workers/w-1/sync", call | reports)
        assert reply.status == 200, reply
        self._term = reply.body["term"]
        instructions: list[dict[str, Any]] = reply.body.get("tasks", [])
        return instructions

    async def run(self, **ended: Any) -> str:
        """Run one task to its end, of which the worker says this: its job."""
        await self.sync()
        while not (instructions := await self.sync(wait_s=10)):
            pass
        task = {name: instructions[0][name] for name in ("id", "attempt")}
        await self.sync(task | {"state": "accepted"}, wait_s=10)
        await self.sync(task | {"state": "running"})
        await self.sync(task | {"state": "exited", "exit_code": 0} | ended)
        return str(task["id"]).rpartition(".")[0]


async def test_the_output_of_an_ended_job_is_read_up_to_the_size_that_its_worker_reports() -> None:
    async with serving(MemoryStore(clock=wall_clock), info=NO_LINGER) as server:
        agent = Agent(server)
        await agent.register()
        await submit(server, {"command": "x"})
        job = await agent.run(output_bytes=17)
        writer = Writer(server, "w-1", f"{job}.0", 1)
        for query in ("", "follow=true", "attempt=1"):
            async with following(server, job, query) as lines:
                if not query:
                    await writer.write(0, b"first\n")
                    assert await anext(lines) == "first"
                    await writer.write(6, b"last words\n")
                assert "last words" in [line async for line in lines]


async def test_output_that_arrives_while_a_reader_asks_for_the_end_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(MemoryStore(clock=wall_clock), info=NO_LINGER) as server:
        agent, ending = Agent(server), LogReader._ending
        await agent.register()
        await submit(server, {"command": "x"})
        job = await agent.run(output_bytes=6)

        async def write_first(reader: LogReader) -> Any:
            await Writer(server, "w-1", f"{job}.0", 1).write(0, b"first\n")
            return await ending(reader)

        monkeypatch.setattr(LogReader, "_ending", write_first)
        assert await logs(server, job) == b"first\n"


async def test_a_worker_cannot_report_the_output_of_a_task_that_it_does_not_run() -> None:
    async with serving(MemoryStore(clock=wall_clock), info=NO_LINGER) as server:
        agent, task = Agent(server), f"{(await submit(server, {'command': 'x'}))['id']}.0"
        await agent.register()
        await agent.sync()
        await agent.sync({"id": task, "attempt": 7, "state": "exited", "output_bytes": 99})
        assert server.services.agent_sync.output_sizes.of(task) == {}


async def test_a_job_without_output_is_not_waited_for() -> None:
    info = Info(linger_s=PATIENCE_S)
    async with serving(MemoryStore(clock=wall_clock), info=info) as server:
        agent = Agent(server)
        await agent.register()
        await submit(server, {"command": "x"})
        async with asyncio.timeout(PATIENCE_S / 2):
            assert await logs(server, await agent.run()) == b""


async def test_lines_of_several_tasks_are_whole_and_in_arrival_order(
    server: Running,
) -> None:
    one, two, three = await a_gang(server)
    async with following(server, one.job) as lines:
        await two.write(0, b"half")
        await three.write(0, b"three\n")
        assert await anext(lines) == "worker/1 | three"
        await one.write(0, b"one\n")
        assert await anext(lines) == "ps/0 | one"
        await two.write(4, b" and half\nunended")
        assert await anext(lines) == "worker/0 | half and half"
        for writer in (one, two, three):
            await writer.end()
        assert [line async for line in lines] == ["worker/0 | unended"]


async def test_following_one_attempt_ends_with_it() -> None:
    async with serving(MemoryStore(clock=wall_clock), info=NO_LINGER) as server:
        first = await a_writer(server, **RETRIED)
        async with following(server, first.job, "follow=true&attempt=1&tail=0") as lines:
            await first.write(0, b"one\n")
            assert await anext(lines) == "one"
            await first.end("fail")
            assert [line async for line in lines] == []


async def test_a_follower_with_an_empty_tail_gets_new_output_only(
    server: Running,
) -> None:
    writer = await a_writer(server)
    await writer.write(0, b"before\n")
    async with following(server, writer.job, "follow=true&tail=0") as lines:
        await writer.write(7, b"after\n")
        assert await anext(lines) == "after"


async def test_a_slow_reader_finds_a_gap_and_delays_no_writer() -> None:
    info = Info(output_limit_bytes=100_000, linger_s=0.0)
    async with serving(MemoryStore(clock=wall_clock), info=info) as server:
        writer = await a_writer(server)
        line = b"x" * 99 + b"\n"
        async with server.client.stream("GET", f"/jobs/{writer.job}/logs?follow=true") as reply:
            offset = 0
            for _ in range(200):  # far more than the buffers on the way can take
                offset = await writer.write(offset, line * 2000)
            await writer.end()
            size, text = 0, b""
            async for data in reply.aiter_bytes():
                size += len(data)
                text = text if GAP in text else (text + data)[-200_000:]
        assert size < offset
        assert GAP in text


async def test_a_follower_is_let_go_when_its_server_leads_no_longer() -> None:
    async with serving(MemoryStore(clock=wall_clock), info=Info(keepalive_s=0.05)) as server:
        writer = await a_writer(server)
        await writer.write(0, b"line\n")
        async with following(server, writer.job) as lines:
            assert await anext(lines) == "line"
            await server.engine.stop()
            assert [line async for line in lines] == []


# Stores and servers that fail


class Failing(MemoryStore):
    """Refuses output while a test wants it to."""

    fails = False

    async def put_output(self, term: int, chunks: Any, trims: Any = ()) -> int:
        if self.fails:
            raise StoreError("the disk is full")
        return await super().put_output(term, chunks, trims)


async def test_output_that_the_store_refused_is_requested_again() -> None:
    store = Failing(clock=wall_clock)
    async with serving(store) as server:
        writer = await a_writer(server)
        await writer.write(0, b"kept\n")
        store.fails = True
        replies = await asyncio.gather(writer.bring(5, b"lost\n"), writer.bring(10, b"more\n"))
        assert [reply.status for reply in replies] == [503, 503]
        store.fails = False
        assert await writer.write(0, b"") == 5
        assert await writer.write(5, b"again\n") == 11
        assert await logs(server, writer.job) == b"kept\nagain\n"


async def test_acknowledged_output_survives_a_takeover() -> None:
    database = MemoryDatabase()
    stores = [MemoryStore(clock=wall_clock, database=database) for _ in range(2)]
    async with (
        serving(stores[0]) as leader,
        serving(stores[1], leads=False) as standby,
    ):
        writer = await a_writer(leader)
        acknowledged = await writer.write(0, b"acknowledged\n")
        await leader.engine.stop()
        await standby.lead()
        there = writer._replace(server=standby)
        assert await there.write(acknowledged, b"") == acknowledged
        assert await there.write(0, b"acknowledged\nand more\n") == acknowledged + 9
        assert await logs(standby, writer.job) == b"acknowledged\nand more\n"
        assert (await writer.bring(0, b"x")).status in (307, 503)


async def test_a_server_that_leads_again_knows_the_output_stored_meanwhile() -> None:
    database = MemoryDatabase()
    store, other = (MemoryStore(clock=wall_clock, database=database) for _ in range(2))
    # After a quarter of its lease it contends again.
    async with serving(store, settings=quick(lease_s=10.0)) as server:
        writer = await a_writer(server)
        await writer.write(0, b"ours\n")
        term = None
        while term is None:
            await server.engine.resign()
            term = await other.lead("other", "http://other", HOUR)
        theirs = OutputChunk(writer.job, 0, writer.attempt, 5, b"theirs\n")
        await other.put_output(term, [theirs])
        assert (await writer.bring(5, b"x")).status in (307, 503)
        await other.resign(term)
        async with asyncio.timeout(PATIENCE_S):
            while server.engine.term in (None, term - 1):
                await asyncio.sleep(0)
        await server.lead()
        assert await writer.write(5, b"theirs\nours again\n") == 23
        assert await logs(server, writer.job) == b"ours\ntheirs\nours again\n"


async def test_concurrent_chunks_share_a_write_and_bypass_the_command_queue() -> None:
    store = Counting(clock=wall_clock)
    async with serving(store) as server:
        writer = await a_writer(server)
        await writer.write(0, b"x")
        commands = Commands(server.engine)
        store.gate.clear()
        async with asyncio.timeout(PATIENCE_S):
            writes = [asyncio.create_task(writer.write(1, b"x"))]
            while len(store.batches) < 2:
                await asyncio.sleep(0)
            writes += [asyncio.create_task(writer.write(n, b"x")) for n in range(2, 20)]
            while server.services.outputs._writer._held_bytes < 19:
                await asyncio.sleep(0)
        store.gate.set()
        await asyncio.gather(*writes)
        assert store.batches[:2] == [1, 1]
        assert sum(store.batches) <= 20
        assert len(store.batches) < 10
        assert commands.count == 0


class Counting(MemoryStore):
    """Holds writes back at a gate, and records the number of chunks in each."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.batches: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def put_output(self, term: int, chunks: Any, trims: Any = ()) -> int:
        self.batches.append(len(chunks))
        await self.gate.wait()
        return await super().put_output(term, chunks, trims)


class Commands:
    """Counts what goes through the engine's queue."""

    def __init__(self, engine: Engine) -> None:
        self.count = 0
        do = engine.do

        async def counted(work: Any) -> Any:
            self.count += 1
            return await do(work)

        engine.do = counted  # type: ignore[method-assign]
