"""The core alone: events applied per second, memory of a pending task, and an array.

Only `Cluster.apply` is timed, not the benchmark's own choice of events and places.
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
from phalanx.core.spec.job import JobSpec
from phalanx.core.spec.validation import job_spec
from phalanx.core.states import State
from phalanx.core.time_units import SECOND, Micros
from phalanx.plan.cycle import plan
from phalanx.plan.state.planner_state import PlannerState

WORKERS = 1_000
GPUS = 8
SIZES = (1, 4, 8, 64)
#: Frequency of the sizes: each size contributes about the same number of tasks.
SIZE_WEIGHTS = (64, 16, 8, 1)
EVENTS = 200_000
#: Per hundred running gangs; the others complete.
FAILING, EVICTED, CANCELLED = 10, 5, 2
PROGRESS_REPORTS = 5
BACKLOG = 2_000

PENDING_TASKS = 100_000
ELEMENTS = 10_000

EVENTS_GOAL = Goal(at_least=50_000, unit="events/s")
ELEMENT_GOAL = Goal(at_most=200, unit="bytes")
BYTES_GOAL = Goal(at_most=2_048, unit="bytes")


class Tally(NamedTuple):
    """The number of events of each kind, and the time they took."""

    counts: Counter[str]
    nanoseconds: Counter[str]

    def rate(self, kind: str) -> float:
        return self.counts[kind] / (self.nanoseconds[kind] / 1e9)

    def overall(self, kinds: list[str]) -> float:
        seconds = sum(self.nanoseconds[kind] for kind in kinds) / 1e9
        return sum(self.counts[kind] for kind in kinds) / seconds


class Site:
    """A cluster with many workers and a steady stream of gangs."""

    def __init__(self, seed: int) -> None:
        self.tally = Tally(Counter(), Counter())
        self._random = random.Random(seed)
        self._now: Micros = 1_700_000_000 * SECOND
        # Gangs fail so often here that every worker would be cordoned.
        self._cluster = Cluster(CoreSettings(suspect_jobs=1_000_000))
        self._numbers = itertools.count()
        #: The name of a worker for each of its free GPUs.
        self._free_gpus = [f"w-{n:04}" for _ in range(GPUS) for n in range(WORKERS)]
        for name in self._free_gpus[:WORKERS]:
            self._apply(
                events.WorkerRegistered(
                    name, "1", Protocol.SYNC, f"{name}:7000", {GPU: GPUS * DEVICE}
                )
            )
            self._apply(events.Inventoried(name, "1", ()))

    def run(self, count: int) -> None:
        """Keep the workers full, with a backlog, until so many events were applied."""
        pending = [self._submit() for _ in range(BACKLOG)]
        running: list[str] = []
        while self.tally.counts.total() < count:
            while len(self._free_gpus) >= max(SIZES):
                running.append(self._start(pending.pop(0)))
                pending.append(self._submit())
            # The third that has run longest ends.
            ending, running = running[: len(running) // 3], running[len(running) // 3 :]
            pending = [job for job in ending if not self._end(job)] + pending

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
        taken, self._free_gpus = self._free_gpus[: gang.size], self._free_gpus[gang.size :]
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
        """End the run of a job in a random way; whether the job has ended too."""
        tasks = self._tasks(job, State.RUNNING)
        self._free_gpus += [task.worker or "" for task in tasks]
        outcome = self._random.randrange(100)
        if outcome < FAILING:
            trigger = tasks[len(tasks) // 2]
            self._apply(events.Exited(trigger.id, trigger.epoch, code=1))
        elif outcome < FAILING + EVICTED:
            self._apply(events.Evicted(job, by="ops", why="evicted by the benchmark"))
        elif outcome < FAILING + EVICTED + CANCELLED:
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
    """A specification as parsed from one request: equal to others, but not the same object."""
    return job_spec(json.loads(_REQUESTS[size]))


def a_unique_gang(size: int, number: int) -> JobSpec:
    document = json.loads(_REQUESTS[size])
    document["roles"]["worker"]["env"]["SEED"] = str(number)
    return job_spec(document)


def submitted(size: int, tasks: int, *, alike: bool) -> Cluster:
    """A cluster with so many pending tasks."""
    cluster = Cluster()
    for number in range(tasks // size):
        spec = a_gang(size) if alike else a_unique_gang(size, number)
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


def measured(make: Callable[[], Cluster], count: int = PENDING_TASKS) -> tuple[Cluster, float]:
    """A cluster, and its memory in bytes for each of so many tasks."""
    gc.collect()
    tracemalloc.start()
    cluster = make()
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return cluster, used / count


def measure_events() -> None:
    print(f"Core: gangs of {', '.join(map(str, SIZES))} tasks on {WORKERS:,} workers")
    site = Site(seed=1)
    site.run(EVENTS)
    tally = site.tally
    rows = [
        (kind, f"{count:,}", f"{tally.rate(kind):,.0f}", f"{1e6 / tally.rate(kind):.1f}", "")
        for kind, count in tally.counts.most_common()
    ]
    # Progress reports are frequent and change no row, so the goal must hold without them.
    changing = [kind for kind in tally.counts if kind != "Progressed"]
    for what, kinds in (("all", list(tally.counts)), ("all except Progressed", changing)):
        total, rate = sum(tally.counts[kind] for kind in kinds), tally.overall(kinds)
        goal = EVENTS_GOAL.verdict(rate)
        rows.append((what, f"{total:,}", f"{rate:,.0f}", f"{1e6 / rate:.1f}", goal))
    table(("event", "count", "per second", "µs per event", "goal"), rows)


def measure_memory() -> None:
    print(f"Core: memory of {PENDING_TASKS:,} pending tasks")
    used: dict[str, float] = {}
    for size, alike in product((1, 8), (True, False)):
        what = f"in gangs of {size}, {'identical specs' if alike else 'different specs'}"
        cluster, used[what] = measured(partial(submitted, size, PENDING_TASKS, alike=alike))
        rows = stored(cluster)
        del cluster
        _, used[f"{what}, loaded from the store"] = measured(partial(loaded, rows))
    table(
        ("tasks", "bytes per task", "goal"),
        [(what, f"{size:,.0f}", BYTES_GOAL.verdict(size)) for what, size in used.items()],
    )


def measure_array() -> None:
    """An array of 10,000 elements: submitted, loaded by a new leader, planned, and run."""
    print(f"Core: an array of {ELEMENTS:,} elements on a full cluster")
    cluster, used_bytes = measured(partial(_with_array, busy=True), ELEMENTS)
    began = time.perf_counter()
    _with_array(busy=True)
    submit_s = time.perf_counter() - began
    rows = stored(cluster)
    began = time.perf_counter()
    loaded(rows)
    load_s = time.perf_counter() - began
    state = PlannerState.of(cluster)
    plan(state, SECOND)
    began = time.perf_counter()
    plan(state, 2 * SECOND)
    plan_s = time.perf_counter() - began
    ended, run_s = _run_array()
    lines = [
        (
            "memory of a pending element",
            f"{used_bytes:,.0f}",
            "bytes",
            ELEMENT_GOAL.verdict(used_bytes),
        ),
        ("submitted", f"{1e3 * submit_s:,.1f}", "ms", ""),
        ("loaded by a new leader", f"{1e3 * load_s:,.1f}", "ms", ""),
        ("planned, nothing fits", f"{1e3 * plan_s:,.1f}", "ms", ""),
        ("placed, started and ended one by one", f"{ended / run_s:,.0f}", "elements/s", ""),
    ]
    table(("array", "value", "unit", "goal"), lines)


def _with_array(*, busy: bool) -> Cluster:
    """A cluster of one worker, which another job occupies if it is busy, and a pending array."""
    cluster = Cluster()
    worker = events.WorkerRegistered("w", "1", Protocol.SYNC, "w:7000", {GPU: DEVICE})
    cluster.apply(worker, SECOND)
    cluster.apply(events.Inventoried("w", "1", ()), SECOND)
    role = {"command": "train --seed {index}", "resources": {"gpu": 1}}
    if busy:
        cluster.apply(events.Submitted("j-busy", job_spec({"roles": {"w": role}})), SECOND)
        _place(cluster, "j-busy")
    document = {"roles": {"w": role}, "array": f"0-{ELEMENTS - 1}"}
    cluster.apply(events.Submitted("j-array", job_spec(document)), SECOND)
    return cluster


def _place(cluster: Cluster, job: str) -> None:
    placement = events.Placement(job, cluster.gangs[job].job.version, (Assignment(0, "w"),))
    cluster.apply(events.Placed((placement,)), SECOND)


def _run_array() -> tuple[int, float]:
    """Run every element of an array: their number, and the seconds that it took."""
    cluster = _with_array(busy=False)
    began = time.perf_counter()
    for index in range(ELEMENTS):
        job = f"j-array[{index}]"
        _place(cluster, job)
        for event in (events.Accepted, events.Started, events.Exited):
            fields = (f"{job}.0", 1, 0) if event is events.Exited else (f"{job}.0", 1)
            cluster.apply(event(*fields), SECOND)
    if cluster.gangs:
        raise AssertionError("bug: the array has not ended")
    return ELEMENTS, time.perf_counter() - began


def run() -> None:
    """Run the benchmarks and print the results."""
    measure_events()
    print()
    measure_memory()
    print()
    measure_array()
