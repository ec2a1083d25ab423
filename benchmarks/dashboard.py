"""The dashboard in Chromium on a large cluster: when a page shows its data, and how smooth it stays
while events stream in. The server is a process of its own and keeps everything in memory."""

import asyncio
import multiprocessing
import shutil
import statistics
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from playwright.async_api import Page, async_playwright
from tests.builders import a_role, a_spec
from tests.integration.api.serving import Running, serving

from benchmarks.tables import Goal, table
from phalanx.core.events import CancelRequested, Claimed, QueueSet, Submitted, WorkerRegistered
from phalanx.core.model import Protocol, Queue
from phalanx.core.node import DEVICE, GPU
from phalanx.core.states import State
from phalanx.engine.turn import Turn
from phalanx.host.clock import wall_clock
from phalanx.store.memory import MemoryStore


class ClusterSize(NamedTuple):
    workers: int
    running: int
    pending: int


SIZE = ClusterSize(workers=1000, running=5000, pending=50_000)
GPUS = 8
EVENTS_PER_S = 200
WATCHED_S = 10
ROUNDS = 3
QUEUES = 12
#: A gang is submitted and another one cancelled: a submission, a cancellation, an end.
_EVENTS_PER_CHANGE = 3
_TICK_S = 0.1
_CHUNK = 2000

SMALL, LARGE = Goal("ms", at_most=300), Goal("ms", at_most=1000)
FRAME = Goal("ms", at_most=34)

PAGES = {
    "overview": "main .card",
    "jobs": "main tbody tr a",
    "cluster": "main canvas",
    "queues": "main tbody tr",
}
_FRAMES = """seconds => new Promise(resolve => {
    const times = []; let last = performance.now(); const end = last + 1000 * seconds;
    const step = now => {
        times.push(now - last); last = now;
        if (now < end) requestAnimationFrame(step); else resolve(times);
    };
    requestAnimationFrame(step);
})"""
_SHOWN = "() => performance.getEntriesByName('shown')[0]?.startTime ?? -1"


def run(size: ClusterSize = SIZE) -> None:
    if shutil.which("chromium") is None:
        print("\nDashboard: there is no chromium in PATH")
        return
    gangs = f"{size.running:,} running and {size.pending:,} pending gangs"
    print(f"\nDashboard, {size.workers:,} workers, {gangs}")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, size), daemon=True)
    process.start()
    theirs.close()  # so that a server that fails ends the benchmark
    try:
        url = ours.recv()
        _print(asyncio.run(_first_views(url, "empty cluster", SMALL)))
        ours.send("fill")
        ours.recv()
        _print(asyncio.run(_first_views(url, "large cluster", LARGE)))
        ours.send("traffic")
        _print(asyncio.run(_frames(url)))
    finally:
        process.terminate()
        process.join()


def _print(rows: list[tuple[str, ...]]) -> None:
    table(("page", "median", "95th", "largest", "goal"), rows)
    print(flush=True)


# The server


def _serve(pipe: Connection, size: ClusterSize) -> None:
    asyncio.run(_serve_until_killed(pipe, size))


async def _serve_until_killed(pipe: Connection, size: ClusterSize) -> None:
    async with serving(MemoryStore(clock=wall_clock)) as server:
        pipe.send(server.url)
        await asyncio.to_thread(pipe.recv)
        await _fill(server, size)
        pipe.send(server.url)
        await asyncio.to_thread(pipe.recv)
        await _change(server)


def _spec(job: str, number: int, gpus: int) -> Any:
    role = a_role(resources={GPU: gpus * DEVICE, "cpu": 1000}, replicas=1, min=1)
    return a_spec(name=job, queue=f"q-{number % QUEUES}", roles=(role,))


