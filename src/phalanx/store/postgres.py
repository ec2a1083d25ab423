"""The store in PostgreSQL 13 or later, for fleets.

Every transaction locks the leader's row first, which fences out all terms but the latest.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

from phalanx.core.model import ElementBlock, Job, Rows, Task
from phalanx.core.records import Record
from phalanx.core.time_units import Micros
from phalanx.store import rows, schema, sql
from phalanx.store.pages import Cursor, audit_page, job_page
from phalanx.store.postgres_connections import (
    FAULTS,
    PASSING_FAULTS,
    SLOW_S,
    PostgresConnections,
    message_of,
    milliseconds,
)
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
    StoreUnreachable,
    Token,
    UsedKey,
)
from phalanx.store.rows import Table, column

if TYPE_CHECKING:
    from phalanx.store.postgres_connections import Connection

#: A migration can rebuild a large table.
_MIGRATION_S = 3600.0
#: A number that no other program in the database uses: "phalanx" in ASCII.
_MIGRATION_LOCK = 0x7068616C616E78

#: The clock of the database now, not at the beginning of the transaction.
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

_LEAD = f"""
    UPDATE leader SET term = term + 1, holder = $1, url = $2, expires_at = {_NOW} + $3
    WHERE expires_at <= {_NOW} RETURNING term
"""  # noqa: S608
_RENEW = f"UPDATE leader SET expires_at = {_NOW} + $2 WHERE term = $1"  # noqa: S608
_RESIGN = "UPDATE leader SET expires_at = 0 WHERE term = $1"
_LEADER = f"SELECT term, holder, url FROM leader WHERE expires_at > {_NOW}"  # noqa: S608

_FENCE = "UPDATE leader SET last_seq = greatest(last_seq, $2::bigint) WHERE term = $1::bigint"
#: Notes a batch, whose id is $3, unless the term has ended or the batch is stored already.
_ADD_BATCH = f"""
    fence AS ({_FENCE} RETURNING term), batch AS (
        INSERT INTO batches (id, committed_at) SELECT $3::text, {_NOW} FROM fence
        ON CONFLICT DO NOTHING RETURNING id
    )
"""  # noqa: S608

_SUMMARIES = f"{sql.JOB_SUMMARIES} = ANY($1)"
_EXISTING_JOBS = "SELECT id FROM jobs WHERE id = ANY($1)"
_OTHER_JOB = """
    SELECT j.id FROM jobs j JOIN unnest($1::text[], $2::bigint[]) AS new(id, created_at)
    ON new.id = j.id AND new.created_at <> j.created_at LIMIT 1
"""
_TRIM = """
    WITH removed AS (
        DELETE FROM output o
        USING unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) AS t(job, pos, ep, bef)
        WHERE o.job = t.job AND position = pos AND epoch = ep AND begins < bef AND ends <= bef
        RETURNING ends - begins AS size
    ) SELECT coalesce(sum(size), 0) FROM removed
