"""Faults of SQLite: kill -9, two processes on a file, a full disk, a failing flush."""

import asyncio
import os
import random
import secrets
import sqlite3
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.records import job_of
from phalanx.store.protocol import Batch, CommitFailed, OutcomeUnknown, StoreError
from phalanx.store.sqlite import SQLiteStore
from tests.builders import a_job, a_task, a_worker
from tests.compliance.backends import SQLiteBackend
from tests.compliance.committer import TASKS
from tests.compliance.conftest import LEASE

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def _leading(backend: SQLiteBackend) -> AsyncIterator[tuple[SQLiteStore, int]]:
    store = backend.handle()
    await store.open()
    term = await store.lead("s-1", "", LEASE)
    assert term is not None
    try:
        yield store, term
    finally:
        await store.close()


async def _process(what: str, backend: SQLiteBackend) -> Process:
    command = (sys.executable, "-m", "tests.compliance.committer", what, str(backend.path))
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
    assert await _line(process) == "open"
    return process


async def _line(process: Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


async def _rest(process: Process) -> list[str]:
    """The rest of its output, once it has ended."""
    out, _ = await process.communicate(b"")
    *lines, torn = out.decode().split("\n")
    assert not torn
    return lines


@pytest.fixture
def seed() -> int:
    """A new one for each run; pytest shows it where a test fails."""
    return secrets.randbelow(2**32)


async def test_acknowledged_batches_survive_kill_9_and_every_batch_is_whole(
    sqlite_backend: SQLiteBackend, seed: int
) -> None:
    moments = random.Random(seed)  # noqa: S311
    acknowledged: list[str] = []
    for _ in range(5):
        process = await _process("commit", sqlite_backend)
        for _ in range(moments.randrange(1, 80)):
            acknowledged.append(await _line(process))
        # Not always right after an answer: a commit takes some of these turns of the loop.
        for _ in range(moments.randrange(200)):
            await asyncio.sleep(0)
        process.kill()
        acknowledged += await _rest(process)

        async with _leading(sqlite_backend) as (store, term):
            rows = await store.load(term)
            there = [job.id for job in rows.jobs]
            assert set(acknowledged) <= set(there)
            # At most the one batch was not yet acknowledged in each round.
            assert len(there) <= len(acknowledged) + 5
            assert [task.id for task in rows.tasks] == [
                a_task(job, index).id for job in there for index in range(TASKS)
            ]
            assert rows.last_seq == len(there)
            assert [job_of(record) for record in await store.records(limit=10_000)] == there
            assert all([await store.has_batch(f"b-{job}") for job in there[-3:]])
            await store.resign(term)


async def test_one_of_several_processes_on_a_file_leads(sqlite_backend: SQLiteBackend) -> None:
    processes = [await _process("contend", sqlite_backend) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
    answers = [await _line(process) for process in processes]
    assert sorted(answers) == ["1", "None", "None"]
    for process in processes:
        assert await _rest(process) == []


async def test_a_full_disk_fails_the_commit_and_writes_nothing(
    sqlite_backend: SQLiteBackend,
) -> None:
    async with _leading(sqlite_backend) as (store, term):
        await store.commit(term, Batch("b-1", workers=(a_worker("w-1"),)))
        before = await store.load(term)
        await store._writer.run(lambda db: db.execute("PRAGMA max_page_count = 1").fetchall())
        tasks = tuple(a_task(index=index) for index in range(2_000))
        large = Batch("b-2", jobs=(a_job(),), workers=(a_worker("w-2"),), tasks=tasks)

        with pytest.raises(CommitFailed, match=r"b-2 was not written.* full"):
            await store.commit(term, large)

        assert await store.load(term) == before
        assert not await store.has_batch("b-2")
        await store._writer.run(lambda db: db.execute("PRAGMA max_page_count = 100000").fetchall())
        await store.commit(term, large)
        assert len((await store.load(term)).tasks) == 2_000


@pytest.mark.parametrize("reaches_the_disk", [False, True])
async def test_a_flush_that_fails_leaves_the_outcome_unknown_until_has_batch(
    sqlite_backend: SQLiteBackend, monkeypatch: pytest.MonkeyPatch, reaches_the_disk: bool
) -> None:
    class Failing(sqlite3.Connection):
        broken = False

        def execute(self, text: str, *values: Any) -> sqlite3.Cursor:
            if text == "COMMIT" and Failing.broken:
                Failing.broken = False
                if reaches_the_disk:
                    super().execute(text)
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(text, *values)

    failing = partial(sqlite3.connect, factory=Failing)
    monkeypatch.setattr("phalanx.store.sqlite.sqlite3.connect", failing)
    async with _leading(sqlite_backend) as (store, term):
        batch = Batch("b-1", workers=(a_worker(),))
        Failing.broken = True
        with pytest.raises(OutcomeUnknown):
            await store.commit(term, batch)
        assert await store.has_batch("b-1") is reaches_the_disk
        assert len((await store.load(term)).workers) == reaches_the_disk
        await store.commit(term, batch)
        assert (await store.load(term)).workers == [a_worker()]
        assert await store.has_batch("b-1")


async def test_has_batch_overwrites_what_a_failed_flush_left(
    sqlite_backend: SQLiteBackend,
) -> None:
    async with _leading(sqlite_backend) as (store, _):
        wal = sqlite_backend.path.with_name("phalanx.db-wal")
        before = wal.stat().st_size
        assert not await store.has_batch("b-1")
        assert wal.stat().st_size > before


def _pragma(name: str, db: sqlite3.Connection) -> object:
    return db.execute(f"PRAGMA {name}").fetchone()[0]


async def test_a_commit_is_flushed_to_the_disk(sqlite_backend: SQLiteBackend) -> None:
    async with _leading(sqlite_backend) as (store, _):
        assert await store._writer.run(partial(_pragma, "journal_mode")) == "wal"
        assert await store._writer.run(partial(_pragma, "synchronous")) == 2


async def test_reading_a_page_delays_no_commit(sqlite_backend: SQLiteBackend) -> None:
    async with _leading(sqlite_backend) as (store, term):
        reading, finish = threading.Event(), threading.Event()

        def slow_page(db: sqlite3.Connection) -> int:
            db.execute("BEGIN")
            db.execute("SELECT count(*) FROM workers").fetchall()
            reading.set()
            finish.wait(60)
            count: int = db.execute("SELECT count(*) FROM workers").fetchone()[0]
            db.execute("ROLLBACK")
            return count

        page = asyncio.create_task(store._reader.run(slow_page))
        assert await asyncio.to_thread(reading.wait, 60)
        await store.commit(term, Batch("b-1", workers=(a_worker(),)))
        assert not page.done()
        finish.set()
        assert await page == 0
        assert len((await store.load(term)).workers) == 1


async def test_a_store_waits_for_a_file_that_another_process_creates(
    sqlite_backend: SQLiteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SQLite does not wait, even with a timeout, when it changes such a file to WAL.
    other = sqlite3.connect(sqlite_backend.path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if other.in_transaction:
            other.execute("COMMIT")

    monkeypatch.setattr("phalanx.store.sqlite_connection.time.sleep", wait)
    async with _leading(sqlite_backend) as (store, term):
        await store.commit(term, Batch("b-1"))
    assert waited
    other.close()


async def test_a_closed_store_raises_an_error_that_says_so(sqlite_backend: SQLiteBackend) -> None:
    async with _leading(sqlite_backend) as (store, term):
        pass
    with pytest.raises(CommitFailed, match="is closed"):
        await store.commit(term, Batch("b-1"))
    with pytest.raises(StoreError, match="is closed"):
        await store.cluster_id()


async def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "nowhere" / "phalanx.db")
    with pytest.raises(StoreError, match="nowhere"):
        await store.open()
    await store.close()


async def test_only_the_owner_can_read_the_files_also_of_an_earlier_store(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        tmp_path.chmod(0o755)
        (tmp_path / "phalanx.db").touch(0o644)
        async with _leading(SQLiteBackend(tmp_path / "phalanx.db")) as (_, _):
            files = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(umask)
    assert len(files) == 4
    assert set(files.values()) == {0o600}


async def test_a_large_gang_is_written_with_few_statements(sqlite_backend: SQLiteBackend) -> None:
    # With each statement the thread may wait for the interpreter while the event loop is busy.
    statements: list[str] = []
    tasks = tuple(a_task(index=index) for index in range(10_000))
    async with _leading(sqlite_backend) as (store, term):
        await store._writer.run(lambda db: db.set_trace_callback(statements.append))
        await store.commit(term, Batch("b-1", jobs=(a_job(),), tasks=tasks))
        stored = await store.job("j-1")
    assert stored is not None
    assert len(stored[1]) == 10_000
    assert len(statements) < 100


async def test_a_few_rows_of_a_table_are_written_with_one_statement(
    sqlite_backend: SQLiteBackend,
) -> None:
    jobs = tuple(a_job(f"j-{number}") for number in range(7))
    tasks = tuple(a_task(f"j-{number}") for number in range(7))
    statements: list[str] = []
    async with _leading(sqlite_backend) as (store, term):
        await store._writer.run(lambda db: db.set_trace_callback(statements.append))
        await store.commit(term, Batch("b-1", jobs=jobs, tasks=tasks))
        await store._writer.run(lambda db: db.set_trace_callback(None))
    tables = [words[2] for words in map(str.split, statements) if words[0] == "INSERT"]
    assert sorted(tables) == ["batches", "jobs", "tasks"]
