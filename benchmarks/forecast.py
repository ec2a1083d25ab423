"""Forecasts over HTTP: how long `POST /plan` and `GET /jobs/{id}/why` take, and what they do to
submissions.

The server is a process of its own and loads a full cluster with many pending jobs of many shapes.
Under load, clients submit and cancel jobs all the time, so that every forecast finds changes.
"""

import asyncio
import random
import statistics
import time
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from benchmarks.server import Client, Server, serve, served
from benchmarks.tables import Goal, table
from phalanx.core import events
from phalanx.core.cluster import Cluster
from phalanx.core.model import Assignment, Protocol, Rows
from phalanx.core.node import DEVICE, GPU
from phalanx.core.spec.job import JobSpec
from phalanx.core.spec.validation import job_spec
from phalanx.core.time_units import HOUR, Micros
from phalanx.engine.settings import EngineSettings
from phalanx.engine.turn import Turn
from phalanx.host.clock import wall_clock
from phalanx.store.memory import MemoryStore

GPUS = 8
CPUS = 96
#: Sizes, CPUs and GPUs of a task of pending jobs.
SIZES, TASK_CPUS, TASK_GPUS = range(1, 65), range(1, 9), range(1, 9)
FORECASTS = 25
LOAD_CLIENTS = 4
LOAD_PAUSE_S = 0.02
#: Long enough for several plans before anything is measured.
WARM_UP_S = 3.0
BASELINE_S = 5.0


class Case(NamedTuple):
    name: str
    workers: int  #: each is filled by one running gang
    pending: int
    is_loaded: bool
    goal: Goal


CASES = (
    Case("quiet", 1_000, 20_000, is_loaded=False, goal=Goal("ms", at_most=100)),
    Case("under load", 5_000, 50_000, is_loaded=True, goal=Goal("ms", at_most=300)),
)


def run() -> None:
    """Print what was measured."""
    rows: list[tuple[str, ...]] = []
    for case in CASES:
        with served(_serve_cluster, case.workers, case.pending) as server:
            rows += asyncio.run(_measured(case, server))
    print(f"\nForecasts, each the median of {FORECASTS}")
    table(("request", "p50 ms", "p95 ms", "goal"), rows)


# The server