"""


class PostgresStore:
    """One handle on a database. The tables are in the first schema of its search path."""

    def __init__(self, dsn: str, *, timeout_s: float = 5.0) -> None:
        """`timeout_s` limits a commit, and how long the server waits for a silent client that
        locks the leader's row."""
        self._connections = PostgresConnections(dsn, timeout_s)

    async def open(self) -> None:
        try:
            while await self._migrate_once():
                pass
            await self._connections.open_pool()
        except FAULTS as error:
            await self.close()
            kind = StoreUnreachable if isinstance(error, PASSING_FAULTS) else StoreError
            raise kind(f"cannot open PostgreSQL: {message_of(error)}") from error

    async def close(self) -> None:
        await self._connections.close()

    async def cluster_id(self) -> str:
        [row] = await self._connections.fetch(sql.CLUSTER_ID)
        return str(row[0])

    # Leadership

    async def lead(self, holder: str, url: str, lease: Micros) -> int | None:
        async with self._connections.writing("take leadership") as connection:
            # One statement after the other: a server that hung must not take the lead, when it
            # recovers, for a caller that no longer waits.
            await connection.execute("BEGIN")
            term: int | None = await connection.fetchval(_LEAD, holder, url, lease)
            await connection.execute("COMMIT")
            return term

    async def renew(self, term: int, lease: Micros) -> None:
        async with self._connections.writing("renew leadership") as connection:
            if _row_count(await connection.execute(_RENEW, term, lease)) == 0:
                raise Deposed(f"term {term} has ended: a later term exists")

    async def resign(self, term: int) -> None:
        async with self._connections.writing("resign") as connection:
            await connection.execute(_RESIGN, term)

    async def leader(self) -> Leader | None:
        leaders = await self._connections.fetch(_LEADER)
        return Leader(*leaders[0]) if leaders else None

    # State

    async def load(self, term: int) -> Rows:
        async with (
            self._connections.reading(SLOW_S) as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            last_seq = await _last_seq(connection, term)
            docs = {
                name: [row[0] for row in await connection.fetch(query)]
                for name, query in sql.LIVE.items()
            }
        return rows.live_rows(docs, last_seq)

    async def commit(self, term: int, batch: Batch) -> None:
        if rows.is_large(batch):
            encoded = await asyncio.to_thread(rows.encode, batch)
        else:
            encoded = rows.encode(batch)
        is_committing = False
        try:
            async with self._connections.exclusive_writer(
                self._connections.timeout_s
            ) as connection:
                await connection.execute("BEGIN")
                # A batch that is stored already leaves nothing to commit.
                last = "COMMIT" if await _write(connection, term, encoded) else "ROLLBACK"
                is_committing = True
                tag = await connection.execute(last)
        except FAULTS as error:
            if is_committing:
                raise OutcomeUnknown(
                    f"batch {batch.id} may or may not be in PostgreSQL: {message_of(error)}"
                ) from error
            raise CommitFailed(f"batch {batch.id} was not written: {message_of(error)}") from error
        if tag != last:
            raise CommitFailed(f"batch {batch.id} was not written: PostgreSQL answered {tag}")

    async def has_batch(self, batch_id: str) -> bool:
        patience_s = self._connections.patience_s
        async with self._connections.writing("look a batch up", patience_s) as connection:
            # The caller has lost a connection, whose transaction can still be open on the server.
            # It locks the leader's row, so once this transaction has the row, that one has ended.
            await connection.execute(
                f"BEGIN; SET LOCAL statement_timeout = {milliseconds(patience_s)};"
                " SELECT FROM leader FOR UPDATE"
            )
            count = await connection.fetchval(sql.HAS_BATCH, column(batch_id))
            await connection.execute("ROLLBACK")
            return bool(count)

    # Reading

    async def job(self, job_id: str) -> tuple[Job, tuple[Task, ...]] | None:
        return rows.job_and_tasks(await self._connections.fetch(sql.JOB, column(job_id)))

    async def elements(self, array: str) -> tuple[ElementBlock, ...]:
        docs = await self._connections.fetch(sql.ELEMENTS, column(array))
        return tuple(rows.elements_from(row[0]) for row in docs)

    async def used_key(self, principal: str, key: str) -> UsedKey | None:
        docs = await self._connections.fetch(sql.USED_KEY, column(principal), column(key))
        return rows.used_key_from(docs[0][0]) if docs else None

    async def job_summaries(self, job_ids: Collection[str]) -> dict[str, JobSummary]:
        ids = {column(job): job for job in job_ids}
        return rows.job_summaries(await self._connections.fetch(_SUMMARIES, list(ids)), ids)

    async def finished_jobs(
        self, query: JobQuery, *, limit: int, cursor: str | None = None
    ) -> JobPage:
        before = None if cursor is None else Cursor.parse(cursor)
        text, values = sql.finished_jobs(query, limit, before)
        found = await self._connections.fetch(text, *values)
        return await asyncio.to_thread(job_page, found, limit)

    async def records(
        self, *, job: str | None = None, after: int = 0, limit: int
    ) -> tuple[Record, ...]:
        text, values = sql.records(job, after, limit)
        return tuple(
            rows.record_from(row[0]) for row in await self._connections.fetch(text, *values)
        )

    # Blobs

    async def put_blob(self, blob_id: str, job: str, data: bytes) -> None:
        async with self._connections.reading(SLOW_S) as connection:
            await connection.execute(sql.PUT_BLOB, column(blob_id), column(job), data)

    async def get_blob(self, blob_id: str) -> bytes | None:
        async with self._connections.reading(SLOW_S) as connection:
            data: bytes | None = await connection.fetchval(sql.BLOB, column(blob_id))
            return data

    async def remove_blob(self, blob_id: str) -> None:
        async with self._connections.reading(SLOW_S) as connection:
            await connection.execute(sql.REMOVE_BLOB, column(blob_id))

    # Task output

    async def put_output(
        self, term: int, chunks: Sequence[OutputChunk], trims: Sequence[OutputTrim] = ()
    ) -> int:
        new, old = rows.output_rows(chunks), rows.trim_rows(trims)
        # On another connection, and without a lock on the leader's row: no commit waits for it.
        async with self._connections.reading(SLOW_S) as connection, connection.transaction():
            await _last_seq(connection, term)
            jobs = await connection.fetch(_EXISTING_JOBS, [row[0] for row in new])
            known = {row[0] for row in jobs}
            await connection.executemany(sql.PUT_OUTPUT, [row for row in new if row[0] in known])
            return int(await connection.fetchval(_TRIM, *_arrays(old))) if old else 0

    async def output_ends(self, job: str) -> tuple[OutputEnd, ...]:
        return tuple(
            OutputEnd(*row) for row in await self._connections.fetch(sql.OUTPUT_ENDS, column(job))
        )

    async def output(
        self, job: str, task: int, epoch: int, *, offset: int, length: int
    ) -> tuple[OutputChunk, ...]:
        values = (column(job), task, epoch, offset, length)
        return rows.chunks_from(
            job, task, epoch, await self._connections.fetch(sql.OUTPUT, *values)
        )

    # Retention

    async def prune(self, term: int, *, before: Micros, limit: int) -> PruneCounts:
        async with self._connections.writing("prune", self._connections.patience_s) as connection:
            await connection.execute("BEGIN")
            await _fence(connection, term)
            jobs = [row[0] for row in await connection.fetch(sql.PRUNABLE_JOBS, before, limit)]
            counts = await _delete_jobs(connection, jobs)
            others = _row_count(await connection.execute(sql.PRUNE_RECORDS_OF_NO_JOB, before))
            keys = await connection.execute(sql.PRUNE_KEYS, before, rows.KEYS_PER_PRUNE)
            oldest = await connection.fetchval(f"SELECT {_NOW} - $1::bigint", rows.BATCHES_KEPT)
            await connection.execute(sql.PRUNE_BATCHES, oldest)
            await connection.execute("COMMIT")
        return PruneCounts(len(jobs), counts["records"] + others, counts["blobs"], _row_count(keys))

    # Audit

    async def add_audit(self, records: Sequence[AuditRecord]) -> None:
        new = [rows.audit_row(record) for record in records]
        if new:
            async with self._connections.reading(SLOW_S) as connection:
                await connection.execute(_upsert(rows.AUDIT), *_arrays(new))

    async def audit(self, query: AuditQuery, *, limit: int, cursor: str | None = None) -> AuditPage:
        before = None if cursor is None else Cursor.parse(cursor)
        text, values = sql.audit(query, limit, before)
        return audit_page(await self._connections.fetch(text, *values), limit)

    async def prune_audit(self, before: Micros, *, limit: int) -> int:
        async with self._connections.reading(SLOW_S) as connection:
            return _row_count(await connection.execute(sql.PRUNE_AUDIT, before, limit))

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
        self, audit: AuditRecord | None, query: str, *values: str
    ) -> int | None:
        """Run a statement: the new version, or None if it changed no token."""
        async with self._connections.transaction("change the tokens") as connection:
            if _row_count(await connection.execute(query, *values)) != 1:
                return None
            await _add_audit(connection, audit)
            return int(await connection.fetchval(sql.TOKENS_CHANGED))

    async def tokens(self) -> tuple[Token, ...]:
        return tuple(rows.token_from(row[0]) for row in await self._connections.fetch(sql.TOKENS))

    async def tokens_version(self) -> int:
        [(version,)] = await self._connections.fetch(sql.TOKENS_VERSION)
        return int(version)

    async def note_token_uses(self, used_at: Mapping[str, Micros]) -> None:
        async with self._connections.writing("note the use of tokens") as connection:
            await connection.executemany(sql.NOTE_TOKEN_USE, rows.token_use_rows(used_at))

    async def token_uses(self) -> dict[str, Micros]:
        return {row[0]: row[1] for row in await self._connections.fetch(sql.TOKEN_USES)}

    # Objects

    async def change_objects(
        self,
        put: Sequence[ClusterObject],
        removed: Sequence[ObjectKey] = (),
        audit: AuditRecord | None = None,
    ) -> int:
        async with self._connections.transaction("change the objects") as connection:
            await connection.executemany(sql.REMOVE_OBJECT, map(rows.object_key, removed))
            await connection.executemany(sql.PUT_OBJECT, map(rows.object_row, put))
            await _add_audit(connection, audit)
            return int(await connection.fetchval(sql.OBJECTS_CHANGED))

    async def objects(self) -> tuple[ClusterObject, ...]:
        stored = await self._connections.fetch(sql.OBJECTS)
        return tuple(rows.object_from(row[0]) for row in stored)

    async def objects_version(self) -> int:
        [(version,)] = await self._connections.fetch(sql.OBJECTS_VERSION)
        return int(version)

    # Notes

    async def put_note(self, note: Note) -> None:
        async with self._connections.writing("store a note") as connection:
            await connection.execute(sql.PUT_NOTE, *rows.note_row(note))

    async def notes(self, kind: str) -> tuple[Note, ...]:
        return tuple(Note(*row) for row in await self._connections.fetch(sql.NOTES, kind))

    async def remove_notes(self, kind: str, before: Micros) -> None:
        async with self._connections.writing("remove notes") as connection:
            await connection.execute(sql.REMOVE_NOTES, kind, before)

    # Certificate authorities

    async def add_authority(self, authority: StoredAuthority) -> bool:
        row = rows.authority_row(authority)
        async with self._connections.writing("add an authority") as connection:
            return _row_count(await connection.execute(sql.ADD_AUTHORITY, *row)) == 1

    async def remove_authority(self, number: int) -> bool:
        async with self._connections.writing("remove an authority") as connection:
            return _row_count(await connection.execute(sql.REMOVE_AUTHORITY, number)) == 1

    async def authorities(self) -> tuple[StoredAuthority, ...]:
        stored = await self._connections.fetch(sql.AUTHORITIES)
        return tuple(rows.authority_from(row[0]) for row in stored)

    # The schema

    async def _migrate_once(self) -> bool:
        """Apply the next migration; False if there is none."""
        async with self._connections.exclusive_writer(_MIGRATION_S) as connection:
            await connection.execute(
                "BEGIN; SET LOCAL statement_timeout = 0;"
                f" SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"
            )
            await connection.execute(
                "CREATE TABLE IF NOT EXISTS schema_version"
                " (number bigint PRIMARY KEY, name text NOT NULL)"
            )
            rows = await connection.fetch("SELECT number, name FROM schema_version")
            migration = schema.next_migration(
                "postgres", {row["number"]: row["name"] for row in rows}
            )
            if migration is not None:
                await connection.execute(migration.sql)
                await connection.execute(
                    "INSERT INTO schema_version VALUES ($1, $2)", migration.number, migration.label
                )
            await connection.execute("COMMIT")
            return migration is not None


