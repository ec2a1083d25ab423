"""The store in one file on one host: WAL, flushed to disk with every commit.

One thread writes and another reads, so that a page never delays a commit and neither delays the
event loop. A leader holds an flock besides its term: the lease is judged by the host's wall
clock, and the lock keeps a second leader out when that clock is set forward.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from phalanx.core.model import Job, Rows, Task
from phalanx.core.records import Record
from phalanx.core.spec.job import Micros
from phalanx.store import rows, schema, sql
from phalanx.store.host import HostLock, refuse_network
from phalanx.store.protocol import (
    Batch,
    Chunk,
    CommitFailed,
    Cut,
    Deposed,
    JobPage,
    JobQuery,
    Leader,
    OutcomeUnknown,
    Pruned,
    Span,
    StoreError,
    Token,
)
from phalanx.store.rows import Clock, Cursor, Encoded, JobRow, Table, Value, column

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

#: How long to wait for another process that is writing, such as a standby asking for the lead.
_BUSY_S = 5.0
_RETRY_S = 0.005
_WAL_BYTES = 64 * 1024 * 1024

_HAS_JOB = "SELECT 1 FROM jobs WHERE id = ?"
_OTHER_JOB = "SELECT 1 FROM jobs WHERE id = ? AND created_at <> ?"
_CUT = """
    DELETE FROM output WHERE job = ?1 AND position = ?2 AND epoch = ?3
    AND begins < ?4 AND ends <= ?4 RETURNING ends - begins
