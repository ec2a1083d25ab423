"""The store in one SQLite file on one host: WAL, flushed to disk with every commit.

One thread writes and another reads, so that reading a page delays no commit, and neither delays the
event loop. A leader holds a host lock besides its term: a lease expires by the wall clock of the
host, and the lock keeps a second leader out even if that clock is set forward.
"""

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from phalanx.core.model import ElementBlock, Job, Rows, Task
from phalanx.core.records import Record
from phalanx.core.time_units import Micros
from phalanx.host.clock import wall_clock
from phalanx.store import rows, schema, sql
from phalanx.store.pages import Cursor, audit_page, job_page
from phalanx.store.protocol import (
    AuditPage,
    AuditQuery,
    AuditRecord,
    Batch,
    ClusterObject,
    CommitFailed,
    Deposed,
    JobPage,
    JobQuery,
    JobSummary,
    Leader,
    Note,
    ObjectKey,
    OutcomeUnknown,
    OutputChunk,
    OutputEnd,
    OutputTrim,
    PruneCounts,
    StoredAuthority,
    StoreError,
    Token,
    UsedKey,
)
from phalanx.store.rows import Clock, EncodedBatch, JobRow, Table, Value, column
from phalanx.store.sqlite_connection import SQLiteConnection, transaction
from phalanx.store.sqlite_host import HostLock, make_private, require_local_file_system

_WAL_BYTES = 64 * 1024 * 1024
#: The pages in the WAL after which they are copied to the database. Commits change the same pages
#: of indexes again and again, because ids are random, and each page is copied once.
_CHECKPOINT_PAGES = 4096
#: In one statement.
_MOST_ROWS = 256
#: As many rows of a table are written with one statement, whatever their number.
_FEW_ROWS = 8

_HAS_JOB = "SELECT 1 FROM jobs WHERE id = ?"
_SUMMARIES = f"{sql.JOB_SUMMARIES} IN (SELECT value FROM json_each($1))"  # noqa: S608
_OTHER_JOB = "SELECT 1 FROM jobs WHERE id = ? AND created_at <> ?"
_TRIM = """
    DELETE FROM output WHERE job = ?1 AND position = ?2 AND epoch = ?3
    AND begins < ?4 AND ends <= ?4 RETURNING ends - begins
"""