async def _last_seq(connection: "Connection", term: int) -> int:
    """The number of the last record. Raises Deposed unless this is the latest term now."""
    [(latest, last_seq)] = await connection.fetch(sql.TERM_AND_LAST_SEQ)
    if latest != term:
        raise Deposed(f"term {term} has ended: the current term is {latest}")
    return int(last_seq)


async def _fence(connection: "Connection", term: int) -> None:
    """Lock the leader's row until the end of the transaction. Raises Deposed unless this is the
    latest term."""
    if _row_count(await connection.execute(_FENCE, term, 0)) != 1:
        raise _deposed(term)


def _deposed(term: int) -> Deposed:
    return Deposed(f"term {term} has ended: a later term exists")


async def _write(connection: "Connection", term: int, encoded: rows.EncodedBatch) -> bool:
    """Lock the leader's row and write a batch; False if it is stored already. Raises Deposed.

    All rows are written by one statement, because each round trip costs more than a few rows.
    """
    if encoded.removals:
        await _fence(connection, term)
    for removal in encoded.removals:
        await connection.execute(_delete(removal.table), *_arrays(removal.keys))
    statement = _write_batch(tuple(write.table for write in encoded.writes))
    values = chain.from_iterable(_arrays(write.rows) for write in encoded.writes)
    [(is_leader, is_new, *counts)] = await connection.fetch(
        statement, term, encoded.last_seq, encoded.id, *values
    )
    if not is_leader:
        raise _deposed(term)
    if not is_new:
        return False
    for write, count in zip(encoded.writes, counts, strict=True):
        if count != len(write.rows):
            raise rows.other_job(encoded.id, await _other_job(connection, write.rows))
    if encoded.removed_jobs:
        await _delete_jobs(connection, encoded.removed_jobs)
    return True


