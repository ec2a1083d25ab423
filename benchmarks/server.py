"""HTTP throughput and latency of a server: submissions, lists of elements, claims and syncs.

Server and clients are separate processes. The clients speak HTTP over plain sockets, and encode
requests that they repeat once, so that they use little CPU. SQLite uses the disk of the current
directory and flushes every commit; PostgreSQL is a real server, started for the benchmark.
"""

import asyncio
import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import asyncpg
import uvloop

from benchmarks.stores import STORES, folder_on_disk, postgres_server
from benchmarks.tables import Goal, table
from phalanx.api.app import create_app
from phalanx.api.services import Services
from phalanx.engine.agent_sync import AgentSync
from phalanx.engine.engine import Engine
from phalanx.engine.event_buffer import EventBuffer
from phalanx.engine.host import HostEnvironment
from phalanx.engine.settings import EngineSettings
from phalanx.engine.turn import Turn
from phalanx.engine.writer import Work
from phalanx.host.clock import wall_clock
from phalanx.host.interpreter import tune_interpreter
from phalanx.server.http_server import HttpServer
from phalanx.store.memory import MemoryStore
from phalanx.store.postgres import PostgresStore
from phalanx.store.protocol import Store
from phalanx.store.sqlite import SQLiteStore

SECONDS = float(os.environ.get("BENCH_SECONDS", "3"))
CLIENTS = 64
PROCESSES = 2
BATCH = 100
AGENTS = 64
ELEMENTS = 10_000

JOB = {"command": "python train.py", "priority": 1}
#: A job that fits no worker, so that submissions are measured without placements.
UNPLACEABLE = {"command": "python train.py", "resources": {"gpu": 1}}


async def run(names: list[str]) -> None:
    """Measure a server on the named stores, or on all."""
    lines: list[tuple[str, ...]] = []
    for name in names or STORES:
        with folder_on_disk() as folder, ExitStack() as stack:
            dsn = stack.enter_context(postgres_server(folder)) if name == "postgres" else ""
            for measure in MEASURES:
                location = await _empty_database(folder, dsn)
                with served(_serve, name, location) as server:
                    lines.append((name, *await _measured(measure, server)))
    head = ("request", "per second", "p50 ms", "p99 ms", "events per commit", "")
    table(head, [(f"{store}: {request}", *rest) for store, request, *rest in lines])


async def _empty_database(folder: Path, dsn: str) -> str:
    """The location of an empty database: a new file, or a new schema."""
    name = f"bench_{uuid4().hex}"
    if not dsn:
        return str(folder / name)
    connection = await asyncpg.connect(dsn)
    await connection.execute(f"CREATE SCHEMA {name}")
    await connection.close()
    return f"{dsn}{'&' if '?' in dsn else '?'}search_path={name}"


# The server


class Server(NamedTuple):
    port: int
    pipe: Connection

    def commits(self) -> tuple[int, int]:
        """The number of commits since the last call, and of the events in them."""
        self.pipe.send("commits")
        counts: tuple[int, int] = self.pipe.recv()
        return counts


