"""The store in memory, for tests and simulations.

Rows are kept encoded, as on a disk, so that a loaded row is never an object that is still in use.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from uuid import uuid4

from msgspec.structs import replace

from phalanx.core.model import ElementBlock, Job, Phase, Rows, Task
from phalanx.core.records import Record
from phalanx.core.time_units import Micros
from phalanx.store import rows
from phalanx.store.pages import Cursor, audit_page, job_page
from phalanx.store.protocol import (
    AuditPage,
    AuditQuery,
    AuditRecord,
    Batch,
    ClusterObject,
    Deposed,
    JobPage,
    JobQuery,
    JobSummary,
    Leader,
    Note,
    ObjectKey,
    OutputChunk,
    OutputEnd,
    OutputTrim,
    PruneCounts,
    StoredAuthority,
    Token,
    UsedKey,
)
from phalanx.store.rows import (
    AuditRow,
    Clock,
    EncodedBatch,
    JobRow,
    OutputRow,
    RecordRow,
    Row,
    Table,
    TaskRow,
    column,
)


class MemoryDatabase:
    """The database that several handles share, and that a restarted server finds again."""

    def __init__(self) -> None:
        self.cluster_id = uuid4().hex
        self.leader = Leader(term=0, holder="", url="")
        self.expires_at: Micros = 0
        self.last_seq = 0
        self.batches: dict[str, Micros] = {}
        self.jobs: dict[str, JobRow] = {}
        self.tasks: defaultdict[str, dict[int, str]] = defaultdict(dict)
        #: Table → key → document, of workers, queues, residues, accounts, crons and used keys.
        self.others: defaultdict[str, dict[Row, str]] = defaultdict(dict)
        self.records: dict[int, RecordRow] = {}
        self.audit: dict[str, AuditRow] = {}
        self.blobs: dict[str, tuple[str, bytes]] = {}
        #: job → (position, epoch) → begins → row.
        self.output: dict[str, dict[tuple[int, int], dict[int, OutputRow]]] = {}
        self.tokens: dict[str, str] = {}
        self.tokens_version = 0
        self.token_uses: dict[str, Micros] = {}

        self.authorities: dict[int, str] = {}
        self.objects: dict[tuple[str, str, str], str] = {}
        self.objects_version = 0
        self.notes: dict[tuple[str, str], Note] = {}


class MemoryStore:
    """One handle on a database in memory."""

    def __init__(self, *, clock: Clock, database: MemoryDatabase | None = None) -> None:
        self._clock = clock
        self._db = database or MemoryDatabase()

    async def open(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """The database stays, for other handles."""

    async def cluster_id(self) -> str:
        return self._db.cluster_id

    # Leadership

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

    # State

    async def load(self, term: int) -> Rows:
        self._check(term)
        live = [row for row in self._db.jobs.values() if row.finished_at is None]
        docs: dict[str, list[str]] = {
            table.name: list(self._db.others[table.name].values())
            for table in (rows.WORKERS, rows.QUEUES, rows.RESIDUES, rows.ACCOUNTS, rows.CRONS)
        }
        finished = {row.id for row in self._db.jobs.values() if row.finished_at is not None}
        docs["elements"] = [
            doc
            for (array, _), doc in self._db.others[rows.ELEMENTS.name].items()
            if array not in finished
        ]
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
        for removal in encoded.removals:
            for key in removal.keys:
                self._remove(removal.table, key)
        for write in encoded.writes:
            for row in write.rows:
                self._write(write.table, row)
        self._delete_jobs(set(encoded.removed_jobs))
        self._db.last_seq = max(self._db.last_seq, encoded.last_seq)
        self._db.batches[encoded.id] = self._clock()

    async def has_batch(self, batch_id: str) -> bool:
        return column(batch_id) in self._db.batches

    # Reading

    async def job(self, job_id: str) -> tuple[Job, tuple[Task, ...]] | None:
        row = self._db.jobs.get(column(job_id))
        if row is None:
            return None
        return rows.job_and_tasks([(-1, row.doc), *self._tasks_of(row.id)])

    async def elements(self, array: str) -> tuple[ElementBlock, ...]:
        blocks = sorted(self._db.others[rows.ELEMENTS.name].items())
        return tuple(rows.elements_from(doc) for key, doc in blocks if key[0] == column(array))

    async def used_key(self, principal: str, key: str) -> UsedKey | None:
        doc = self._db.others[rows.USED_KEYS.name].get((column(principal), column(key)))
        return None if doc is None else rows.used_key_from(doc)

    async def job_summaries(self, job_ids: Collection[str]) -> dict[str, JobSummary]:
        found = {job: self._db.jobs.get(column(job)) for job in job_ids}
        return {
            job: JobSummary(row.namespace, Phase(row.phase), row.finished_at is not None)
            for job, row in found.items()
            if row is not None
        }

    async def finished_jobs(
        self, query: JobQuery, *, limit: int, cursor: str | None = None
    ) -> JobPage:
        before = None if cursor is None else Cursor.parse(cursor)
        jobs = [
            (row.created_at, row.id, row.doc)
            for row in self._db.jobs.values()
            if row.finished_at is not None
            and row.array is None
            and (before is None or (row.created_at, row.id) < before)
            and _matches(row, query)
        ]
        return job_page(sorted(jobs, reverse=True), limit)

    async def records(
        self, *, job: str | None = None, after: int = 0, limit: int
    ) -> tuple[Record, ...]:
        wanted = None if job is None else column(job)
        records = sorted(
            row
            for row in self._db.records.values()
            if row.seq > after and (wanted is None or row.job == wanted)
        )
        return tuple(rows.record_from(row.doc) for row in records[:limit])

    # Blobs

    async def put_blob(self, blob_id: str, job: str, data: bytes) -> None:
        self._db.blobs[column(blob_id)] = (column(job), data)

    async def get_blob(self, blob_id: str) -> bytes | None:
        blob = self._db.blobs.get(column(blob_id))
        return None if blob is None else blob[1]

    async def remove_blob(self, blob_id: str) -> None:
        self._db.blobs.pop(column(blob_id), None)

    # Task output

    async def put_output(
        self, term: int, chunks: Sequence[OutputChunk], trims: Sequence[OutputTrim] = ()
    ) -> int:
        self._check(term)
        for row in rows.output_rows(chunks):
            job, position, epoch, begins, ends, *_ = row
            if job not in self._db.jobs:
                continue
            attempts = self._db.output.setdefault(job, {})
            attempt = attempts.setdefault((position, epoch), {})
            if begins not in attempt or attempt[begins][4] < ends:
                attempt[begins] = row
        return sum(self._trim(*trim) for trim in rows.trim_rows(trims))

    def _trim(self, job: str, position: int, epoch: int, before: int) -> int:
        attempts = self._db.output.get(job, {})
        attempt = attempts.get((position, epoch), {})
        removed = [row for row in attempt.values() if row[4] <= before]
        for row in removed:
            del attempt[row[3]]
        if not attempt:
            attempts.pop((position, epoch), None)
        return sum(len(row[5]) for row in removed)

    async def output_ends(self, job: str) -> tuple[OutputEnd, ...]:
        attempts = self._db.output.get(column(job), {})
        return tuple(
            OutputEnd(*key, max(row[4] for row in attempt.values()))
            for key, attempt in sorted(attempts.items())
        )

    async def output(
        self, job: str, task: int, epoch: int, *, offset: int, length: int
    ) -> tuple[OutputChunk, ...]:
        attempt = self._db.output.get(column(job), {}).get((task, epoch), {})
        low = max((begins for begins in attempt if begins <= offset), default=offset)
        high = length + min((begins for begins in attempt if begins >= offset), default=offset)
        chunks = [
            (begins, row[5])
            for begins, row in sorted(attempt.items())
            if low <= begins < high and row[4] > offset
        ]
        return rows.chunks_from(job, task, epoch, chunks)

    # Retention

    async def prune(self, term: int, *, before: Micros, limit: int) -> PruneCounts:
        self._check(term)
        db = self._db
        old = sorted(
            (row.finished_at, row.id)
            for row in db.jobs.values()
            if row.finished_at is not None and row.finished_at < before and row.array is None
        )
        counts = self._delete_jobs({job for _, job in old[:limit]})
        others = [
            row.seq for row in db.records.values() if row.job is None and row.recorded_at < before
        ]
        for seq in others:
            del db.records[seq]
        keys = db.others[rows.USED_KEYS.name]
        old_keys = [key for key, doc in keys.items() if rows.used_key_from(doc).used_at < before]
        for key in old_keys[: rows.KEYS_PER_PRUNE]:
            del keys[key]
        oldest = self._clock() - rows.BATCHES_KEPT
        db.batches = {batch: at for batch, at in db.batches.items() if at >= oldest}
        return replace(counts, records=counts.records + len(others), keys=len(old_keys))

    def _delete_jobs(self, jobs: set[str]) -> PruneCounts:
        """Delete jobs with all their rows, and arrays with their elements."""
        db = self._db
        if not jobs:
            return PruneCounts()
        arrays, count = jobs, len(jobs)
        jobs = jobs | {row.id for row in db.jobs.values() if row.array in arrays}
        blocks = db.others[rows.ELEMENTS.name]
        for key in [key for key in blocks if key[0] in arrays]:
            del blocks[key]
        records = [row.seq for row in db.records.values() if row.job in jobs]
        blobs = [blob for blob, (job, _) in db.blobs.items() if job in jobs]
        for job in jobs:
            db.jobs.pop(job, None)
            db.tasks.pop(job, None)
            db.output.pop(job, None)
        for seq in records:
            del db.records[seq]
        for blob in blobs:
            del db.blobs[blob]
        return PruneCounts(jobs=count, records=len(records), blobs=len(blobs))

    # Audit

    async def add_audit(self, records: Sequence[AuditRecord]) -> None:
        self._db.audit |= {row.id: row for row in map(rows.audit_row, records)}

    async def audit(self, query: AuditQuery, *, limit: int, cursor: str | None = None) -> AuditPage:
        before = None if cursor is None else Cursor.parse(cursor)
        found = [
            (row.recorded_at, row.id, row.doc)
            for row in self._db.audit.values()
            if _is_listed(row, query) and (before is None or (row.recorded_at, row.id) < before)
        ]
        return audit_page(sorted(found, reverse=True), limit)

    async def prune_audit(self, before: Micros, *, limit: int) -> int:
        old = sorted(
            (row.recorded_at, row.id) for row in self._db.audit.values() if row.recorded_at < before
        )[:limit]
        for _, record in old:
            del self._db.audit[record]
        return len(old)

    # Tokens

    async def add_token(self, token: Token, audit: AuditRecord | None = None) -> int | None:
        name, doc = rows.token_row(token)
        if name in self._db.tokens:
            return None
        self._db.tokens[name] = doc
        return self._tokens_changed(audit)

    async def replace_token(
        self, before: Token, after: Token, audit: AuditRecord | None = None
    ) -> int | None:
        name, old, new = rows.token_replacement(before, after)
        if self._db.tokens.get(name) != old:
            return None
        self._db.tokens[name] = new
        return self._tokens_changed(audit)

    async def remove_token(self, name: str, audit: AuditRecord | None = None) -> int | None:
        self._db.token_uses.pop(column(name), None)
        if self._db.tokens.pop(column(name), None) is None:
            return None
        return self._tokens_changed(audit)

    def _tokens_changed(self, audit: AuditRecord | None) -> int:
        self._db.tokens_version += 1
        if audit is not None:
            self._db.audit[column(audit.id)] = rows.audit_row(audit)
        return self._db.tokens_version

    async def tokens(self) -> tuple[Token, ...]:
        return tuple(rows.token_from(doc) for _, doc in sorted(self._db.tokens.items()))

    async def tokens_version(self) -> int:
        return self._db.tokens_version

    async def note_token_uses(self, used_at: Mapping[str, Micros]) -> None:
        for name, at in rows.token_use_rows(used_at):
            if name in self._db.tokens:
                self._db.token_uses[name] = at

    async def token_uses(self) -> dict[str, Micros]:
        return dict(self._db.token_uses)

    # Objects

    async def change_objects(
        self,
        put: Sequence[ClusterObject],
        removed: Sequence[ObjectKey] = (),
        audit: AuditRecord | None = None,
    ) -> int:
        for key in removed:
            self._db.objects.pop(rows.object_key(key), None)
        for each in put:
            kind, namespace, name, doc = rows.object_row(each)
            self._db.objects[kind, namespace, name] = doc
        if audit is not None:
            self._db.audit[column(audit.id)] = rows.audit_row(audit)
        self._db.objects_version += 1
        return self._db.objects_version

    async def objects(self) -> tuple[ClusterObject, ...]:
        return tuple(rows.object_from(doc) for _, doc in sorted(self._db.objects.items()))

    async def objects_version(self) -> int:
        return self._db.objects_version

    # Notes

    async def put_note(self, note: Note) -> None:
        kind, name, at, doc = rows.note_row(note)
        self._db.notes[kind, name] = Note(kind, name, at, doc)

    async def notes(self, kind: str) -> tuple[Note, ...]:
        return tuple(each for _, each in sorted(self._db.notes.items()) if each.kind == kind)

    async def remove_notes(self, kind: str, before: Micros) -> None:
        kept = {k: n for k, n in self._db.notes.items() if n.kind != kind or n.at >= before}
        self._db.notes = kept

    # Certificate authorities

    async def add_authority(self, authority: StoredAuthority) -> bool:
        number, doc = rows.authority_row(authority)
        return self._db.authorities.setdefault(number, doc) is doc

    async def remove_authority(self, number: int) -> bool:
        return self._db.authorities.pop(number, None) is not None

    async def authorities(self) -> tuple[StoredAuthority, ...]:
        return tuple(rows.authority_from(doc) for _, doc in sorted(self._db.authorities.items()))

    # Rows

    def _check(self, term: int) -> None:
        latest = self._db.leader.term
        if latest != term:
            raise Deposed(f"term {term} has ended: the current term is {latest}")

    def _tasks_of(self, job: str) -> list[tuple[int, str]]:
        return sorted(self._db.tasks.get(job, {}).items())

    def _check_identities(self, encoded: EncodedBatch) -> None:
        for write in encoded.writes:
            for row in write.rows:
                if not isinstance(row, JobRow):
                    continue
                stored = self._db.jobs.get(row.id)
                if stored is not None and stored.created_at != row.created_at:
                    raise rows.other_job(encoded.id, row.id)

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
            case AuditRow():
                self._db.audit[row.id] = row
            case (*_, str(doc)):
                self._db.others[table.name][row[: len(table.key)]] = doc


def _matches(row: JobRow, query: JobQuery) -> bool:
    values = (query.namespace, query.queue, query.phase, query.name)
    return (
        all(
            value is None or column(value) == kept
            for value, kept in zip(values, row[1:5], strict=True)
        )
        and (query.id_prefix is None or row.id.startswith(column(query.id_prefix)))
        and (query.name_contains is None or column(query.name_contains) in row.name)
    )


def _is_listed(row: AuditRow, query: AuditQuery) -> bool:
    wanted = (query.principal, query.namespace, query.target)
    return (
        (query.since is None or row.recorded_at >= query.since)
        and (query.until is None or row.recorded_at < query.until)
        and all(
            value is None or column(value) == kept
            for value, kept in zip(wanted, row[2:5], strict=True)
        )
    )