async def _other_job(connection: "Connection", written: Sequence[rows.Row]) -> rows.Value:
    """The first job of a batch whose id a stored job has that was created at another time."""
    jobs = [(row.id, row.created_at) for row in written if isinstance(row, rows.JobRow)]
    job: rows.Value = await connection.fetchval(_OTHER_JOB, *_arrays(jobs))
    return job


async def _add_audit(connection: "Connection", audit: AuditRecord | None) -> None:
    if audit is not None:
        await connection.execute(_upsert(rows.AUDIT), *_arrays([rows.audit_row(audit)]))


async def _delete_jobs(connection: "Connection", jobs: list[str]) -> dict[str, int]:
    """Delete jobs with all their rows, and arrays with their elements: the number of rows by
    table."""
    elements = await connection.fetch(f"{sql.ELEMENT_JOBS} = ANY($1)", jobs)
    jobs = jobs + [row[0] for row in elements]
    return {
        table: _row_count(
            await connection.execute(f"DELETE FROM {table} WHERE {key} = ANY($1)", jobs)  # noqa: S608
        )
        for table, key in sql.JOB_COLUMNS.items()
    }


def _arrays(written: Sequence[rows.Row]) -> list[tuple[rows.Value, ...]]:
    """One array for each column."""
    return list(zip(*written, strict=True))