async def _fill(server: Running, size: ClusterSize) -> None:
    """Register the workers, and start and queue gangs."""

    def begin(turn: Turn) -> None:
        for number in range(QUEUES):
            turn.apply(QueueSet(Queue(name=f"q-{number}", weight=1 + number % 3)))
        for number in range(size.workers):
            resources = {GPU: GPUS * DEVICE, "cpu": 64_000, "memory": 512 << 30}
            labels = {"rack": f"r{number // 16:02}", "zone": f"z{number % 3}"}
            name = f"w-{number:04}"
            turn.apply(
                WorkerRegistered(name, "1", Protocol.PLAIN, name, resources, labels, slots=64)
            )

    await server.engine.do(begin)
    # With one and two GPUs each, the running gangs fill the cluster.
    doubles = size.workers * GPUS - size.running
    await _submit(server, "run", range(doubles), 2)
    await _submit(server, "run", range(doubles, size.running), 1)
    await _run_all(server, size.running)
    await _submit(server, "wait", range(size.pending), GPUS)
    await server.services.usage.sample()


async def _submit(server: Running, prefix: str, numbers: range, gpus: int) -> None:
    for first in range(0, len(numbers), _CHUNK):

        def work(turn: Turn, some: range = numbers[first : first + _CHUNK]) -> None:
            for number in some:
                job = f"{prefix}-{number}"
                turn.apply(Submitted(f"j-{job}", _spec(job, number, gpus)))

        await server.engine.do(work)
        await asyncio.sleep(0)


async def _run_all(server: Running, count: int) -> None:
    """Run what is placed, until so many tasks run."""
    running = 0
    while running < count:

        def work(turn: Turn) -> int:
            tasks = [task for gang in turn.cluster.gangs.values() for task in gang.tasks]
            for task in tasks:
                if task.state is State.RESERVED:
                    turn.apply(Claimed(task.id, task.worker))
            return sum(task.state is State.RUNNING for task in tasks)

        running = await server.engine.do(work)
        await asyncio.sleep(_TICK_S)


async def _change(server: Running) -> None:
    """Submit and cancel gangs, so that events stream, until the process is killed."""
    number = 0
    per_tick = max(1, round(EVENTS_PER_S * _TICK_S / _EVENTS_PER_CHANGE))
    while True:

        def work(turn: Turn, first: int = number) -> None:
            for each in range(first, first + per_tick):
                turn.apply(Submitted(f"j-new-{each}", _spec(f"new-{each}", each, GPUS)))
                turn.apply(CancelRequested(f"j-wait-{each}"))

        await server.engine.do(work)
        number += per_tick
        await asyncio.sleep(_TICK_S)


# The browser


async def _first_views(url: str, which: str, goal: Goal) -> list[tuple[str, ...]]:
    """How long after the beginning of the navigation each page shows its data."""
    rows = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name in PAGES:
            times = []
            for _ in range(ROUNDS):
                page = await browser.new_page()
                await _open(page, url, name)
                times.append(float(await page.evaluate(_SHOWN)))
                await page.close()
            rows.append(_row(f"{name}: first view, {which}", times, goal, statistics.median(times)))
        await browser.close()
    return rows


async def _open(page: Page, url: str, name: str) -> None:
    await page.goto(f"{url}/#/{name}")
    await page.locator("main[aria-busy=false]").wait_for(timeout=60_000)


async def _frames(url: str) -> list[tuple[str, ...]]:
    rows = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name in PAGES:
            page = await browser.new_page()
            await _open(page, url, name)
            times: list[float] = await page.evaluate(_FRAMES, WATCHED_S)
            slow = statistics.quantiles(times, n=20)[-1]
            title = f"{name}: frames, {EVENTS_PER_S} events/s"
            rows.append(_row(title, times, FRAME, slow))
            await page.close()
        await browser.close()
    return rows


def _row(title: str, times: list[float], goal: Goal, judged: float) -> tuple[str, ...]:
    slow = statistics.quantiles(times, n=20)[-1]
    numbers = (statistics.median(times), slow, max(times))
    return (title, *(f"{value:,.0f}" for value in numbers), goal.verdict(judged))