class LoadedStore(MemoryStore):
    """A store in memory that begins with the rows of a cluster."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(clock=wall_clock)
        self._rows = rows

    async def load(self, term: int) -> Rows:
        await super().load(term)
        return self._rows


def _serve_cluster(workers: int, pending: int, pipe: Connection) -> None:
    # No agent speaks for the workers, and loading so much on a busy machine takes a while.
    settings = EngineSettings(lost_after_s=3600, lease_s=3600)
    serve(LoadedStore(_rows(workers, pending)), settings, pipe, _take_inventory)


def _take_inventory(turn: Turn) -> None:
    """Report the tasks of all workers, as their agents would after a restart of the server."""
    for name, node in turn.cluster.nodes.items():
        turn.apply(events.Inventoried(name, node.worker.incarnation, tuple(node.charges)))


def _rows(workers: int, pending: int) -> Rows:
    """A cluster on which nothing is free, and pending jobs of many shapes in one queue."""
    chance, numbers = random.Random(1), count()
    cluster, now = Cluster(), wall_clock() - HOUR
    for number in range(workers):
        name, size = f"w-{number:05}", chance.choice((1, 2, 4, 8))
        resources = {GPU: GPUS * DEVICE, "cpu": CPUS * 1000}
        worker = events.WorkerRegistered(name, "1", Protocol.SYNC, f"{name}:7000", resources)
        cluster.apply(worker, now)
        cluster.apply(events.Inventoried(name, "1", ()), now)
        spec = _spec(size, 1, GPUS // size, chance.choice((2, 4, 8)))
        _run_on(cluster, f"j-{next(numbers):08}", spec, name, now)
    for _ in range(pending):
        size, cpus, gpus = (chance.choice(each) for each in (SIZES, TASK_CPUS, TASK_GPUS))
        spec = _spec(size, cpus, gpus, 4)
        now += 1000
        cluster.apply(events.Submitted(f"j-{next(numbers):08}", spec), now)
    gangs = cluster.gangs.values()
    return Rows(
        jobs=[gang.job for gang in gangs],
        tasks=[task for gang in gangs for task in gang.tasks],
        workers=[node.worker for node in cluster.nodes.values()],
        queues=[*cluster.queues.values()],
        last_seq=cluster.last_seq,
    )


def _spec(size: int, cpus: int, gpus: int, hours: int) -> JobSpec:
    return job_spec(_job(size, cpus, gpus) | {"time_limit": f"{hours}h"})


def _job(size: int, cpus: int, gpus: int) -> dict[str, Any]:
    role = {"command": "train", "replicas": size, "resources": {"cpu": cpus, "gpu": gpus}}
    return {"roles": {"worker": role}}


def _run_on(cluster: Cluster, job: str, spec: JobSpec, worker: str, now: Micros) -> None:
    cluster.apply(events.Submitted(job, spec), now)
    assignments = tuple(Assignment(task, worker) for task in range(spec.size))
    placement = events.Placement(job, cluster.gangs[job].job.version, assignments)
    cluster.apply(events.Placed((placement,)), now)
    for task in cluster.gangs[job].unreleased():
        cluster.apply(events.Accepted(task.id, task.epoch), now)
    for task in cluster.gangs[job].tasks:
        cluster.apply(events.Started(task.id, task.epoch), now)


# The clients


async def _measured(case: Case, server: Server) -> list[tuple[str, ...]]:
    waits_s: list[float] = []
    load = [
        asyncio.create_task(_load(server.port, waits_s, number))
        for number in range(LOAD_CLIENTS if case.is_loaded else 0)
    ]
    client = await Client(server.port).open()
    await asyncio.sleep(WARM_UP_S)
    waits_s.clear()
    await asyncio.sleep(BASELINE_S if case.is_loaded else 0)
    baseline_s = waits_s.copy()
    waits_s.clear()
    plans_s = await _plans(client)
    whys_s = await _whys(client, case.pending)
    for task in load:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    what = f"{case.pending:,} pending, {case.workers:,} running, {case.name}"
    rows = [
        _row(f"POST /plan, {what}", plans_s, case.goal),
        _row(f"GET /jobs/ID/why, {what}", whys_s, case.goal),
    ]
    if case.is_loaded:
        rows.append(_row("  submissions without forecasts", baseline_s))
        rows.append(_row("  submissions beside forecasts", waits_s))
    return rows


async def _plans(client: Client) -> list[float]:
    chance, took_s = random.Random(2), []
    for _ in range(FORECASTS):
        body = _job(*(chance.choice(each) for each in (SIZES, TASK_CPUS, TASK_GPUS)))
        began = time.perf_counter()
        await client.call("POST", "/plan", body)
        took_s.append(time.perf_counter() - began)
    return took_s


async def _whys(client: Client, pending: int) -> list[float]:
    chance, took_s = random.Random(3), []
    page = await client.call("GET", "/jobs?phase=pending&limit=1000")
    for job in chance.sample([each["id"] for each in page["jobs"]], FORECASTS):
        began = time.perf_counter()
        await client.call("GET", f"/jobs/{job}/why")
        took_s.append(time.perf_counter() - began)
    return took_s


async def _load(port: int, waits_s: list[float], seed: int) -> None:
    """Submit and cancel jobs until cancelled."""
    chance, client = random.Random(seed), await Client(port).open()
    while True:
        body = _job(*(chance.choice(each) for each in (SIZES, TASK_CPUS, TASK_GPUS)))
        began = time.perf_counter()
        reply = await client.call("POST", "/jobs", body)
        waits_s.append(time.perf_counter() - began)
        await asyncio.sleep(LOAD_PAUSE_S)
        await client.call("DELETE", f"/jobs/{reply['id']}")


def _row(name: str, times_s: list[float], goal: Goal | None = None) -> tuple[str, ...]:
    p50_ms = 1e3 * statistics.median(times_s)
    p95_ms = 1e3 * statistics.quantiles(times_s, n=20)[-1]
    return name, f"{p50_ms:.0f}", f"{p95_ms:.0f}", "" if goal is None else goal.verdict(p50_ms)