class SQLiteStore:
    """One handle on a file, in a directory that exists."""

    def __init__(self, path: Path | str, *, clock: Clock = wall_clock) -> None:
        self._path = Path(path).resolve()
        self._clock = clock
        self._lock = HostLock(self._path.with_name(self._path.name + ".lock"))
        self._writer = SQLiteConnection(
            self._path,
            "journal_mode = WAL",
            "synchronous = FULL",
            f"wal_autocheckpoint = {_CHECKPOINT_PAGES}",
            f"journal_size_limit = {_WAL_BYTES}",
        )
        self._reader = SQLiteConnection(self._path, "query_only = ON")

    async def open(self) -> None:
        require_local_file_system(self._path)
        make_private(self._path)
        await self._writer.run(_migrate)

    async def close(self) -> None:
        await self._reader.close()
        await self._writer.close()
        self._lock.release()

    async def cluster_id(self) -> str:
        [(cluster,)] = await self._read(sql.CLUSTER_ID)
        return str(cluster)

    # Leadership

    async def lead(self, holder: str, url: str, lease: Micros) -> int | None:
        return await self._writer.run(partial(self._lead, holder, url, lease))

    def _lead(self, holder: str, url: str, lease: Micros, db: sqlite3.Connection) -> int | None:
        was_held = self._lock.held
        try:
            if not self._lock.acquire():
                return None
        except OSError as error:
            raise StoreError(f"cannot lock {self._path}: {error}") from error
        term: int | None = None
        try:
            with transaction(db):
                now = self._clock()
                # If the lock was free, the process of the last leader has ended, so its lease is
                # void.
                taken = db.execute(
                    "UPDATE leader SET term = term + 1, holder = ?, url = ?, expires_at = ?,"
                    " writes = writes + 1 WHERE expires_at <= ? OR ? RETURNING term",
                    (holder, url, now + lease, now, not was_held),
                ).fetchall()
            term = taken[0][0] if taken else None
        finally:
            if term is None and not was_held:
                self._lock.release()
        return term

    async def renew(self, term: int, lease: Micros) -> None:
        def work(db: sqlite3.Connection) -> None:
            with transaction(db):
                _fence(db, term)
                db.execute("UPDATE leader SET expires_at = ?", (self._clock() + lease,))

        await self._writer.run(work)

    async def resign(self, term: int) -> None:
        def work(db: sqlite3.Connection) -> None:
            with suppress(Deposed), transaction(db):
                _fence(db, term)
                db.execute("UPDATE leader SET expires_at = 0")
            self._lock.release()

        await self._writer.run(work)

    async def leader(self) -> Leader | None:
        leaders = await self._read(
            "SELECT term, holder, url FROM leader WHERE expires_at > $1", self._clock()
        )
        return Leader(*leaders[0]) if leaders else None

    # State

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
        encoded = None if rows.is_large(batch) else rows.encode(batch)
        try:
            await self._writer.run(lambda db: self._commit(term, encoded or rows.encode(batch), db))
        except (Deposed, CommitFailed, OutcomeUnknown):
            raise
        except StoreError as error:
            raise CommitFailed(f"batch {batch.id} was not written: {error}") from error

    def _commit(self, term: int, encoded: EncodedBatch, db: sqlite3.Connection) -> None:
        with transaction(db):
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
                if _upsert_all(db, write.table, write.rows) != len(write.rows):
                    raise rows.other_job(encoded.id, _other_job(db, write.rows))
            if encoded.removed_jobs:
                _delete_jobs(db, encoded.removed_jobs)

    async def has_batch(self, batch_id: str) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            with transaction(db):
                # A commit that failed while it was flushed can have left complete frames in the
                # WAL, which a later recovery would apply. This write replaces them.
                db.execute("UPDATE leader SET writes = writes + 1")
                [(count,)] = db.execute(_sqlite(sql.HAS_BATCH), (column(batch_id),))
            return bool(count)

        # In the thread of the writer this runs after every commit that was begun.
        return await self._writer.run(work)

    # Reading

    async def job(self, job_id: str) -> tuple[Job, tuple[Task, ...]] | None:
        return rows.job_and_tasks(await self._read(sql.JOB, column(job_id)))

    async def elements(self, array: str) -> tuple[ElementBlock, ...]:
        docs = await self._read(sql.ELEMENTS, column(array))
        return tuple(rows.elements_from(doc) for (doc,) in docs)

    async def used_key(self, principal: str, key: str) -> UsedKey | None:
        docs = await self._read(sql.USED_KEY, column(principal), column(key))
        return rows.used_key_from(docs[0][0]) if docs else None

    async def job_summaries(self, job_ids: Collection[str]) -> dict[str, JobSummary]:
        ids = {column(job): job for job in job_ids}
        return rows.job_summaries(await self._read(_SUMMARIES, json.dumps(list(ids))), ids)

    async def finished_jobs(
        self, query: JobQuery, *, limit: int, cursor: str | None = None
    ) -> JobPage:
        before = None if cursor is None else Cursor.parse(cursor)
        text, values = sql.finished_jobs(query, limit, before)
        # In the thread of the reader, because it takes a while for a long page.
        return await self._reader.run(
            lambda db: job_page(db.execute(_sqlite(text), values).fetchall(), limit)
        )

    async def records(
        self, *, job: str | None = None, after: int = 0, limit: int
    ) -> tuple[Record, ...]:
        text, values = sql.records(job, after, limit)
        return tuple(rows.record_from(doc) for (doc,) in await self._read(text, *values))

    # Blobs

    async def put_blob(self, blob_id: str, job: str, data: bytes) -> None:
        def work(db: sqlite3.Connection) -> None:
            with transaction(db):
                db.execute(_sqlite(sql.PUT_BLOB), (column(blob_id), column(job), data))

        await self._writer.run(work)

    async def get_blob(self, blob_id: str) -> bytes | None:
        blobs = await self._read(sql.BLOB, column(blob_id))
        return bytes(blobs[0][0]) if blobs else None

    async def remove_blob(self, blob_id: str) -> None:
        def work(db: sqlite3.Connection) -> None:
            with transaction(db):
                db.execute(_sqlite(sql.REMOVE_BLOB), (column(blob_id),))

        await self._writer.run(work)

    # Task output

    async def put_output(
        self, term: int, chunks: Sequence[OutputChunk], trims: Sequence[OutputTrim] = ()
    ) -> int:
        new, old = rows.output_rows(chunks), rows.trim_rows(trims)

        def work(db: sqlite3.Connection) -> int:
            with transaction(db):
                _term_and_last_seq(db, term)
                jobs = {row[0] for row in new}
                known = {job for job in jobs if db.execute(_HAS_JOB, (job,)).fetchone()}
                db.executemany(_sqlite(sql.PUT_OUTPUT), [row for row in new if row[0] in known])
                return sum(size for trim in old for (size,) in db.execute(_TRIM, trim).fetchall())

        return await self._writer.run(work)

    async def output_ends(self, job: str) -> tuple[OutputEnd, ...]:
        return tuple(OutputEnd(*row) for row in await self._read(sql.OUTPUT_ENDS, column(job)))

    async def output(
        self, job: str, task: int, epoch: int, *, offset: int, length: int
    ) -> tuple[OutputChunk, ...]:
        chunks = await self._read(sql.OUTPUT, column(job), task, epoch, offset, length)
        return rows.chunks_from(job, task, epoch, chunks)

    # Retention

    async def prune(self, term: int, *, before: Micros, limit: int) -> PruneCounts:
        return await self._writer.run(partial(self._prune, term, before, limit))

    def _prune(self, term: int, before: Micros, limit: int, db: sqlite3.Connection) -> PruneCounts:
        with transaction(db):
            _fence(db, term)
            found = db.execute(_sqlite(sql.PRUNABLE_JOBS), (before, limit))
            jobs = [job for (job,) in found]
            counts = _delete_jobs(db, jobs)
            others = db.execute(_sqlite(sql.PRUNE_RECORDS_OF_NO_JOB), (before,)).rowcount
            keys = db.execute(_sqlite(sql.PRUNE_KEYS), (before, rows.KEYS_PER_PRUNE)).rowcount
            db.execute(_sqlite(sql.PRUNE_BATCHES), (self._clock() - rows.BATCHES_KEPT,))
        return PruneCounts(
            jobs=len(jobs),
            records=counts["records"] + others,
            blobs=counts["blobs"],
            keys=keys,
        )

    # Audit

    async def add_audit(self, records: Sequence[AuditRecord]) -> None:
        new = [rows.audit_row(record) for record in records]

        def work(db: sqlite3.Connection) -> None:
            with transaction(db):
                _upsert_all(db, rows.AUDIT, new)

        await self._writer.run(work)

    async def audit(self, query: AuditQuery, *, limit: int, cursor: str | None = None) -> AuditPage:
        before = None if cursor is None else Cursor.parse(cursor)
        text, values = sql.audit(query, limit, before)
        return audit_page(await self._read(text, *values), limit)

    async def prune_audit(self, before: Micros, *, limit: int) -> int:
        return await self._write(sql.PRUNE_AUDIT, before, limit)

    # Tokens

    async def add_token(self, token: Token, audit: AuditRecord | None = None) -> int | None:
        return await self._change_tokens(audit, sql.ADD_TOKEN, *rows.token_row(token))

    async def replace_token(
        self, before: Token, after: Token, audit: AuditRecord | None = None
    ) -> int | None:
        values = rows.token_replacement(before, after)
        return await self._change_tokens(audit, sql.REPLACE_TOKEN, *values)

    async def remove_token(self, name: str, audit: AuditRecord | None = None) -> int | None:
        return await self._change_tokens(audit, sql.REMOVE_TOKEN, column(name))

    async def _change_tokens(
        self, audit: AuditRecord | None, query: str, *values: Value
    ) -> int | None:
        """Run a statement: the new version, or None if it changed no token."""

        def work(db: sqlite3.Connection) -> int | None:
            with transaction(db):
                if db.execute(_sqlite(query), values).rowcount != 1:
                    return None
                if audit is not None:
                    db.execute(_upsert(rows.AUDIT, 1), rows.audit_row(audit))
                [(version,)] = db.execute(sql.TOKENS_CHANGED).fetchall()
                return int(version)

        return await self._writer.run(work)

    async def tokens(self) -> tuple[Token, ...]:
        return tuple(rows.token_from(doc) for (doc,) in await self._read(sql.TOKENS))

    async def tokens_version(self) -> int:
        [(version,)] = await self._read(sql.TOKENS_VERSION)
        return int(version)

    async def note_token_uses(self, used_at: Mapping[str, Micros]) -> None:
        def work(db: sqlite3.Connection) -> None:
            with transaction(db):
                db.executemany(_sqlite(sql.NOTE_TOKEN_USE), rows.token_use_rows(used_at))

        await self._writer.run(work)

    async def token_uses(self) -> dict[str, Micros]:
        return dict(await self._read(sql.TOKEN_USES))

    # Objects

    async def change_objects(
        self,
        put: Sequence[ClusterObject],
        removed: Sequence[ObjectKey] = (),
        audit: AuditRecord | None = None,
    ) -> int:
        def work(db: sqlite3.Connection) -> int:
            with transaction(db):
                db.executemany(_sqlite(sql.REMOVE_OBJECT), map(rows.object_key, removed))
                db.executemany(_sqlite(sql.PUT_OBJECT), map(rows.object_row, put))
                if audit is not None:
                    db.execute(_upsert(rows.AUDIT, 1), rows.audit_row(audit))
                [(version,)] = db.execute(sql.OBJECTS_CHANGED).fetchall()
                return int(version)

        return await self._writer.run(work)

    async def objects(self) -> tuple[ClusterObject, ...]:
        return tuple(rows.object_from(doc) for (doc,) in await self._read(sql.OBJECTS))

    async def objects_version(self) -> int:
        [(version,)] = await self._read(sql.OBJECTS_VERSION)
        return int(version)

    # Notes

    async def put_note(self, note: Note) -> None:
        def work(db: sqlite3.Connection) -> None:
            with transaction(db):
                db.execute(_sqlite(sql.PUT_NOTE), rows.note_row(note))

        await self._writer.run(work)

    async def notes(self, kind: str) -> tuple[Note, ...]:
        return tuple(Note(*row) for row in await self._read(sql.NOTES, kind))

    async def remove_notes(self, kind: str, before: Micros) -> None:
        def work(db: sqlite3.Connection) -> None:
            with transaction(db):
                db.execute(_sqlite(sql.REMOVE_NOTES), (kind, before))

        await self._writer.run(work)

    # Certificate authorities

    async def add_authority(self, authority: StoredAuthority) -> bool:
        return await self._write(sql.ADD_AUTHORITY, *rows.authority_row(authority)) == 1

    async def remove_authority(self, number: int) -> bool:
        return await self._write(sql.REMOVE_AUTHORITY, number) == 1

    async def authorities(self) -> tuple[StoredAuthority, ...]:
        return tuple(rows.authority_from(doc) for (doc,) in await self._read(sql.AUTHORITIES))

    # Statements

    async def _write(self, query: str, *values: Value) -> int:
        """Run one statement that needs no term: the number of rows that it changed."""

        def work(db: sqlite3.Connection) -> int:
            with transaction(db):
                return db.execute(_sqlite(query), values).rowcount

        return await self._writer.run(work)

    async def _read(self, query: str, *values: Value) -> list[tuple[Any, ...]]:
        return await self._reader.run(lambda db: db.execute(_sqlite(query), values).fetchall())


