"""The dashboard in Chromium on a large cluster: when a page shows its data, how smooth it stays
while events stream in, and how much memory its tabs use over time. The server is a process of its
own and keeps everything in memory."""

import asyncio
import multiprocessing
import shutil
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from playwright.async_api import Browser, Page, async_playwright
from tests.builders import a_role, a_spec
from tests.dashboard.pages import NOTE_FIRST_VIEW
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
ROUNDS = 7
#: Before a page is opened, so that the browser has ended the work for the page before.
SETTLE_S = 0.3
QUEUES = 12
#: A gang is submitted and another one cancelled: a submission, a cancellation, an end.
_EVENTS_PER_CHANGE = 3
_TICK_S = 0.1
_CHUNK = 2000

SMALL, LARGE = Goal("ms", at_most=300), Goal("ms", at_most=1000)
FRAME = Goal("ms", at_most=34)

PAGES = ("overview", "jobs", "cluster", "queues")
#: On the large cluster.
A_JOB = "job/j-run-0"
MINUTES = 10
_FRAMES = """seconds => new Promise(resolve => {
    const times = []; let last = performance.now(); const end = last + 1000 * seconds;
    const step = now => {
        times.push(now - last); last = now;
        if (now < end) requestAnimationFrame(step); else resolve(times);
    };
    requestAnimationFrame(step);
})"""


def run(size: ClusterSize = SIZE) -> None:
    with _server(size) as (url, server):
        if not url:
            return
        _print(asyncio.run(_first_views(url, PAGES, "empty cluster", SMALL)))
        _fill_server(server)
        _print(asyncio.run(_first_views(url, (*PAGES, A_JOB), "large cluster", LARGE)))
        server.send("traffic")
        _print(asyncio.run(_frames(url)))


def memory(size: ClusterSize = SIZE, minutes: int = MINUTES) -> None:
    """The heap of each tab after a garbage collection, every minute while events stream."""
    with _server(size) as (url, server):
        if not url:
            return
        _fill_server(server)
        server.send("traffic")
        rows = asyncio.run(_heaps(url, minutes))
        print(f"MB of JavaScript heap after each minute, {EVENTS_PER_S} events/s")
        table(("page", *(str(minute) for minute in range(minutes + 1))), rows)


@contextmanager
def _server(size: ClusterSize) -> Iterator[tuple[str, Any]]:
    """The URL of a server in a process of its own, and the pipe to it."""
    gangs = f"{size.running:,} running and {size.pending:,} pending gangs"
    print(f"\nDashboard, {size.workers:,} workers, {gangs}", flush=True)
    if shutil.which("chromium") is None:
        print("there is no chromium in PATH")
        yield "", None
        return
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, size), daemon=True)
    process.start()
    theirs.close()  # so that a server that fails ends the benchmark
    try:
        yield ours.recv(), ours
    finally:
        process.terminate()
        process.join()


def _fill_server(server: Any) -> None:
    began = time.monotonic()
    server.send("fill")
    server.recv()
    print(f"the cluster was filled in {time.monotonic() - began:.0f} s\n", flush=True)


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
    while len(server.engine.reasons) < size.pending:  # the first plan of all of them
        await asyncio.sleep(_TICK_S)
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


@asynccontextmanager
async def _chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield browser
        await browser.close()


async def _first_views(
    url: str, addresses: tuple[str, ...], which: str, goal: Goal
) -> list[tuple[str, ...]]:
    """How long after the beginning of the navigation the data of each page are on the screen: on
    the first visit of a browser, and on a later one, when it has the files. The page measures it;
    the benchmark waits."""
    rows = []
    async with _chromium() as browser:
        for address in addresses:
            visits: dict[str, list[float]] = {"first visit": [], "later visit": []}
            for _ in range(ROUNDS):
                context = await browser.new_context()
                await context.add_init_script(NOTE_FIRST_VIEW)
                for times in visits.values():
                    page = await context.new_page()
                    await asyncio.sleep(SETTLE_S)
                    await page.goto(f"{url}/#/{address}", wait_until="commit")
                    times.append(float(await page.evaluate("window.firstView")))
                    await page.close()
                await context.close()
            for visit, times in visits.items():
                title = f"{address.partition('/')[0]}: {visit}, {which}"
                rows.append(_row(title, times, goal, statistics.median(times)))
    return rows


async def _open(page: Page, url: str, address: str) -> None:
    await page.goto(f"{url}/#/{address}")
    await page.locator("main[aria-busy=false]").wait_for(timeout=60_000)


async def _frames(url: str) -> list[tuple[str, ...]]:
    rows = []
    async with _chromium() as browser:
        for name in PAGES:
            page = await browser.new_page()
            await _open(page, url, name)
            times: list[float] = await page.evaluate(_FRAMES, WATCHED_S)
            slow = statistics.quantiles(times, n=20, method="inclusive")[-1]
            title = f"{name}: frames, {EVENTS_PER_S} events/s"
            rows.append(_row(title, times, FRAME, slow))
            await page.close()
    return rows


async def _heaps(url: str, minutes: int) -> list[tuple[str, ...]]:
    async with _chromium() as browser:
        context = await browser.new_context()
        pages = {}
        for address in (*PAGES, A_JOB):
            page = pages[address.partition("/")[0]] = await context.new_page()
            await _open(page, url, address)
        heaps: dict[str, list[str]] = {name: [] for name in pages}
        for minute in range(minutes + 1):
            for name, page in pages.items():
                heaps[name].append(f"{await _heap_mb(page):.1f}")
            print(f"minute {minute}: {', '.join(heap[-1] for heap in heaps.values())}", flush=True)
            await asyncio.sleep(60 if minute < minutes else 0)
    return [(name, *values) for name, values in heaps.items()]


async def _heap_mb(page: Page) -> float:
    tools = await page.context.new_cdp_session(page)
    await tools.send("HeapProfiler.collectGarbage")
    await tools.send("Performance.enable")
    metrics = (await tools.send("Performance.getMetrics"))["metrics"]
    await tools.detach()
    used = next(each["value"] for each in metrics if each["name"] == "JSHeapUsedSize")
    return float(used) / 1e6


def _row(title: str, times: list[float], goal: Goal, judged: float) -> tuple[str, ...]:
    slow = statistics.quantiles(times, n=20, method="inclusive")[-1]
    numbers = (statistics.median(times), slow, max(times))
    return (title, *(f"{value:,.0f}" for value in numbers), goal.verdict(judged))
