"""What costly requests of one user do to the small requests of another, on the same server.

Each costly request is below the size limit. Some are refused, some are accepted. The server uses
SQLite and has the limits that `phalanx serve` sets by default. The costly requests come from a
process with a low priority, because on a real network it would run elsewhere.
"""

import asyncio
import json
import multiprocessing
import os
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.server import SECONDS, Client, serve, served
from benchmarks.stores import folder_on_disk
from benchmarks.tables import Goal, table
from phalanx.core.settings import CoreSettings
from phalanx.engine.settings import EngineSettings
from phalanx.store.sqlite import SQLiteStore

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
HONEST, COSTLY = 4, 4
ALONE = "without"
PAUSE_S = 0.01
#: How much longer the 99th percentile may be.
GOAL = Goal("ms more", at_most=100)

ROLE = {"command": "true"}
BODIES: dict[str, tuple[str, str, bytes]] = {
    "15,000 roles": (
        "POST",
        "/jobs",
        json.dumps({"roles": {f"r{n}": ROLE for n in range(15_000)}}).encode(),
    ),
    "50,000 documents": ("POST", "/jobs", b"---\ncommand: a\n" * 50_000),
    "100,000 values from aliases": (
        "POST",
        "/jobs",
        b"a: &a [%s]\nb: [%s]\n" % (b"x," * 900, b"*a," * 100),
    ),
    "a job of 1,000 roles": (
        "POST",
        "/jobs",
        json.dumps({"roles": {f"r{n}": ROLE for n in range(1000)}}).encode(),
    ),
    "a job of 10,000 tasks": ("POST", "/jobs", b"command: a\ngang_size: 10000\n"),
    "an array of 10,000 elements": (
        "POST",
        "/jobs",
        json.dumps({"roles": {"w": ROLE}, "array": "0-9999"}).encode(),
    ),
    "a file of 500 jobs": ("POST", "/jobs", b"---\ncommand: a\n" * 500),
    "a batch of 500 gangs": ("POST", "/jobs:batch", b"---\ncommand: a\ngang_size: 20\n" * 500),
    "a plan of 1,000 roles": (
        "POST",
        "/plan",
        json.dumps({"roles": {f"r{n}": ROLE for n in range(1000)}}).encode(),
    ),
    "a page of 1,000 jobs": ("GET", "/jobs?limit=1000", b""),
}


def run() -> None:
    print("\nCostly requests")
    asyncio.run(_run())


async def _run() -> None:
    rounds = [await _round() for _ in range(ROUNDS)]
    lines = []
    for name in rounds[0]:
        beside = [latencies[name] for latencies in rounds]
        more_ms = _median_ms(beside, 99) - _median_ms([each[ALONE] for each in rounds], 99)
        verdict = "" if name == ALONE else GOAL.verdict(more_ms)
        shown = (_median_ms(beside, 50), _median_ms(beside, 99), 1000 * max(map(max, beside)))
        count = f"{sum(map(len, beside)):,}"
        lines.append((name, count, *(f"{each:,.1f}" for each in shown), verdict))
    head = ("small requests, beside", "requests", "p50 ms", "p99 ms", "max ms", "")
    print(f"  medians of {ROUNDS} rounds; a slow flush of the disk holds up every request")
    table(head, lines)


async def _round() -> dict[str, list[float]]:
    """The latencies of small requests of a new server, without and beside each costly request."""
    with folder_on_disk() as folder, served(_serve, str(folder / "costly")) as server:
        await _measured(server.port, 1.0)  # the first requests load modules
        latencies = {ALONE: await _measured(server.port, SECONDS)}
        for name in (*BODIES, "all"):
            with _costly(server.port, name):
                latencies[name] = await _measured(server.port, SECONDS)
        return latencies


def _serve(location: str, pipe: Connection) -> None:
    core = CoreSettings(namespace_jobs=50_000, namespace_tasks=200_000)
    serve(SQLiteStore(Path(location)), EngineSettings(core=core, submit_rate=2000), pipe)


def _median_ms(rounds: list[list[float]], percent: int) -> float:
    """The median over the rounds of a percentile of the latencies."""
    return 1000 * median(sorted(each)[len(each) * percent // 100] for each in rounds)


async def _measured(port: int, seconds: float) -> list[float]:
    """The latencies of small requests."""
    latencies: list[float] = []
    until = time.perf_counter() + seconds
    clients = [await Client(port).open() for _ in range(HONEST)]
    job = {"namespace": "honest", "roles": {"worker": {"command": "true", "resources": {"gpu": 1}}}}

    async def timed(client: Client, method: str, path: str, body: Any = None) -> Any:
        began = time.perf_counter()
        answer = await client.call(method, path, body)
        latencies.append(time.perf_counter() - began)
        await asyncio.sleep(PAUSE_S)
        return answer

    async def go(client: Client) -> None:
        while time.perf_counter() < until:
            submitted = await timed(client, "POST", "/jobs", job)
            await timed(client, "GET", f"/jobs/{submitted['id']}")
            await timed(client, "GET", "/readyz")
            await timed(client, "DELETE", f"/jobs/{submitted['id']}")

    await asyncio.gather(*(go(client) for client in clients))
    return latencies


class _costly:  # noqa: N801
    """A process that sends one kind of costly requests, or all of them, until the block ends."""

    def __init__(self, port: int, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_attack, args=(port, name), daemon=True)

    def __enter__(self) -> None:
        self._process.start()

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()


def _attack(port: int, name: str) -> None:
    os.nice(10)
    asyncio.run(_attack_all(port, name))


async def _attack_all(port: int, name: str) -> None:
    names = list(BODIES) if name == "all" else [name]
    await asyncio.gather(*(_repeat(port, names, first) for first in range(COSTLY)))


async def _repeat(port: int, names: list[str], first: int) -> None:
    number = first
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**26)
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                method, path, body = BODIES[names[number % len(names)]]
                number += 1
                head = (
                    f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/yaml\r\n"
                    f"content-length: {len(body)}\r\n\r\n"
                )
                writer.write(head.encode() + body)
                lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
                size = next((int(n[15:]) for n in lines if n.startswith(b"content-length:")), 0)
                await reader.readexactly(size)
        writer.close()
