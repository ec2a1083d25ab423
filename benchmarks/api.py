"""What a server takes over HTTP: submissions, claims and syncs in a second, and their wait.

The server is a process of its own and so are its clients, which speak HTTP over plain sockets so
that they cost little. SQLite lies on the disk of the current directory and flushes every commit;
PostgreSQL is a real server of our own.
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
import uvicorn

from benchmarks.stores import STORES, _folder, _postgres
from benchmarks.tables import Goal, table
from phalanx.api.app import create_app
from phalanx.api.services import Services
from phalanx.engine.agent_sync import AgentSync
from phalanx.engine.engine import Engine
from phalanx.engine.event_buffer import EventBuffer
from phalanx.engine.host import HostEnvironment
from phalanx.engine.turn import Turn
from phalanx.store.memory import MemoryStore
from phalanx.store.postgres import PostgresStore
from phalanx.store.protocol import Store
from phalanx.store.sqlite import SQLiteStore, wall_clock

SECONDS = float(os.environ.get("BENCH_SECONDS", "3"))
CLIENTS = 64
PROCESSES = 2
BATCH = 100
AGENTS = 64

JOB = {"command": "python train.py", "priority": 1}
#: It asks for what nobody has, so that submissions are measured and not placements.
LARGE = {"command": "python train.py", "resources": {"gpu": 1}}


async def run(names: list[str]) -> None:
    """Measure a server on the named stores, or on all of them."""
    lines: list[tuple[str, ...]] = []
    for name in names or STORES:
        with _folder() as folder, ExitStack() as stack:
            dsn = stack.enter_context(_postgres(folder)) if name == "postgres" else ""
            for measure in MEASURES:
                place = await _place(folder, dsn)
                with _served(name, place) as server:
                    lines.append((name, *await _measured(measure, server)))
    head = ("what", "a second", "p50 ms", "p99 ms", "changes in a commit", "")
    table(head, [(f"{name}: {what}", *rest) for name, what, *rest in lines])


async def _place(folder: Path, dsn: str) -> str:
    """An empty database: a file, or a schema of its own."""
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
        """How many there were since it was last asked, and how many events were in them."""
        self.pipe.send("commits")
        found: tuple[int, int] = self.pipe.recv()
        return found


@contextmanager
def _served(name: str, place: str) -> Iterator[Server]:
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_serve, args=(name, place, theirs), daemon=True)
    process.start()
    try:
        yield Server(ours.recv(), ours)
    finally:
        ours.send("stop")
        process.join(10)
        process.kill()


def _serve(name: str, place: str, pipe: Connection) -> None:
    import uvloop  # noqa: PLC0415

    uvloop.run(_live(name, place, pipe))


async def _live(name: str, place: str, pipe: Connection) -> None:
    store: Store = MemoryStore(clock=wall_clock)
    if name == "sqlite":
        store = SQLiteStore(Path(place))
    elif name == "postgres":
        store = PostgresStore(place)
    await store.open()
    engine = Engine(store, HostEnvironment("bench", "", wall_clock, lambda: uuid4().hex))
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
    config = uvicorn.Config(
        create_app(services), log_config=None, access_log=False, ws="none", lifespan="off"
    )
    server = uvicorn.Server(config)
    life = asyncio.create_task(engine.run())
    served = asyncio.create_task(server.serve(sockets=[listening]))
    while not engine.is_leading:
        await asyncio.sleep(0.01)
    pipe.send(listening.getsockname()[1])
    while await asyncio.to_thread(pipe.recv) != "stop":
        pipe.send((counts[0], counts[1]))
        counts[:] = [0, 0]
    server.should_exit = True
    await served
    await engine.stop()
    life.cancel()
    await store.close()


# The clients


class Client:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def open(self) -> "Client":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"content-length: {len(data)}\r\n\r\n"
        )
        self._writer.write(head.encode() + data)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        status = int(lines[0].split()[1])
        size = next((int(n[15:]) for n in lines if n.startswith(b"content-length:")), 0)
        answer = await self._reader.readexactly(size)
        if status >= 400:
            raise RuntimeError(f"{method} {path}: {status} {answer.decode()[:500]}")
        return json.loads(answer) if answer else None


#: What one client does once; it says how many were done by it.
Step = Callable[[Client, dict[str, Any]], Awaitable[int]]


async def submit(client: Client, memory: dict[str, Any]) -> int:
    await client.call("POST", "/jobs", LARGE)
    return 1


async def submit_batch(client: Client, memory: dict[str, Any]) -> int:
    reply = await client.call("POST", "/jobs:batch", [LARGE] * BATCH)
    return int(reply["accepted"])


async def claim(client: Client, memory: dict[str, Any]) -> int:
    return int(await client.call("GET", "/jobs/next") is not None)


async def sync(client: Client, memory: dict[str, Any]) -> int:
    if "worker" not in memory:
        worker = memory["worker"] = uuid4().hex
        body = {"id": worker, "protocol": "sync", "incarnation": "i"}
        await client.call("POST", "/workers/register", body)
        memory["seq"] = memory["term"] = 0
    memory["seq"] += 1
    report: dict[str, Any] = {
        "incarnation": "i",
        "seq": memory["seq"],
        "term": memory["term"],
        "full": memory["seq"] <= 2,
    }
    reply = await client.call("POST", f"/workers/{memory['worker']}/sync", report)
    memory["term"] = reply["term"]
    return 1


class Measure(NamedTuple):
    what: str
    step: Step
    clients: int
    goal: Goal | None = None
    waiting: int = 0  #: jobs that are there when it begins


MEASURES = (
    Measure("submissions, one by one", submit, CLIENTS, Goal("a second", at_least=2_000)),
    Measure(f"submissions, {BATCH} at once", submit_batch, 4, Goal("a second", at_least=5_000)),
    Measure("claims", claim, CLIENTS, waiting=20_000),
    Measure("syncs with nothing new", sync, AGENTS),
)


async def _measured(measure: Measure, server: Server) -> tuple[str, ...]:
    await _fill(server.port, measure.waiting)
    server.commits()
    context = multiprocessing.get_context("spawn")
    share = max(1, measure.clients // PROCESSES)
    with context.Pool(PROCESSES) as pool:
        results = pool.starmap(_drive, [(server.port, measure.what, share)] * PROCESSES)
    done = sum(count for count, _, _ in results)
    took = max(seconds for _, seconds, _ in results)
    waits = sorted(wait for _, _, some in results for wait in some)
    commits, changes = server.commits()
    rate = done / took
    return (
        measure.what,
        f"{rate:,.0f}",
        f"{1000 * waits[len(waits) // 2]:,.1f}",
        f"{1000 * waits[len(waits) * 99 // 100]:,.1f}",
        f"{changes / commits:,.1f}" if commits else "-",
        measure.goal.verdict(rate) if measure.goal is not None else "",
    )


async def _fill(port: int, count: int) -> None:
    client = await Client(port).open()
    for _ in range(count // BATCH):
        await client.call("POST", "/jobs:batch", [JOB] * BATCH)


def _drive(port: int, what: str, clients: int) -> tuple[int, float, list[float]]:
    [step] = [measure.step for measure in MEASURES if measure.what == what]
    return asyncio.run(_drive_all(port, step, clients))


async def _drive_all(port: int, step: Step, count: int) -> tuple[int, float, list[float]]:
    clients = [await Client(port).open() for _ in range(count)]
    waits: list[float] = []
    done = 0
    began = time.perf_counter()
    until = began + SECONDS

    async def go(client: Client) -> None:
        nonlocal done
        memory: dict[str, Any] = {}
        while (start := time.perf_counter()) < until:
            count = await step(client, memory)
            done += count
            waits.append(time.perf_counter() - start)

    await asyncio.gather(*(go(client) for client in clients))
    return done, time.perf_counter() - began, waits


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1:]))
