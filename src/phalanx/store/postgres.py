"""The store for fleets: PostgreSQL 13 or later, through asyncpg.

One connection writes and a small pool reads. A transaction holds the leader's row from its first
statement to its end, so whoever holds that row knows that no other transaction is half way. A
connection that saw any fault is thrown away, and the next call makes a new one.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from phalanx.core.model import Job, Rows, Task
from phalanx.core.records import Record
from phalanx.core.spec.job import Micros
from phalanx.store import rows, schema, sql
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
from phalanx.store.rows import Cursor, Table, column

try:
    import asyncpg
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "the PostgreSQL store needs asyncpg; install it with: pip install 'phalanx[postgres]'"
    ) from error

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
    Pool = asyncpg.Pool[asyncpg.Record]

#: Everything that can go wrong between here and the server. A time-out is an OSError.
FAULTS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)

_CLOSED = "the store is closed; open another one"
_READERS = 4
#: For what moves much at once: loading a cluster, a large blob.
_SLOW_S = 120.0
#: A migration may rebuild a large table.
_MIGRATION_S = 3600.0
#: Any number will do that nobody else in the database uses: it is ASCII for "phalanx".
_MIGRATION_LOCK = 0x7068616C616E78

#: The database's clock, at the moment of asking and not at the transaction's begin.
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

_LEAD = f"""
    UPDATE leader SET term = term + 1, holder = $1, url = $2, expires_at = {_NOW} + $3
    WHERE expires_at <= {_NOW} RETURNING term
"""  # noqa: S608
_RENEW = f"UPDATE leader SET expires_at = {_NOW} + $2 WHERE term = $1"  # noqa: S608
_RESIGN = "UPDATE leader SET expires_at = 0 WHERE term = $1"
_LEADER = f"SELECT term, holder, url FROM leader WHERE expires_at > {_NOW}"  # noqa: S608

_FENCE = "UPDATE leader SET last_seq = greatest(last_seq, $2) WHERE term = $1"
_ADD_BATCH = f"INSERT INTO batches (id, committed_at) VALUES ($1, {_NOW}) ON CONFLICT DO NOTHING"  # noqa: S608

_KNOWN_JOBS = "SELECT id FROM jobs WHERE id = ANY($1)"
_OTHER_JOB = """
    SELECT j.id FROM jobs j JOIN unnest($1::text[], $2::bigint[]) AS new(id, created_at)
    ON new.id = j.id AND new.created_at <> j.created_at LIMIT 1
"""
_CUT = """
    WITH gone AS (
        DELETE FROM output o
        USING unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) AS c(job, pos, ep, bef)
        WHERE o.job = c.job AND position = pos AND epoch = ep AND begins < bef AND ends <= bef
        RETURNING ends - begins AS size
    ) SELECT coalesce(sum(size), 0) FROM gone
