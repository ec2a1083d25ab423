"""The core alone: how many events it applies in a second, and what a waiting task costs in memory.

Only `Cluster.apply` is timed; choosing what happens next and where tasks go is the bench's work.
"""

import gc
import itertools
import json
import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple

import msgspec

from benchmarks.tables import Goal, table
from phalanx.core import events
from phalanx.core.cluster import Cluster
from phalanx.core.ids import job_id, scrambled
from phalanx.core.model import Assignment, Blob, Protocol, Rows, Task
from phalanx.core.node import DEVICE, GPU
from phalanx.core.settings import CoreSettings
from phalanx.core.spec.job import SECOND, JobSpec, Micros
from phalanx.core.spec.validation import job_spec
from phalanx.core.states import State

WORKERS = 1_000
GPUS = 8
SIZES = (1, 4, 8, 64)
#: How often a gang of each size comes, so that each size brings about as many tasks.
SIZE_WEIGHTS = (64, 16, 8, 1)
EVENTS = 200_000
#: Of a hundred gangs that run, so many end like this; the others finish.
FAILING, EVICTED, CANCELLED = 10, 5, 2
PROGRESS_REPORTS = 5
BACKLOG = 2_000

WAITING_TASKS = 100_000

EVENTS_GOAL = Goal(at_least=50_000, unit="events/s")
BYTES_GOAL = Goal(at_most=2_048, unit="bytes")


class Tally(NamedTuple):
    """How often each kind of event was applied, and the nanoseconds that took."""

    counts: Counter[str]
    nanoseconds: Counter[str]

    def rate(self, kind: str) -> float:
        return self.counts[kind] / (self.nanoseconds[kind] / 1e9)

    def overall(self, kinds: list[str]) -> float:
        seconds = sum(self.nanoseconds[kind] for kind in kinds) / 1e9
        return sum(self.counts[kind] for kind in kinds) / seconds


