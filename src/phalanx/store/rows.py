"""Rows as every store keeps them: a JSON document, and the columns that queries need.

The tables, their columns and the order of writes are defined here once, for every database.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from phalanx.core.ledger import Account
from phalanx.core.model import Cron, ElementBlock, Job, Phase, Queue, Residue, Rows, Task, Worker
from phalanx.core.records import Record, job_of
from phalanx.core.time_units import HOUR, Micros
from phalanx.store.protocol import (
    AuditRecord,
    Batch,
    ClusterObject,
    CommitFailed,
    JobSummary,
    Note,
    ObjectKey,
    OutputChunk,
    OutputTrim,
    StoredAuthority,
    StoreUnreadable,
    Token,
    UsedKey,
)

#: The time of the store, in microseconds.
Clock = Callable[[], Micros]
Value = str | int | None
Row = tuple[Value, ...]

#: How long `has_batch` knows a batch, independently of the retention.
BATCHES_KEPT: Micros = HOUR

#: Idempotency keys that are removed in one transaction.
KEYS_PER_PRUNE = 5000

TEXT = "text"
BIGINT = "bigint"

#: Encoding so many rows takes a few milliseconds.
_LARGE_ROWS = 500

#: Longer values end in a digest instead: PostgreSQL cannot index them.
_COLUMN_LIMIT = 256


@dataclass(frozen=True, eq=False)
class Table:
    name: str
    key: tuple[str, ...]  #: the first columns
    columns: dict[str, str]  #: name → type, the document last
    fixed: tuple[str, ...] = ()  #: columns that never change; a row that differs replaces nothing


class JobRow(NamedTuple):
    id: str
    namespace: str
    queue: str
    phase: str
    name: str
    created_at: Micros
    finished_at: Micros | None
    array: str | None  #: the array that it is an element of
    doc: str


class TaskRow(NamedTuple):
    job: str
    position: int
    doc: str


class RecordRow(NamedTuple):
    seq: int
    job: str | None
    recorded_at: Micros
    doc: str


JOBS = Table(
    "jobs",
    ("id",),
    {
        "id": TEXT,
        "namespace": TEXT,
        "queue": TEXT,
        "phase": TEXT,
        "name": TEXT,
        "created_at": BIGINT,
        "finished_at": BIGINT,
        "array_id": TEXT,
        "doc": TEXT,
    },
    fixed=("created_at",),
)
TASKS = Table("tasks", ("job", "position"), {"job": TEXT, "position": BIGINT, "doc": TEXT})
WORKERS = Table("workers", ("id",), {"id": TEXT, "doc": TEXT})
QUEUES = Table("queues", ("name",), {"name": TEXT, "doc": TEXT})
RESIDUES = Table("residues", ("task", "epoch"), {"task": TEXT, "epoch": BIGINT, "doc": TEXT})
ACCOUNTS = Table("accounts", ("queue",), {"queue": TEXT, "doc": TEXT})
ELEMENTS = Table(
    "elements", ("array_id", "number"), {"array_id": TEXT, "number": BIGINT, "doc": TEXT}
)
CRONS = Table("crons", ("key",), {"key": TEXT, "doc": TEXT})
RECORDS = Table(
    "records", ("seq",), {"seq": BIGINT, "job": TEXT, "recorded_at": BIGINT, "doc": TEXT}
)
USED_KEYS = Table(
    "used_keys",
    ("principal", "key"),
    {"principal": TEXT, "key": TEXT, "used_at": BIGINT, "doc": TEXT},
)
AUDIT = Table(
    "audit",
    ("recorded_at", "id"),
    {
        "recorded_at": BIGINT,
        "id": TEXT,
        "principal": TEXT,
        "namespace": TEXT,
        "target": TEXT,
        "doc": TEXT,
    },
)
BLOBS = Table("blobs", ("id",), {"id": TEXT, "job": TEXT, "data": "bytea"})


class TableWrite(NamedTuple):
    """Rows that replace those with the same key."""

    table: Table
    rows: list[Row]


class TableRemoval(NamedTuple):
    table: Table
    keys: list[Row]


class EncodedBatch(NamedTuple):
    """A batch as it is written, without tables that it does not change."""

    id: str
    last_seq: int  #: the highest number of its records, or 0
    removals: list[TableRemoval]
    writes: list[TableWrite]
    removed_jobs: list[str]


def job_summaries(found: Iterable[Sequence[Any]], ids: Mapping[str, str]) -> dict[str, JobSummary]:
    """Summaries from rows of id, namespace, phase and whether the job has finished; `ids` has the
    id of each column."""
    return {
        ids[job]: JobSummary(namespace, Phase(phase), bool(is_finished))
        for job, namespace, phase, is_finished in found
    }


def column(text: str) -> str:
    """A string as it is kept in a column: different strings stay different.

    PostgreSQL cannot store NUL in text. The document has the string unchanged.
    """
    if len(text) <= _COLUMN_LIMIT and "\0" not in text and "\\" not in text:
        return text
    safe = text.replace("\\", "\\\\").replace("\0", "\\0")
    if len(safe) <= _COLUMN_LIMIT:
        return safe
    return f"{safe[:128]}…{hashlib.sha256(text.encode()).hexdigest()}"


def _column_or_none(text: str | None) -> str | None:
    return None if text is None else column(text)


_to_json = msgspec.json.Encoder().encode


def _doc(row: msgspec.Struct) -> str:
    return _to_json(row).decode()


def _job(job: Job) -> JobRow:
    return JobRow(
        column(job.id),
        column(job.spec.namespace),
        column(job.spec.queue),
        job.phase.value,
        column(job.name),
        job.created_at,
        job.finished_at,
        _column_or_none(job.array),
        _doc(job),
    )


def _task(task: Task) -> TaskRow:
    return TaskRow(column(task.job), task.index, _doc(task))


def _worker(worker: Worker) -> Row:
    return (column(worker.id), _doc(worker))


def _queue(queue: Queue) -> Row:
    return (column(queue.name), _doc(queue))


def _residue(residue: Residue) -> Row:
    return (column(residue.task), residue.epoch, _doc(residue))


def _account(account: Account) -> Row:
    return (column(account.queue), _doc(account))


def _cron(cron: Cron) -> Row:
    return (column(cron.key), _doc(cron))


def _element_block(block: ElementBlock) -> Row:
    return (column(block.array), block.number, _doc(block))


def _record(record: Record) -> RecordRow:
    return RecordRow(record.seq, _column_or_none(job_of(record)), record.at, _doc(record))


def _used_key(used: UsedKey) -> Row:
    return (column(used.principal), column(used.key), used.used_at, _doc(used))


class AuditRow(NamedTuple):
    recorded_at: Micros
    id: str
    principal: str
    namespace: str
    target: str
    doc: str


def audit_row(record: AuditRecord) -> AuditRow:
    return AuditRow(
        record.at,
        column(record.id),
        column(record.principal),
        column(record.namespace),
        column(record.target),
        _doc(record),
    )


def _write(table: Table, encoded: Iterable[Row]) -> TableWrite:
    rows = list(encoded)
    if len(rows) > 1:
        width = len(table.key)
        # Of two rows with the same key the later one is kept: a statement can write a row only
        # once.
        rows = list({row[:width]: row for row in rows}.values())
    return TableWrite(table, rows)


def is_large(batch: Batch) -> bool:
    """Whether a batch should be encoded in a thread, because it would hold up the event loop."""
    return len(batch.tasks) + len(batch.jobs) > _LARGE_ROWS


def encode(batch: Batch) -> EncodedBatch:
    """Raises CommitFailed if a value cannot be written as JSON, such as half a surrogate pair."""
    try:
        removals = (
            TableRemoval(WORKERS, [(column(worker),) for worker in batch.removed_workers]),
            TableRemoval(QUEUES, [(column(queue),) for queue in batch.removed_queues]),
            TableRemoval(
                RESIDUES, [(column(task), epoch) for task, epoch in batch.removed_residues]
            ),
            TableRemoval(CRONS, [(column(cron),) for cron in batch.removed_crons]),
            TableRemoval(BLOBS, [(column(blob),) for blob in batch.dropped_blobs]),
        )
        writes = (
            _write(WORKERS, map(_worker, batch.workers)),
            _write(QUEUES, map(_queue, batch.queues)),
            _write(RESIDUES, map(_residue, batch.residues)),
            _write(ACCOUNTS, map(_account, batch.accounts)),
            _write(CRONS, map(_cron, batch.crons)),
            _write(ELEMENTS, map(_element_block, batch.elements)),
            _write(TASKS, map(_task, batch.tasks)),
            _write(JOBS, map(_job, batch.jobs)),
            _write(RECORDS, map(_record, batch.records)),
            _write(USED_KEYS, map(_used_key, batch.used_keys)),
            _write(AUDIT, map(audit_row, batch.audit)),
        )
    except (ValueError, TypeError, OverflowError, msgspec.MsgspecError) as error:
        raise CommitFailed(
            f"batch {batch.id} was not written: a value cannot be stored as JSON ({error})"
        ) from error
    return EncodedBatch(
        id=column(batch.id),
        last_seq=max((record.seq for record in batch.records), default=0),
        removals=[removal for removal in removals if removal.keys],
        writes=[write for write in writes if write.rows],
        removed_jobs=[column(job) for job in batch.removed_jobs],
    )


job_from = msgspec.json.Decoder(Job).decode
task_from = msgspec.json.Decoder(Task).decode
worker_from = msgspec.json.Decoder(Worker).decode
queue_from = msgspec.json.Decoder(Queue).decode
residue_from = msgspec.json.Decoder(Residue).decode
account_from = msgspec.json.Decoder(Account).decode
elements_from = msgspec.json.Decoder(ElementBlock).decode
cron_from = msgspec.json.Decoder(Cron).decode
record_from: Callable[[str], Record] = msgspec.json.Decoder(Record).decode
audit_from = msgspec.json.Decoder(AuditRecord).decode
used_key_from = msgspec.json.Decoder(UsedKey).decode
token_from = msgspec.json.Decoder(Token).decode
authority_from = msgspec.json.Decoder(StoredAuthority).decode
object_from = msgspec.json.Decoder(ClusterObject).decode


def token_row(token: Token) -> tuple[str, str]:
    return column(token.name), _doc(token)


def token_replacement(before: Token, after: Token) -> tuple[str, str, str]:
    """The name of a token, its document, and the document that replaces it."""
    if before.name != after.name:
        raise AssertionError(f"bug: token {after.name} cannot replace {before.name}")
    return column(before.name), _doc(before), _doc(after)


def token_use_rows(used_at: Mapping[str, Micros]) -> list[tuple[str, Micros]]:
    return [(column(name), at) for name, at in used_at.items()]


def note_row(note: Note) -> tuple[str, str, Micros, str]:
    return note.kind, column(note.name), note.at, note.doc


def authority_row(authority: StoredAuthority) -> tuple[int, str]:
    return authority.number, _doc(authority)


def object_row(each: ClusterObject) -> tuple[str, str, str, str]:
    return (*object_key(each.key), _doc(each))


def object_key(key: ObjectKey) -> tuple[str, str, str]:
    return column(key.kind), column(key.namespace), column(key.name)


#: job, position, epoch, begins, ends, data
OutputRow = tuple[str, int, int, int, int, bytes]


def output_rows(chunks: Iterable[OutputChunk]) -> list[OutputRow]:
    return [(column(c.job), c.task, c.epoch, c.offset, c.end, c.data) for c in chunks]


def trim_rows(trims: Iterable[OutputTrim]) -> list[tuple[str, int, int, int]]:
    """Rows (job, position, epoch, before)."""
    return [(column(trim.job), trim.task, trim.epoch, trim.before) for trim in trims]


def chunks_from(
    job: str, task: int, epoch: int, rows: Iterable[Sequence[Any]]
) -> tuple[OutputChunk, ...]:
    """The chunks of rows (begins, data), in order."""
    return tuple(OutputChunk(job, task, epoch, begins, bytes(data)) for begins, data in rows)


def live_rows(docs: Mapping[str, Sequence[str]], last_seq: int) -> Rows:
    """The rows of all tables, from their documents by table, in the order that `load` promises.

    Raises StoreUnreadable.
    """
    try:
        rows = Rows(
            jobs=[job_from(doc) for doc in docs[JOBS.name]],
            tasks=[task_from(doc) for doc in docs[TASKS.name]],
            workers=[worker_from(doc) for doc in docs[WORKERS.name]],
            queues=[queue_from(doc) for doc in docs[QUEUES.name]],
            residues=[residue_from(doc) for doc in docs[RESIDUES.name]],
            accounts=[account_from(doc) for doc in docs[ACCOUNTS.name]],
            crons=[cron_from(doc) for doc in docs[CRONS.name]],
            elements=[elements_from(doc) for doc in docs[ELEMENTS.name]],
            last_seq=last_seq,
        )
    except msgspec.MsgspecError as error:
        raise StoreUnreadable(f"one of its rows cannot be read ({error})") from error
    rows.jobs.sort(key=lambda job: (job.created_at, job.id))
    rows.tasks.sort(key=lambda task: (task.job, task.index))
    rows.workers.sort(key=lambda worker: worker.id)
    rows.queues.sort(key=lambda queue: queue.name)
    rows.residues.sort(key=lambda residue: (residue.task, residue.epoch))
    rows.crons.sort(key=lambda cron: cron.key)
    rows.elements.sort(key=lambda block: (block.array, block.number))
    rows.accounts.sort(key=lambda account: account.queue)
    return rows


def job_and_tasks(rows: Sequence[Sequence[Any]]) -> tuple[Job, tuple[Task, ...]] | None:
    """The job of rows (position, document), in order; the job itself has position -1."""
    if not rows or rows[0][0] != -1:
        return None
    return job_from(rows[0][1]), tuple(task_from(doc) for _, doc in rows[1:])


def other_job(batch: str, job: Value) -> CommitFailed:
    """The error for a new job that has the id of a stored one."""
    return CommitFailed(
        f"batch {batch} was not written: another job has the id {job}; submit the job again"
    )
