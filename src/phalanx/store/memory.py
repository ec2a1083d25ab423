"""The store for tests and simulations: nothing outlives the process.

Rows are kept encoded, so that what is loaded is what a disk would give back and never an object
that somebody still holds.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from uuid import uuid4

from msgspec.structs import replace

from phalanx.core.model import Job, Rows, Task
from phalanx.core.records import Record
from phalanx.core.spec.job import Micros
from phalanx.store import rows
from phalanx.store.protocol import (
    Batch,
    Chunk,
    CommitFailed,
    Cut,
    Deposed,
    JobPage,
    JobQuery,
    Leader,
    Pruned,
    Span,
    Token,
)
from phalanx.store.rows import (
    Clock,
    Cursor,
    Encoded,
    JobRow,
    OutputRow,
    RecordRow,
    Row,
    Table,
    TaskRow,
    column,
)


class MemoryDatabase:
    """What several handles share, and what a restarted server finds again."""

    def __init__(self) -> None:
        self.cluster_id = uuid4().hex
        self.leader = Leader(term=0, holder="", url="")
        self.expires_at: Micros = 0
        self.last_seq = 0
        self.batches: dict[str, Micros] = {}
        self.jobs: dict[str, JobRow] = {}
        self.job_by_key: dict[tuple[str, str], str] = {}
        self.tasks: defaultdict[str, dict[int, str]] = defaultdict(dict)
        #: Workers, queues, residues, accounts and crons by table and key.
        self.others: defaultdict[str, dict[Row, str]] = defaultdict(dict)
        self.records: dict[int, RecordRow] = {}
        self.blobs: dict[str, tuple[str, bytes]] = {}
        #: job → (position, epoch) → begins → the whole row.
        self.output: dict[str, dict[tuple[int, int], dict[int, OutputRow]]] = {}
        self.tokens: dict[str, str] = {}


class MemoryStore:
    """One handle on a database in memory."""

    def __init__(self, *, clock: Clock, database: MemoryDatabase | None = None) -> None:
        self._clock = clock
        self._db = database or MemoryDatabase()

    async def open(self) -> None:
        """There is nothing to connect to."""

    async def close(self) -> None:
        """The database stays for other handles."""

    async def cluster_id(self) -> str:
        return self._db.cluster_id

    async def lead(self, holder: str, url: str, lease: Micros) -> int | None:
        now = self._clock()
        if self._db.expires_at > now:
            return None
        self._db.leader = Leader(self._db.leader.term + 1, holder, url)
        self._db.expires_at = now + lease
        return self._db.leader.term

    async def renew(self, term: int, lease: Micros) -> None:
        self._check(term)
        self._db.expires_at = self._clock() + lease

    async def resign(self, term: int) -> None:
        if self._db.leader.term == term:
            self._db.expires_at = 0

    async def leader(self) -> Leader | None:
        return self._db.leader if self._db.expires_at > self._clock() else None

    async def load(self, term: int) -> Rows:
        self._check(term)
        live = [row for row in self._db.jobs.values() if row.finished_at is None]
        docs: dict[str, list[str]] = {
            table.name: list(self._db.others[table.name].values())
            for table in (rows.WORKERS, rows.QUEUES, rows.RESIDUES, rows.ACCOUNTS, rows.CRONS)
        }
        docs["jobs"] = [row.doc for row in live]
        docs["tasks"] = [doc for row in live for _, doc in self._tasks_of(row.id)]
        return rows.live_rows(docs, self._db.last_seq)

    async def commit(self, term: int, batch: Batch) -> None:
        encoded = rows.encode(batch)
        self._check(term)
        if encoded.id in self._db.batches:
            return
        # Everything that can fail comes before the first change.
        self._check_identities(encoded)
        keys = self._new_keys(encoded)
        for removal in encoded.removals:
            for key in removal.keys:
                self._remove(removal.table, key)
        for write in encoded.writes:
            for row in write.rows:
                self._write(write.table, row)
        self._db.job_by_key.update(keys)
        self._forget(set(encoded.forgotten))
        self._db.last_seq = max(self._db.last_seq, encoded.last_seq)
        self._db.batches[encoded.id] = self._clock()

    async def has_batch(self, batch_id: str) -> bool:
        return column(batch_id) in self._db.batches

    async def job(self, job_id: str) -> tuple[Job, tuple[Task, ...]] | None:
        row = self._db.jobs.get(column(job_id))
        if row is None:
            return None
        return rows.job_and_tasks([(-1, row.doc), *self._tasks_of(row.id)])

    async def job_by_key(self, namespace: str, key: str) -> Job | None:
        job = self._db.job_by_key.get((column(namespace), column(key)))
        return None if job is None else rows.job_from(self._db.jobs[job].doc)

    async def existing_jobs(self, job_ids: Collection[str]) -> set[str]:
        return {job for job in job_ids if column(job) in self._db.jobs}

    async def finished_jobs(
        self, query: JobQuery, *, limit: int, cursor: str | None = None
    ) -> JobPage:
        before = None if cursor is None else Cursor.parse(cursor)
        found = [
            (row.created_at, row.id, row.doc)
            for row in self._db.jobs.values()
            if row.finished_at is not None
            and (before is None or (row.created_at, row.id) < before)
            and _matches(row, query)
        ]
        return rows.page(sorted(found, reverse=True), limit)

    async def records(
        self, *, job: str | None = None, after: int = 0, limit: int
    ) -> tuple[Record, ...]:
        wanted = None if job is None else column(job)
        found = sorted(
            row
            for row in self._db.records.values()
            if row.seq > after and (wanted is None or row.job == wanted)
        )
        return tuple(rows.record_from(row.doc) for row in found[:limit])

    async def put_blob(self, blob_id: str, job: str, data: bytes) -> None:
        self._db.blobs[column(blob_id)] = (column(job), data)

    async def get_blob(self, blob_id: str) -> bytes | None:
        found = self._db.blobs.get(column(blob_id))
        return None if found is None else found[1]

    async def put_output(self, term: int, chunks: Sequence[Chunk], cuts: Sequence[Cut] = ()) -> int:
        self._check(term)
        for row in rows.output_rows(chunks):
            job, position, epoch, begins, ends, *_ = row
            if job not in self._db.jobs:
                continue
            attempts = self._db.output.setdefault(job, {})
            attempt = attempts.setdefault((position, epoch), {})
            if begins not in attempt or attempt[begins][4] < ends:
                attempt[begins] = row
        return sum(self._cut(*cut) for cut in rows.cut_rows(cuts))

    def _cut(self, job: str, position: int, epoch: int, before: int) -> int:
        attempts = self._db.output.get(job, {})
        attempt = attempts.get((position, epoch), {})
        gone = [row for row in attempt.values() if row[4] <= before]
        for row in gone:
            del attempt[row[3]]
        if not attempt:
            attempts.pop((position, epoch), None)
        return sum(len(row[5]) for row in gone)

    async def output_spans(self, job: str) -> tuple[Span, ...]:
        attempts = self._db.output.get(column(job), {})
        return tuple(
            Span(*key, max(row[4] for row in found.values()))
            for key, found in sorted(attempts.items())
        )

    async def output(
        self, job: str, task: int, epoch: int, *, offset: int, span: int
    ) -> tuple[Chunk, ...]:
        attempt = self._db.output.get(column(job), {}).get((task, epoch), {})
        low = max((begins for begins in attempt if begins <= offset), default=offset)
        high = span + min((begins for begins in attempt if begins >= offset), default=offset)
        found = [
            (begins, row[5])
            for begins, row in sorted(attempt.items())
            if low <= begins < high and row[4] > offset
        ]
        return rows.chunks_from(job, task, epoch, found)

    async def prune(self, term: int, *, before: Micros, limit: int) -> Pruned:
        self._check(term)
        db = self._db
        old = sorted(
            (row.finished_at, row.id)
            for row in db.jobs.values()
            if row.finished_at is not None and row.finished_at < before
        )
        gone = {job for _, job in old[:limit]}
        pruned = self._forget(gone)
        others = [
            row.seq for row in db.records.values() if row.job is None and row.recorded_at < before
        ]
        for seq in others:
            del db.records[seq]
        oldest = self._clock() - rows.BATCHES_KEPT
        db.batches = {batch: at for batch, at in db.batches.items() if at >= oldest}
        return replace(pruned, records=pruned.records + len(others))

    def _forget(self, gone: set[str]) -> Pruned:
        """These jobs, with all that is theirs."""
        db = self._db
        if not gone:
            return Pruned()
        records = [row.seq for row in db.records.values() if row.job in gone]
        blobs = [blob for blob, (job, _) in db.blobs.items() if job in gone]
        for job in gone:
            db.jobs.pop(job, None)
            db.tasks.pop(job, None)
            db.output.pop(job, None)
        db.job_by_key = {key: job for key, job in db.job_by_key.items() if job not in gone}
        for seq in records:
            del db.records[seq]
        for blob in blobs:
            del db.blobs[blob]
        return Pruned(jobs=len(gone), records=len(records), blobs=len(blobs))

    async def add_token(self, token: Token) -> bool:
        name, doc = rows.token_row(token)
        return self._db.tokens.setdefault(name, doc) is doc

    async def remove_token(self, name: str) -> bool:
        return self._db.tokens.pop(column(name), None) is not None

    async def tokens(self) -> tuple[Token, ...]:
        return tuple(rows.token_from(doc) for _, doc in sorted(self._db.tokens.items()))

    def _check(self, term: int) -> None:
        if self._db.leader.term != term:
            raise Deposed(f"term {term} is over: {self._db.leader.term} is the latest")

    def _tasks_of(self, job: str) -> list[tuple[int, str]]:
        return sorted(self._db.tasks.get(job, {}).items())

    def _check_identities(self, encoded: Encoded) -> None:
        for write in encoded.writes:
            for row in write.rows:
                if not isinstance(row, JobRow):
                    continue
                stored = self._db.jobs.get(row.id)
                if stored is not None and stored.created_at != row.created_at:
                    raise rows.other_job(encoded.id, row.id)

    def _new_keys(self, encoded: Encoded) -> dict[tuple[str, str], str]:
        keys: dict[tuple[str, str], str] = {}
        for write in encoded.writes:
            for row in write.rows:
                if not isinstance(row, JobRow) or row.idempotency_key is None:
                    continue
                place = (row.namespace, row.idempotency_key)
                if keys.setdefault(place, self._db.job_by_key.get(place, row.id)) != row.id:
                    raise CommitFailed(
                        f"batch {encoded.id} was not written: another job of namespace"
                        f" {row.namespace} has the key {row.idempotency_key}"
                    )
        return keys

    def _remove(self, table: Table, key: Row) -> None:
        if table is rows.BLOBS:
            self._db.blobs.pop(str(key[0]), None)
        else:
            self._db.others[table.name].pop(key, None)

    def _write(self, table: Table, row: Row) -> None:
        match row:
            case JobRow():
                self._db.jobs[row.id] = row
            case TaskRow():
                self._db.tasks[row.job][row.position] = row.doc
            case RecordRow():
                self._db.records[row.seq] = row
            case (*_, str(doc)):
                self._db.others[table.name][row[: len(table.key)]] = doc


def _matches(row: JobRow, query: JobQuery) -> bool:
    wanted = (query.namespace, query.queue, query.phase, query.name)
    return all(
        want is None or column(want) == have for want, have in zip(wanted, row[1:5], strict=True)
    ) and (query.id_prefix is None or row.id.startswith(column(query.id_prefix)))