"""


class PostgresStore:
    """One handle on a database; the tables lie in the first schema of its search path."""

    def __init__(self, dsn: str, *, timeout_s: float = 5.0) -> None:
        """`timeout_s` bounds a commit here, and how long the server lets a silent peer of ours
        hold the leader's row there."""
        self._dsn = dsn
        self._timeout_s = timeout_s
        #: Long enough to outwait a transaction of ours whose connection was lost: its statement,
        #: then its silence.
        self._patience_s = 4 * timeout_s
        self._writer: Connection | None = None
        self._turn = asyncio.Lock()
        self._pool: Pool | None = None
        self._closed = False

    async def open(self) -> None:
        try:
            while await self._migrate_once():
                pass
            self._pool = await asyncpg.create_pool(
                self._dsn,
                min_size=0,
                max_size=_READERS,
                timeout=self._timeout_s,
                server_settings=self._settings(_SLOW_S),
            )
        except FAULTS as error:
            await self.close()
            raise StoreError(f"cannot open PostgreSQL: {_told(error)}") from error

    async def close(self) -> None:
        self._closed = True
        self._drop_writer()
        if self._pool is not None:
            pool, self._pool = self._pool, None
            try:
                async with asyncio.timeout(self._timeout_s):
                    await pool.close()
            except FAULTS:
                pool.terminate()

    async def cluster_id(self) -> str:
        [row] = await self._fetch(sql.CLUSTER_ID)
        return str(row[0])

    async def lead(self, holder: str, url: str, lease: Micros) -> int | None:
        async with self._writing("take leadership") as connection:
            # In steps, each after the answer to the one before: a server that hung and wakes must
            # not take the lead for somebody who has given up waiting.
            await connection.execute("BEGIN")
            term: int | None = await connection.fetchval(_LEAD, holder, url, lease)
            await connection.execute("COMMIT")
            return term

    async def renew(self, term: int, lease: Micros) -> None:
        async with self._writing("renew leadership") as connection:
            if _touched(await connection.execute(_RENEW, term, lease)) == 0:
                raise Deposed(f"term {term} is over; a later one exists")

    async def resign(self, term: int) -> None:
        async with self._writing("resign") as connection:
            await connection.execute(_RESIGN, term)

    async def leader(self) -> Leader | None:
        found = await self._fetch(_LEADER)
        return Leader(*found[0]) if found else None

    async def load(self, term: int) -> Rows:
        async with (
            self._reading(_SLOW_S) as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            last_seq = await _last_seq(connection, term)
            docs = {
                name: [row[0] for row in await connection.fetch(query)]
                for name, query in sql.LIVE.items()
            }
        return rows.live_rows(docs, last_seq)

    async def commit(self, term: int, batch: Batch) -> None:
        encoded = rows.encode(batch)
        asked = False
        try:
            async with self._held_writer(self._timeout_s) as connection:
                await connection.execute("BEGIN")
                await _fence(connection, term, encoded.last_seq)
                # A batch that is there already leaves nothing to commit.
                last = "COMMIT" if await _write(connection, encoded) else "ROLLBACK"
                asked = True
                tag = await connection.execute(last)
        except FAULTS as error:
            if asked:
                raise OutcomeUnknown(
                    f"batch {batch.id} may or may not be in PostgreSQL: {_told(error)}"
                ) from error
            raise CommitFailed(f"batch {batch.id} was not written: {_told(error)}") from error
        if tag != last:
            raise CommitFailed(f"batch {batch.id} was not written: PostgreSQL answered {tag}")

    async def has_batch(self, batch_id: str) -> bool:
        async with self._writing("look a batch up", self._patience_s) as connection:
            # Whoever asks has lost a connection, and its transaction may still be open there.
            # It holds the leader's row; once we hold it, that transaction has ended.
            await connection.execute(
                f"BEGIN; SET LOCAL statement_timeout = {_ms(self._patience_s)};"
                " SELECT FROM leader FOR UPDATE"
            )
            count = await connection.fetchval(sql.HAS_BATCH, column(batch_id))
            await connection.execute("ROLLBACK")
            return bool(count)

    async def job(self, job_id: str) -> tuple[Job, tuple[Task, ...]] | None:
        return rows.job_and_tasks(await self._fetch(sql.JOB, column(job_id)))

    async def job_by_key(self, namespace: str, key: str) -> Job | None:
        found = await self._fetch(sql.JOB_BY_KEY, column(namespace), column(key))
        return rows.job_from(found[0][0]) if found else None

    async def existing_jobs(self, job_ids: Collection[str]) -> set[str]:
        ids = {column(job): job for job in job_ids}
        return {ids[row[0]] for row in await self._fetch(_KNOWN_JOBS, list(ids))}

    async def finished_jobs(
        self, query: JobQuery, *, limit: int, cursor: str | None = None
    ) -> JobPage:
        before = None if cursor is None else Cursor.parse(cursor)
        text, values = sql.finished_jobs(query, limit, before)
        return rows.page(await self._fetch(text, *values), limit)

    async def records(
        self, *, job: str | None = None, after: int = 0, limit: int
    ) -> tuple[Record, ...]:
        text, values = sql.records(job, after, limit)
        return tuple(rows.record_from(row[0]) for row in await self._fetch(text, *values))

    async def put_blob(self, blob_id: str, job: str, data: bytes) -> None:
        async with self._reading(_SLOW_S) as connection:
            await connection.execute(sql.PUT_BLOB, column(blob_id), column(job), data)

    async def get_blob(self, blob_id: str) -> bytes | None:
        async with self._reading(_SLOW_S) as connection:
            data: bytes | None = await connection.fetchval(sql.BLOB, column(blob_id))
            return data

    async def put_output(self, term: int, chunks: Sequence[Chunk], cuts: Sequence[Cut] = ()) -> int:
        new, old = rows.output_rows(chunks), rows.cut_rows(cuts)
        # Beside the write connection and without the leader's row, so that no commit waits for it.
        async with self._reading(_SLOW_S) as connection, connection.transaction():
            await _last_seq(connection, term)
            found = await connection.fetch(_KNOWN_JOBS, [row[0] for row in new])
            known = {row[0] for row in found}
            await connection.executemany(sql.PUT_OUTPUT, [row for row in new if row[0] in known])
            return int(await connection.fetchval(_CUT, *_arrays(old))) if old else 0

    async def output_spans(self, job: str) -> tuple[Span, ...]:
        return tuple(Span(*row) for row in await self._fetch(sql.OUTPUT_SPANS, column(job)))

    async def output(
        self, job: str, task: int, epoch: int, *, offset: int, span: int
    ) -> tuple[Chunk, ...]:
        found = await self._fetch(sql.OUTPUT, column(job), task, epoch, offset, span)
        return rows.chunks_from(job, task, epoch, found)

    async def prune(self, term: int, *, before: Micros, limit: int) -> Pruned:
        async with self._writing("prune", self._patience_s) as connection:
            await connection.execute("BEGIN")
            await _fence(connection, term)
            gone = [row[0] for row in await connection.fetch(sql.PRUNABLE_JOBS, before, limit)]
            counts = await _forget(connection, gone)
            others = _touched(await connection.execute(sql.PRUNE_RECORDS_OF_NO_JOB, before))
            oldest = await connection.fetchval(f"SELECT {_NOW} - $1::bigint", rows.BATCHES_KEPT)
            await connection.execute(sql.PRUNE_BATCHES, oldest)
            await connection.execute("COMMIT")
        return Pruned(len(gone), counts["records"] + others, counts["blobs"])

    async def add_token(self, token: Token) -> bool:
        async with self._writing("add a token") as connection:
            return _touched(await connection.execute(sql.ADD_TOKEN, *rows.token_row(token))) == 1

    async def remove_token(self, name: str) -> bool:
        async with self._writing("remove a token") as connection:
            return _touched(await connection.execute(sql.REMOVE_TOKEN, column(name))) == 1

    async def tokens(self) -> tuple[Token, ...]:
        return tuple(rows.token_from(row[0]) for row in await self._fetch(sql.TOKENS))

    def _settings(self, statement_s: float) -> dict[str, str]:
        """What every session of ours is told: acknowledge only what is flushed, and give up on a
        peer that has gone silent, so that nobody holds the leader's row for ever."""
        silence_s = max(1, round(self._timeout_s))
        return {
            "application_name": "phalanx",
            "synchronous_commit": "on",
            "default_transaction_isolation": "read committed",
            "statement_timeout": _ms(statement_s),  # waiting for a lock counts
            "idle_in_transaction_session_timeout": _ms(self._timeout_s),
            "tcp_keepalives_idle": str(silence_s),
            "tcp_keepalives_interval": str(silence_s),
            "tcp_keepalives_count": "3",
            "tcp_user_timeout": _ms(self._timeout_s),
        }

    @asynccontextmanager
    async def _held_writer(self, timeout_s: float) -> AsyncIterator["Connection"]:
        """The write connection, for one caller at a time and so long; a fault, a time-out or a
        cancellation ends it, and with it whatever it had begun."""
        if self._closed:
            raise ConnectionError(_CLOSED)
        async with self._turn:
            try:
                async with asyncio.timeout(timeout_s):
                    if self._writer is None or self._writer.is_closed():
                        self._writer = await asyncpg.connect(
                            self._dsn, server_settings=self._settings(self._timeout_s)
                        )
                    yield self._writer
            except StoreError:
                await self._roll_back()
                raise
            except BaseException:
                self._drop_writer()
                raise

    @asynccontextmanager
    async def _writing(
        self, what: str, timeout_s: float | None = None
    ) -> AsyncIterator["Connection"]:
        """The write connection, with faults as StoreError."""
        try:
            async with self._held_writer(timeout_s or self._timeout_s) as connection:
                yield connection
        except FAULTS as error:
            raise StoreError(f"cannot {what}: {_told(error)}") from error

    @asynccontextmanager
    async def _reading(self, timeout_s: float) -> AsyncIterator[Any]:
        if self._pool is None:
            raise StoreError(_CLOSED)
        try:
            # Giving a connection back takes as long as getting it may: it waits for what was
            # cancelled, and a silent server would never answer.
            async with (
                asyncio.timeout(timeout_s),
                self._pool.acquire(timeout=self._timeout_s) as connection,
            ):
                yield connection
        except FAULTS as error:
            raise StoreError(f"cannot ask PostgreSQL: {_told(error)}") from error

    async def _fetch(self, query: str, *values: object) -> list[Any]:
        async with self._reading(self._timeout_s) as connection:
            found: list[Any] = await connection.fetch(query, *values)
            return found

    async def _roll_back(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._writer is not None and self._writer.is_in_transaction():
                    await self._writer.execute("ROLLBACK")
        except BaseException as error:
            self._drop_writer()
            if not isinstance(error, FAULTS):
                raise

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.terminate()
            self._writer = None

    async def _migrate_once(self) -> bool:
        """Apply the next migration; False when there is none."""
        async with self._held_writer(_MIGRATION_S) as connection:
            await connection.execute(
                "BEGIN; SET LOCAL statement_timeout = 0;"
                f" SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"
            )
            await connection.execute(
                "CREATE TABLE IF NOT EXISTS schema_version"
                " (number bigint PRIMARY KEY, name text NOT NULL)"
            )
            present = await connection.fetchval(
                "SELECT coalesce(max(number), 0) FROM schema_version"
            )
            migration = schema.next_migration("postgres", present)
            if migration is not None:
                await connection.execute(migration.sql)
                await connection.execute(
                    "INSERT INTO schema_version VALUES ($1, $2)", migration.number, migration.name
                )
            await connection.execute("COMMIT")
            return migration is not None


async def _last_seq(connection: "Connection", term: int) -> int:
    """Raises Deposed unless that term is the latest, as of now."""
    [(latest, last_seq)] = await connection.fetch(sql.TERM_AND_LAST_SEQ)
    if latest != term:
        raise Deposed(f"term {term} is over: {latest} is the latest")
    return int(last_seq)


async def _fence(connection: "Connection", term: int, last_seq: int = 0) -> None:
    """Let only the latest term through, and keep others out until the end. Raises Deposed."""
    if _touched(await connection.execute(_FENCE, term, last_seq)) != 1:
        raise Deposed(f"term {term} is over; a later one exists")


async def _write(connection: "Connection", encoded: rows.Encoded) -> bool:
    """One statement for each table; False if the batch is there already."""
    if _touched(await connection.execute(_ADD_BATCH, encoded.id)) == 0:
        return False
    for removal in encoded.removals:
        await connection.execute(_delete(removal.table), *_arrays(removal.keys))
    for write in encoded.writes:
        tag = await connection.execute(_upsert(write.table), *_arrays(write.rows))
        if _touched(tag) != len(write.rows):
            raise rows.other_job(encoded.id, await _other_job(connection, write.rows))
    if encoded.forgotten:
        await _forget(connection, encoded.forgotten)
    return True


async def _other_job(connection: "Connection", written: Sequence[rows.Row]) -> rows.Value:
    """The first job of a batch whose id a stored job has that was created at another time."""
    jobs = [(row.id, row.created_at) for row in written if isinstance(row, rows.JobRow)]
    job: rows.Value = await connection.fetchval(_OTHER_JOB, *_arrays(jobs))
    return job


async def _forget(connection: "Connection", jobs: list[str]) -> dict[str, int]:
    return {
        table: _touched(
            await connection.execute(f"DELETE FROM {table} WHERE {key} = ANY($1)", jobs)  # noqa: S608
        )
        for table, key in sql.OF_A_JOB.items()
    }


def _arrays(found: Sequence[rows.Row]) -> list[tuple[rows.Value, ...]]:
    return list(zip(*found, strict=True))


def _unnest(table: Table, names: tuple[str, ...]) -> str:
    return ", ".join(f"${n}::{table.columns[name]}[]" for n, name in enumerate(names, 1))


@cache
def _upsert(table: Table) -> str:
    columns = tuple(table.columns)
    return (
        f"INSERT INTO {table.name} ({', '.join(columns)})"  # noqa: S608
        f" SELECT * FROM unnest({_unnest(table, columns)})"
        f" ON CONFLICT ({', '.join(table.key)}) {sql.update(table)}"
    )


@cache
def _delete(table: Table) -> str:
    key = ", ".join(table.key)
    return (
        f"DELETE FROM {table.name} WHERE ({key}) IN"  # noqa: S608
        f" (SELECT * FROM unnest({_unnest(table, table.key)}))"
    )


def _touched(tag: str) -> int:
    """The number of rows in a command tag such as `UPDATE 1` or `INSERT 0 1`."""
    return int(tag.rpartition(" ")[2])


def _ms(seconds: float) -> str:
    return str(round(seconds * 1000))


def _told(error: BaseException) -> str:
    return str(error) or type(error).__name__