"""


def wall_clock() -> Micros:
    return time.time_ns() // 1000


def _patiently(work: Callable[[], object]) -> None:
    """Outwait another process, also where SQLite itself gives up at once: while a fresh file
    changes to WAL, and while the last one to leave a file tidies it up."""
    until = time.monotonic() + _BUSY_S
    while True:
        try:
            work()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_RETRY_S)
        else:
            return


class _Lane:
    """One connection that lives in one thread; what it is asked happens in that order."""

    def __init__(self, path: Path, *pragmas: str) -> None:
        self._path = path
        self._pragmas = pragmas
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="phalanx-sqlite")
        self._db: sqlite3.Connection | None = None
        self._closed = False

    async def run(self, work: Work[T]) -> T:
        """Raises StoreError where SQLite raises its own."""
        if self._closed:
            raise StoreError(f"{self._path} is closed; open another store")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._call, work)
        except (sqlite3.Error, OverflowError) as error:
            raise StoreError(f"{self._path}: {error}") from error

    def _call(self, work: Work[T]) -> T:
        if self._db is None:
            self._db = self._connect()
        return work(self._db)

    def _connect(self) -> sqlite3.Connection:
        # The module's own transactions are switched off: they would begin too late and too softly.
        db = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
        for pragma in self._pragmas:
            _patiently(partial(db.execute, f"PRAGMA {pragma}"))
        return db

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
            self._thread.shutdown()


class SQLiteStore:
    """One handle on a file. The directory must exist."""

    def __init__(self, path: Path | str, *, clock: Clock = wall_clock) -> None:
        self._path = Path(path).resolve()
        self._clock = clock
        self._lock = HostLock(self._path.with_name(self._path.name + ".lock"))
        self._writer = _Lane(
            self._path,
            "journal_mode = WAL",
            "synchronous = FULL",
            f"journal_size_limit = {_WAL_BYTES}",
        )
        self._reader = _Lane(self._path, "query_only = ON")

    async def open(self) -> None:
        refuse_network(self._path)
        await self._writer.run(_migrate)

    async def close(self) -> None:
        await self._reader.close()
        await self._writer.close()
        self._lock.release()

    async def cluster_id(self) -> str:
        [(cluster,)] = await self._read(sql.CLUSTER_ID)
        return str(cluster)

    async def lead(self, holder: str, url: str, lease: Micros) -> int | None:
        return await self._writer.run(partial(self._lead, holder, url, lease))

    def _lead(self, holder: str, url: str, lease: Micros, db: sqlite3.Connection) -> int | None:
        held = self._lock.held
        try:
            if not self._lock.acquire():
                return None
        except OSError as error:
            raise StoreError(f"cannot lock {self._path}: {error}") from error
        term: int | None = None
        try:
            with _transaction(db):
                now = self._clock()
                # A lock that was free says that whoever led has ended; its lease binds nobody.
                found = db.execute(
                    "UPDATE leader SET term = term + 1, holder = ?, url = ?, expires_at = ?,"
                    " writes = writes + 1 WHERE expires_at <= ? OR ? RETURNING term",
                    (holder, url, now + lease, now, not held),
                ).fetchall()
            term = found[0][0] if found else None
        finally:
            if term is None and not held:
                self._lock.release()
        return term

    async def renew(self, term: int, lease: Micros) -> None:
        def work(db: sqlite3.Connection) -> None:
            with _transaction(db):
                _fence(db, term)
                db.execute("UPDATE leader SET expires_at = ?", (self._clock() + lease,))

        await self._writer.run(work)

    async def resign(self, term: int) -> None:
        def work(db: sqlite3.Connection) -> None:
            with suppress(Deposed), _transaction(db):
                _fence(db, term)
                db.execute("UPDATE leader SET expires_at = 0")
            self._lock.release()

        await self._writer.run(work)

    async def leader(self) -> Leader | None:
        found = await self._read(
            "SELECT term, holder, url FROM leader WHERE expires_at > $1", self._clock()
        )
        return Leader(*found[0]) if found else None

    async def load(self, term: int) -> Rows:
        def work(db: sqlite3.Connection) -> Rows:
            db.execute("BEGIN")
            try:
                _, last_seq = _term_and_last_seq(db, term)
                docs = {
                    name: [doc for (doc,) in db.execute(query)] for name, query in sql.LIVE.items()
                }
            finally:
                db.execute("ROLLBACK")
            return rows.live_rows(docs, last_seq)

        return await self._reader.run(work)

    async def commit(self, term: int, batch: Batch) -> None:
        encoded = rows.encode(batch)
        try:
            await self._writer.run(partial(self._commit, term, encoded))
        except (Deposed, CommitFailed, OutcomeUnknown):
            raise
        except StoreError as error:
            raise CommitFailed(f"batch {batch.id} was not written: {error}") from error

    def _commit(self, term: int, encoded: Encoded, db: sqlite3.Connection) -> None:
        with _transaction(db):
            _fence(db, term, encoded.last_seq)
            added = db.execute(
                "INSERT INTO batches (id, committed_at) VALUES (?, ?) ON CONFLICT DO NOTHING",
                (encoded.id, self._clock()),
            )
            if added.rowcount == 0:
                return
            for removal in encoded.removals:
                db.executemany(_delete(removal.table), removal.keys)
            for write in encoded.writes:
                written = db.executemany(_upsert(write.table), write.rows).rowcount
                if written != len(write.rows):
                    raise rows.other_job(encoded.id, _other_job(db, write.rows))
            if encoded.forgotten:
                _forget(db, [(job,) for job in encoded.forgotten])

    async def has_batch(self, batch_id: str) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            with _transaction(db):
                # A commit that failed at its flush may have left whole frames in the WAL, which a
                # later recovery would bring to life. A real write takes their place.
                db.execute("UPDATE leader SET writes = writes + 1")
                [(count,)] = db.execute(_own(sql.HAS_BATCH), (column(batch_id),))
            return bool(count)

        # On the writer's thread it stands behind every commit that was begun.
        return await self._writer.run(work)

    async def job(self, job_id: str) -> tuple[Job, tuple[Task, ...]] | None:
        return rows.job_and_tasks(await self._read(sql.JOB, column(job_id)))

    async def job_by_key(self, namespace: str, key: str) -> Job | None:
        found = await self._read(sql.JOB_BY_KEY, column(namespace), column(key))
        return rows.job_from(found[0][0]) if found else None

    async def existing_jobs(self, job_ids: Collection[str]) -> set[str]:
        def work(db: sqlite3.Connection) -> set[str]:
            return {job for job in job_ids if db.execute(_HAS_JOB, (column(job),)).fetchone()}

        return await self._reader.run(work)

    async def finished_jobs(
        self, query: JobQuery, *, limit: int, cursor: str | None = None
    ) -> JobPage:
        before = None if cursor is None else Cursor.parse(cursor)
        text, values = sql.finished_jobs(query, limit, before)
        return rows.page(await self._read(text, *values), limit)

    async def records(
        self, *, job: str | None = None, after: int = 0, limit: int
    ) -> tuple[Record, ...]:
        text, values = sql.records(job, after, limit)
        return tuple(rows.record_from(doc) for (doc,) in await self._read(text, *values))

    async def put_blob(self, blob_id: str, job: str, data: bytes) -> None:
        def work(db: sqlite3.Connection) -> None:
            with _transaction(db):
                db.execute(_own(sql.PUT_BLOB), (column(blob_id), column(job), data))

        await self._writer.run(work)

    async def get_blob(self, blob_id: str) -> bytes | None:
        found = await self._read(sql.BLOB, column(blob_id))
        return bytes(found[0][0]) if found else None

    async def put_output(self, term: int, chunks: Sequence[Chunk], cuts: Sequence[Cut] = ()) -> int:
        new, old = rows.output_rows(chunks), rows.cut_rows(cuts)

        def work(db: sqlite3.Connection) -> int:
            with _transaction(db):
                _term_and_last_seq(db, term)
                jobs = {row[0] for row in new}
                known = {job for job in jobs if db.execute(_HAS_JOB, (job,)).fetchone()}
                db.executemany(_own(sql.PUT_OUTPUT), [row for row in new if row[0] in known])
                return sum(size for cut in old for (size,) in db.execute(_CUT, cut).fetchall())

        return await self._writer.run(work)

    async def output_spans(self, job: str) -> tuple[Span, ...]:
        return tuple(Span(*row) for row in await self._read(sql.OUTPUT_SPANS, column(job)))

    async def output(
        self, job: str, task: int, epoch: int, *, offset: int, span: int
    ) -> tuple[Chunk, ...]:
        found = await self._read(sql.OUTPUT, column(job), task, epoch, offset, span)
        return rows.chunks_from(job, task, epoch, found)

    async def prune(self, term: int, *, before: Micros, limit: int) -> Pruned:
        return await self._writer.run(partial(self._prune, term, before, limit))

    def _prune(self, term: int, before: Micros, limit: int, db: sqlite3.Connection) -> Pruned:
        with _transaction(db):
            _fence(db, term)
            gone = db.execute(_own(sql.PRUNABLE_JOBS), (before, limit)).fetchall()
            counts = _forget(db, gone)
            others = db.execute(_own(sql.PRUNE_RECORDS_OF_NO_JOB), (before,)).rowcount
            db.execute(_own(sql.PRUNE_BATCHES), (self._clock() - rows.BATCHES_KEPT,))
        return Pruned(
            jobs=len(gone),
            records=max(0, counts["records"]) + others,
            blobs=max(0, counts["blobs"]),
        )

    async def add_token(self, token: Token) -> bool:
        return await self._write(sql.ADD_TOKEN, *rows.token_row(token)) == 1

    async def remove_token(self, name: str) -> bool:
        return await self._write(sql.REMOVE_TOKEN, column(name)) == 1

    async def tokens(self) -> tuple[Token, ...]:
        return tuple(rows.token_from(doc) for (doc,) in await self._read(sql.TOKENS))

    async def _write(self, query: str, *values: Value) -> int:
        """One statement without a term; how many rows it touched."""

        def work(db: sqlite3.Connection) -> int:
            with _transaction(db):
                return db.execute(_own(query), values).rowcount

        return await self._writer.run(work)

    async def _read(self, query: str, *values: Value) -> list[tuple[Any, ...]]:
        return await self._reader.run(lambda db: db.execute(_own(query), values).fetchall())


def _forget(db: sqlite3.Connection, jobs: list[tuple[str]]) -> dict[str, int]:
    """These jobs with all that is theirs; how many rows of each table."""
    return {
        table: db.executemany(f"DELETE FROM {table} WHERE {key} = ?", jobs).rowcount  # noqa: S608
        for table, key in sql.OF_A_JOB.items()
    }


def _own(query: str) -> str:
    return query.replace("$", "?")


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """What happens inside becomes durable together or not at all.

    Raises OutcomeUnknown if the commit itself failed: its bytes may have reached the disk.
    """
    if db.in_transaction:  # an earlier rollback failed, as on a full disk
        db.execute("ROLLBACK")
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        _abandon(db)
        raise
    try:
        db.execute("COMMIT")
    except sqlite3.Error as error:
        _abandon(db)
        raise OutcomeUnknown(f"the commit may or may not be on disk: {error}") from error


def _abandon(db: sqlite3.Connection) -> None:
    # Some errors have ended the transaction already.
    if db.in_transaction:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")


def _fence(db: sqlite3.Connection, term: int, last_seq: int = 0) -> None:
    """Let nothing through but the latest term. Raises Deposed."""
    touched = db.execute(
        "UPDATE leader SET writes = writes + 1, last_seq = max(last_seq, ?) WHERE term = ?",
        (last_seq, term),
    )
    if touched.rowcount != 1:
        _term_and_last_seq(db, term)


def _term_and_last_seq(db: sqlite3.Connection, term: int) -> tuple[int, int]:
    [(latest, last_seq)] = db.execute(sql.TERM_AND_LAST_SEQ)
    if latest != term:
        raise Deposed(f"term {term} is over: {latest} is the latest")
    return latest, last_seq


@cache
def _upsert(table: Table) -> str:
    marks = ", ".join("?" * len(table.columns))
    return (
        f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({marks})"  # noqa: S608
        f" ON CONFLICT ({', '.join(table.key)}) {sql.update(table)}"
    )


def _other_job(db: sqlite3.Connection, written: Sequence[rows.Row]) -> Value:
    """The first job of a batch whose id a stored job has that was created at another time."""
    for row in written:
        if isinstance(row, JobRow) and db.execute(_OTHER_JOB, (row.id, row.created_at)).fetchone():
            return row.id
    raise AssertionError("bug: a row was not written, and it is not a job")


@cache
def _delete(table: Table) -> str:
    return f"DELETE FROM {table.name} WHERE {' AND '.join(f'{name} = ?' for name in table.key)}"  # noqa: S608


def _migrate(db: sqlite3.Connection) -> None:
    while _migrate_once(db):
        pass


def _migrate_once(db: sqlite3.Connection) -> bool:
    """Apply the next migration; False when there is none."""
    with _transaction(db):
        db.execute(
            "CREATE TABLE IF NOT EXISTS schema_version"
            " (number INTEGER PRIMARY KEY, name TEXT NOT NULL)"
        )
        with closing(db.execute("SELECT coalesce(max(number), 0) FROM schema_version")) as found:
            present = found.fetchone()[0]
        migration = schema.next_migration("sqlite", present)
        if migration is None:
            return False
        for statement in _statements(migration.sql):
            db.execute(statement)
        db.execute("INSERT INTO schema_version VALUES (?, ?)", (migration.number, migration.name))
    return True


def _statements(text: str) -> Iterator[str]:
    """The statements of a script; `executescript` would end the transaction around them."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