def _unnest(table: Table, names: tuple[str, ...], first: int = 1) -> str:
    """A row for each entry of the arrays, which are the parameters from `first` on."""
    arrays = (f"${n}::{table.columns[name]}[]" for n, name in enumerate(names, first))
    return f"unnest({', '.join(arrays)}) AS new"


@cache
def _write_batch(tables: tuple[Table, ...]) -> str:
    """Note a batch and upsert its rows: whether the term is the latest, whether the batch is new,
    and how many rows of each table were written."""
    parts, names, first = [_ADD_BATCH], ["fence", "batch"], 4
    for table in tables:
        # Without a row of `batch` nothing is written.
        upsert = _upsert(table, f"{_unnest(table, tuple(table.columns), first)}, batch")
        parts.append(f"new_{table.name} AS ({upsert} RETURNING 1)")
        names.append(f"new_{table.name}")
        first += len(table.columns)
    counts = ", ".join(f"(SELECT count(*) FROM {name})" for name in names)  # noqa: S608
    return f"WITH {', '.join(parts)} SELECT {counts}"


@cache
def _upsert(table: Table, new: str | None = None) -> str:
    """Write rows, by default one for each entry of the parameters."""
    columns = tuple(table.columns)
    return (
        f"INSERT INTO {table.name} ({', '.join(columns)})"  # noqa: S608
        f" SELECT new.* FROM {new or _unnest(table, columns)}"
        f" ON CONFLICT ({', '.join(table.key)}) {sql.update(table)}"
    )


@cache
def _delete(table: Table) -> str:
    key = ", ".join(table.key)
    return (
        f"DELETE FROM {table.name} WHERE ({key}) IN"  # noqa: S608
        f" (SELECT * FROM {_unnest(table, table.key)})"
    )


def _row_count(tag: str) -> int:
    """The number of rows in a command tag such as `UPDATE 1` or `INSERT 0 1`."""
    return int(tag.rpartition(" ")[2])