@contextmanager
def served(serve: Callable[..., None], *args: object) -> Iterator[Server]:
    """A server in a process that runs `serve` with these arguments and a pipe."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=serve, args=(*args, theirs), daemon=True)
    process.start()
    try:
        yield Server(ours.recv(), ours)
    finally:
        ours.send("stop")
        process.join(10)
        process.kill()


def _serve(name: str, location: str, pipe: Connection) -> None:
    store: Store = MemoryStore(clock=wall_clock)
    if name == "sqlite":
        store = SQLiteStore(Path(location))
    elif name == "postgres":
        store = PostgresStore(location)
    serve(store, EngineSettings(), pipe)


def serve(
    store: Store, settings: EngineSettings, pipe: Connection, first: Work[None] | None = None
) -> None:
    """Serve a store until the pipe says stop; `first` is the first command."""
    tune_interpreter()
    uvloop.run(_run_server(store, settings, pipe, first))


async def _run_server(
    store: Store, settings: EngineSettings, pipe: Connection, first: Work[None] | None
) -> None:
    await store.open()
    host = HostEnvironment("bench", "", wall_clock, lambda: uuid4().hex)
    engine = Engine(store, host, settings)
    counts = [0, 0]

    def count(turn: Turn) -> None:
        durable = len(turn.durable())
        counts[0] += durable > 0
        counts[1] += durable

    engine.observers.append(count)
    services = Services(
        engine, AgentSync(engine, store), store, EventBuffer(engine.settings.event_buffer_size)
    )
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    server = HttpServer(create_app(services))
    leading = asyncio.create_task(engine.run())
    served = asyncio.create_task(server.serve(sockets=[listening]))
    while not engine.is_leading:
        await asyncio.sleep(0.01)
    if first is not None:
        await engine.do(first)
    pipe.send(listening.getsockname()[1])
    while await asyncio.to_thread(pipe.recv) != "stop":
        pipe.send((counts[0], counts[1]))
        counts[:] = [0, 0]
    server.should_exit = True
    await served
    services.close()
    await engine.stop()
    leading.cancel()
    await store.close()


# The clients


def encoded_request(method: str, path: str, body: Any = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class Client(asyncio.Protocol):
    """One persistent connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._transport: asyncio.Transport
        self._received = b""
        self._answer: asyncio.Future[bytes] | None = None

    async def open(self) -> "Client":
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", self._port)
        return self

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.send(encoded_request(method, path, body))
        return json.loads(answer) if answer else None

    async def send(self, request: bytes) -> bytes:
        """The body of the answer to a request."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answer = answer
        self._transport.write(request)
        return await answer

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, rest = self._received.partition(b"\r\n\r\n")
        _, _, size = head.lower().partition(b"\r\ncontent-length:")
        if not blank or len(rest) < int(size.partition(b"\r\n")[0] or 0):
            return
        self._received = b""
        answer, self._answer = self._answer, None
        if answer is None:
            raise AssertionError(f"bug: an answer without a request: {head!r}")
        if head[9:10] == b"2":
            answer.set_result(rest)
        else:
            answer.set_exception(RuntimeError(f"{head!r} {rest[:500]!r}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None:
            self._answer.set_exception(exc or ConnectionResetError("the server closed"))


#: One call of a client; it returns the number of operations done.
Step = Callable[[Client, dict[str, Any]], Awaitable[int]]


_SUBMIT = encoded_request("POST", "/jobs", UNPLACEABLE)
_SUBMIT_BATCH = encoded_request("POST", "/jobs:batch", [UNPLACEABLE] * BATCH)
_CLAIM = encoded_request("GET", "/jobs/next")


async def submit(client: Client, session: dict[str, Any]) -> int:
    await client.send(_SUBMIT)
    return 1


async def submit_batch(client: Client, session: dict[str, Any]) -> int:
    return int(json.loads(await client.send(_SUBMIT_BATCH))["accepted"])


async def list_elements(client: Client, session: dict[str, Any]) -> int:
    """List a pending array, page by page; its number of elements."""
    if "array" not in session:
        array = {"roles": {"w": UNPLACEABLE}, "array": f"0-{ELEMENTS - 1}"}
        session["array"] = (await client.call("POST", "/jobs", array))["id"]
    listed, cursor = 0, ""
    while True:
        path = f"/jobs/{session['array']}/elements?limit=1000{cursor}"
        page = await client.call("GET", path)
        listed += len(page["elements"])
        if page["cursor"] is None:
            return listed
        cursor = f"&cursor={page['cursor']}"


async def claim(client: Client, session: dict[str, Any]) -> int:
    return int(await client.send(_CLAIM) not in (b"", b"null"))


async def sync(client: Client, session: dict[str, Any]) -> int:
    if "worker" not in session:
        worker = session["worker"] = uuid4().hex
        body = {"id": worker, "protocol": "sync", "incarnation": "i"}
        await client.call("POST", "/workers/register", body)
        session["seq"] = session["term"] = 0
    session["seq"] += 1
    report: dict[str, Any] = {
        "incarnation": "i",
        "seq": session["seq"],
        "term": session["term"],
        "full": session["seq"] <= 2,
    }
    reply = await client.call("POST", f"/workers/{session['worker']}/sync", report)
    session["term"] = reply["term"]
    return 1


class Measure(NamedTuple):
    name: str
    step: Step
    clients: int
    goal: Goal | None = None
    pending: int = 0  #: the number of pending jobs at the start


MEASURES = (
    Measure("submissions, one per call", submit, CLIENTS, Goal("per second", at_least=2_000)),
    Measure(f"submissions, {BATCH} per call", submit_batch, 4, Goal("per second", at_least=5_000)),
    Measure(
        f"elements, in lists of {ELEMENTS:,}",
        list_elements,
        PROCESSES,
        Goal("per second", at_least=50_000),
    ),
    Measure("claims", claim, CLIENTS, pending=20_000),
    Measure("idle syncs", sync, AGENTS),
)


async def _measured(measure: Measure, server: Server) -> tuple[str, ...]:
    await _fill(server.port, measure.pending)
    server.commits()
    context = multiprocessing.get_context("spawn")
    share = max(1, measure.clients // PROCESSES)
    with context.Pool(PROCESSES) as pool:
        results = pool.starmap(_drive, [(server.port, measure.name, share)] * PROCESSES)
    done = sum(count for count, _, _ in results)
    took = max(seconds for _, seconds, _ in results)
    latencies = sorted(latency for _, _, some in results for latency in some)
    commits, changes = server.commits()
    rate = done / took
    return (
        measure.name,
        f"{rate:,.0f}",
        f"{1000 * latencies[len(latencies) // 2]:,.1f}",
        f"{1000 * latencies[len(latencies) * 99 // 100]:,.1f}",
        f"{changes / commits:,.1f}" if commits else "-",
        measure.goal.verdict(rate) if measure.goal is not None else "",
    )


async def _fill(port: int, count: int) -> None:
    client = await Client(port).open()
    for _ in range(count // BATCH):
        await client.call("POST", "/jobs:batch", [JOB] * BATCH)


def _drive(port: int, name: str, clients: int) -> tuple[int, float, list[float]]:
    [step] = [measure.step for measure in MEASURES if measure.name == name]
    return uvloop.run(_drive_all(port, step, clients))


async def _drive_all(port: int, step: Step, count: int) -> tuple[int, float, list[float]]:
    clients = [await Client(port).open() for _ in range(count)]
    latencies: list[float] = []
    done = 0
    began = time.perf_counter()
    until = began + SECONDS

    async def go(client: Client) -> None:
        nonlocal done
        session: dict[str, Any] = {}
        while (start := time.perf_counter()) < until:
            count = await step(client, session)
            done += count
            latencies.append(time.perf_counter() - start)

    await asyncio.gather(*(go(client) for client in clients))
    return done, time.perf_counter() - began, latencies


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1:]))