class Site:
    """A cluster of many workers on which gangs come and go."""

    def __init__(self, seed: int) -> None:
        self.tally = Tally(Counter(), Counter())
        self._random = random.Random(seed)
        self._now: Micros = 1_700_000_000 * SECOND
        # Failures are dense here, and a worker that is cordoned for them would leave the mix.
        self._cluster = Cluster(CoreSettings(suspect_jobs=1_000_000))
        self._numbers = itertools.count()
        #: A worker's name for every GPU that is free.
        self._seats = [f"w-{n:04}" for _ in range(GPUS) for n in range(WORKERS)]
        for name in self._seats[:WORKERS]:
            self._apply(
                events.WorkerRegistered(
                    name, "1", Protocol.SYNC, f"{name}:7000", {GPU: GPUS * DEVICE}
                )
            )
            self._apply(events.Inventoried(name, "1", ()))

    def run(self, count: int) -> None:
        """Keep a backlog and the machines full until so many events were applied."""
        waiting = [self._submit() for _ in range(BACKLOG)]
        running: list[str] = []
        while self.tally.counts.total() < count:
            while len(self._seats) >= max(SIZES):
                running.append(self._start(waiting.pop(0)))
                waiting.append(self._submit())
            # The longest-running third makes room.
            ending, running = running[: len(running) // 3], running[len(running) // 3 :]
            waiting = [job for job in ending if not self._end(job)] + waiting

    def _apply(self, event: events.Event) -> None:
        self._now += 5_000
        began = time.perf_counter_ns()
        self._cluster.apply(event, self._now)
        took = time.perf_counter_ns() - began
        kind = type(event).__name__
        self.tally.counts[kind] += 1
        self.tally.nanoseconds[kind] += took

    def _submit(self) -> str:
        [size] = self._random.choices(SIZES, SIZE_WEIGHTS)
        job = job_id(scrambled(next(self._numbers)))
        self._apply(events.Submitted(job, a_gang(size), owner="ada"))
        return job

    def _tasks(self, job: str, *states: State) -> list[Task]:
        return [task for task in self._cluster.gangs[job].tasks if task.state in states]

    def _start(self, job: str) -> str:
        gang = self._cluster.gangs[job]
        taken, self._seats = self._seats[: gang.size], self._seats[gang.size :]
        assignments = tuple(Assignment(n, worker) for n, worker in enumerate(taken))
        self._apply(events.Placed((events.Placement(job, gang.job.version, assignments),)))
        for task in self._cluster.gangs[job].unreleased():
            self._apply(events.Accepted(task.id, task.epoch))
        for task in self._tasks(job, State.RESERVED):
            self._apply(events.Started(task.id, task.epoch))
        for step in range(PROGRESS_REPORTS):
            for task in self._tasks(job, State.RUNNING):
                self._apply(events.Progressed(task.id, task.epoch, step, safe=task.index == 0))
        return job

    def _end(self, job: str) -> bool:
        """One of the ways in which a run ends; says whether the job has ended with it."""
        tasks = self._tasks(job, State.RUNNING)
        self._seats += [task.worker or "" for task in tasks]
        fate = self._random.randrange(100)
        if fate < FAILING:
            trigger = tasks[len(tasks) // 2]
            self._apply(events.Exited(trigger.id, trigger.epoch, code=1))
        elif fate < FAILING + EVICTED:
            self._apply(events.Evicted(job, by="ops", why="room is needed"))
        elif fate < FAILING + EVICTED + CANCELLED:
            self._apply(events.CancelRequested(job, by="ada"))
        else:
            for task in tasks:
                self._apply(events.Exited(task.id, task.epoch, code=0))
            return True
        self._stop(job)
        gang = self._cluster.gangs.get(job)
        if gang is not None and gang.job.pending is not None:
            self._now = max(self._now, gang.job.pending.not_before)
        return gang is None

    def _stop(self, job: str) -> None:
        if job not in self._cluster.gangs:
            return
        for task in self._tasks(job, State.PREEMPTING):
            blob = Blob(f"{task.id}-{task.epoch}", 4096)
            self._apply(events.CheckpointSaved(task.id, task.epoch, blob))
            self._apply(events.Exited(task.id, task.epoch, code=0, signalled=True))


def _document(size: int) -> dict[str, object]:
    worker = {
        "replicas": size,
        "command": ["python", "train.py", "--config", "7b.toml"],
        "env": {"NCCL_DEBUG": "WARN"},
        "resources": {"gpu": 1},
    }
    return {"roles": {"worker": worker}, "checkpoint": "each"}


_REQUESTS = {size: json.dumps(_document(size)) for size in SIZES}


def a_gang(size: int) -> JobSpec:
    """A specification of its own request: equal to others, but not the same object."""
    return job_spec(json.loads(_REQUESTS[size]))


def a_gang_like_no_other(size: int, number: int) -> JobSpec:
    document = json.loads(_REQUESTS[size])
    document["roles"]["worker"]["env"]["SEED"] = str(number)
    return job_spec(document)


def submitted(size: int, tasks: int, *, alike: bool) -> Cluster:
    """A cluster in which so many tasks wait."""
    cluster = Cluster()
    for number in range(tasks // size):
        spec = a_gang(size) if alike else a_gang_like_no_other(size, number)
        cluster.apply(events.Submitted(job_id(scrambled(number)), spec, owner="ada"), SECOND)
    return cluster


def stored(cluster: Cluster) -> bytes:
    gangs = cluster.gangs.values()
    rows = Rows(
        jobs=[gang.job for gang in gangs], tasks=[task for gang in gangs for task in gang.tasks]
    )
    return msgspec.json.encode(rows)


def loaded(rows: bytes) -> Cluster:
    return Cluster.load(msgspec.json.decode(rows, type=Rows), SECOND)


def measured(make: Callable[[], Cluster]) -> tuple[Cluster, float]:
    """A cluster, and the bytes it holds for each task."""
    gc.collect()
    tracemalloc.start()
    cluster = make()
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return cluster, used / WAITING_TASKS


def measure_events() -> None:
    print(f"The core: gangs of {', '.join(map(str, SIZES))} on {WORKERS:,} workers")
    site = Site(seed=1)
    site.run(EVENTS)
    tally = site.tally
    rows = [
        (kind, f"{count:,}", f"{tally.rate(kind):,.0f}", f"{1e6 / tally.rate(kind):.1f}", "")
        for kind, count in tally.counts.most_common()
    ]
    # Reports of progress change no row, and there are many; the goal has to hold without them.
    changing = [kind for kind in tally.counts if kind != "Progressed"]
    for what, kinds in (("all", list(tally.counts)), ("all but Progressed", changing)):
        total, rate = sum(tally.counts[kind] for kind in kinds), tally.overall(kinds)
        goal = EVENTS_GOAL.verdict(rate)
        rows.append((what, f"{total:,}", f"{rate:,.0f}", f"{1e6 / rate:.1f}", goal))
    table(("event", "count", "per second", "µs each", "goal"), rows)


def measure_memory() -> None:
    print(f"The core: {WAITING_TASKS:,} waiting tasks in memory")
    used: dict[str, float] = {}
    for size, alike in product((1, 8), (True, False)):
        what = f"gangs of {size}, {'all alike' if alike else 'no two alike'}"
        cluster, used[what] = measured(partial(submitted, size, WAITING_TASKS, alike=alike))
        rows = stored(cluster)
        del cluster
        _, used[f"{what}, loaded"] = measured(partial(loaded, rows))
    table(
        ("what", "bytes per task", "goal"),
        [(what, f"{size:,.0f}", BYTES_GOAL.verdict(size)) for what, size in used.items()],
    )


def run() -> None:
    """Print what was measured."""
    measure_events()
    print()
    measure_memory()