def _upsert_all(db: sqlite3.Connection, table: Table, written: Sequence[rows.Row]) -> int:
    """Write rows, many with each statement: how many were written.

    The thread gives up the interpreter with every statement, and if the event loop is busy waits
    for it: a statement for each row would take seconds for a gang of 10,000 tasks.
    """
    changed = start = 0
    while start < len(written):
        left = len(written) - start
        # Beyond a few rows in powers of two, so that few statements are prepared.
        count = left if left <= _FEW_ROWS else min(_MOST_ROWS, 1 << left.bit_length() - 1)
        values = list(chain.from_iterable(written[start : start + count]))
        changed += db.execute(_upsert(table, count), values).rowcount
        start += count
    return changed


def _delete_jobs(db: sqlite3.Connection, jobs: Sequence[str]) -> dict[str, int]:
    """Delete jobs with all their rows, and arrays with their elements: the number of rows by
    table."""
    elements = db.execute(
        f"{sql.ELEMENT_JOBS} IN (SELECT value FROM json_each(?))",  # noqa: S608
        (json.dumps(jobs),),
    )
    ids = json.dumps([*jobs, *(element for (element,) in elements.fetchall())])
    query = "DELETE FROM {} WHERE {} IN (SELECT value FROM json_each(?))"
    return {
        table: db.execute(query.format(table, key), (ids,)).rowcount
        for table, key in sql.JOB_COLUMNS.items()
    }


def _sqlite(query: str) -> str:
    """A common statement with the parameters of SQLite."""
    return query.replace("$", "?")


def _fence(db: sqlite3.Connection, term: int, last_seq: int = 0) -> None:
    """Raise Deposed unless this is the latest term, and note the number of the last record."""
    updated = db.execute(
        "UPDATE leader SET writes = writes + 1, last_seq = max(last_seq, ?) WHERE term = ?",
        (last_seq, term),
    )
    if updated.rowcount != 1:
        _term_and_last_seq(db, term)


def _term_and_last_seq(db: sqlite3.Connection, term: int) -> tuple[int, int]:
    [(latest, last_seq)] = db.execute(sql.TERM_AND_LAST_SEQ)
    if latest != term:
        raise Deposed(f"term {term} has ended: the current term is {latest}")
    return latest, last_seq


@cache
def _upsert(table: Table, count: int) -> str:
    marks = f"({', '.join('?' * len(table.columns))})"
    return (
        f"INSERT INTO {table.name} ({', '.join(table.columns)})"  # noqa: S608
        f" VALUES {', '.join([marks] * count)}"
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
    """Apply the next migration; False if there is none."""
    with transaction(db):
        db.execute(
            "CREATE TABLE IF NOT EXISTS schema_version"
            " (number INTEGER PRIMARY KEY, name TEXT NOT NULL)"
        )
        with closing(db.execute("SELECT number, name FROM schema_version")) as cursor:
            applied = dict(cursor.fetchall())
        migration = schema.next_migration("sqlite", applied)
        if migration is None:
            return False
        for statement in _statements(migration.sql):
            db.execute(statement)
        db.execute("INSERT INTO schema_version VALUES (?, ?)", (migration.number, migration.label))
    return True


def _statements(text: str) -> Iterator[str]:
    """The statements of a script. `executescript` would end the transaction around them."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
