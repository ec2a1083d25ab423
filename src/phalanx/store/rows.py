"""Rows as every store keeps them: a JSON document, and beside it the columns that queries need.

What is written where, in which order, and what a page cursor looks like is decided here once, so
that the dialects have nothing to disagree on.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import msgspec

from phalanx.core.ledger import Account
from phalanx.core.model import Cron, Job, Queue, Residue, Rows, Task, Worker
from phalanx.core.records import Record, job_of
from phalanx.core.spec.job import HOUR, Micros
from phalanx.store.protocol import Batch, Chunk, CommitFailed, Cut, JobPage, Token

#: The store's own time, in microseconds.
Clock = Callable[[], Micros]
Value = str | int | None
Row = tuple[Value, ...]

#: How long the fate of a batch can be looked up, whatever retention says.
BATCHES_KEPT: Micros = HOUR

TEXT = "text"
BIGINT = "bigint"

#: Longer column values are cut and end in a digest: PostgreSQL refuses to index them whole.
_LONGEST = 256


@dataclass(frozen=True, eq=False)
class Table:
    name: str
    key: tuple[str, ...]  #: the first columns
    columns: dict[str, str]  #: name → type, the document last
    fixed: tuple[str, ...] = ()  #: columns that never change; a row that differs is another one


class JobRow(NamedTuple):
    id: str
    namespace: str
    queue: str
    phase: str
    name: str
    idempotency_key: str | None
    created_at: Micros
    finished_at: Micros | None
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
        "idempotency_key": TEXT,
        "created_at": BIGINT,
        "finished_at": BIGINT,
        "doc": TEXT,
    },
    fixed=("created_at",),
)
TASKS = Table("tasks", ("job", "position"), {"job": TEXT, "position": BIGINT, "doc": TEXT})
WORKERS = Table("workers", ("id",), {"id": TEXT, "doc": TEXT})
QUEUES = Table("queues", ("name",), {"name": TEXT, "doc": TEXT})
RESIDUES = Table("residues", ("task", "epoch"), {"task": TEXT, "epoch": BIGINT, "doc": TEXT})
ACCOUNTS = Table("accounts", ("queue",), {"queue": TEXT, "doc": TEXT})
CRONS = Table("crons", ("key",), {"key": TEXT, "doc": TEXT})
RECORDS = Table(
    "records", ("seq",), {"seq": BIGINT, "job": TEXT, "recorded_at": BIGINT, "doc": TEXT}
)
BLOBS = Table("blobs", ("id",), {"id": TEXT, "job": TEXT, "data": "bytea"})


class Write(NamedTuple):
    """Rows that replace those with the same key."""

    table: Table
    rows: list[Row]


class Removal(NamedTuple):
    table: Table
    keys: list[Row]


class Encoded(NamedTuple):
    """A batch as it is written: removals before writes, tables with nothing to do left out."""

    id: str
    last_seq: int  #: the highest record number in it, or 0
    removals: list[Removal]
    writes: list[Write]
    forgotten: list[str]  #: jobs, after all else


def column(text: str) -> str:
    """A string as it stands in a column: equal only to itself, and safe in every database.

    PostgreSQL keeps no NUL in text. The document keeps the string as it was.
    """
    if len(text) <= _LONGEST and "\0" not in text and "\\" not in text:
        return text
    safe = text.replace("\\", "\\\\").replace("\0", "\\0")
    if len(safe) <= _LONGEST:
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
        _column_or_none(job.key),
        job.created_at,
        job.finished_at,
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


def _record(record: Record) -> RecordRow:
    return RecordRow(record.seq, _column_or_none(job_of(record)), record.at, _doc(record))


def _write(table: Table, rows: Iterable[Row]) -> Write:
    width = len(table.key)
    # Of two rows with one key the later stays; one statement may not touch a row twice.
    return Write(table, list({row[:width]: row for row in rows}.values()))


def encode(batch: Batch) -> Encoded:
    """Raises CommitFailed on a value that JSON cannot hold, such as half of a surrogate pair."""
    try:
        removals = (
            Removal(WORKERS, [(column(worker),) for worker in batch.removed_workers]),
            Removal(QUEUES, [(column(queue),) for queue in batch.removed_queues]),
            Removal(RESIDUES, [(column(task), epoch) for task, epoch in batch.removed_residues]),
            Removal(CRONS, [(column(cron),) for cron in batch.removed_crons]),
            Removal(BLOBS, [(column(blob),) for blob in batch.dropped_blobs]),
        )
        writes = (
            _write(WORKERS, map(_worker, batch.workers)),
            _write(QUEUES, map(_queue, batch.queues)),
            _write(RESIDUES, map(_residue, batch.residues)),
            _write(ACCOUNTS, map(_account, batch.accounts)),
            _write(CRONS, map(_cron, batch.crons)),
            _write(TASKS, map(_task, batch.tasks)),
            _write(JOBS, map(_job, batch.jobs)),
            _write(RECORDS, map(_record, batch.records)),
        )
    except (ValueError, TypeError, OverflowError, msgspec.MsgspecError) as error:
        raise CommitFailed(f"batch {batch.id} cannot be encoded: {error}") from error
    return Encoded(
        id=column(batch.id),
        last_seq=max((record.seq for record in batch.records), default=0),
        removals=[removal for removal in removals if removal.keys],
        writes=[write for write in writes if write.rows],
        forgotten=[column(job) for job in batch.forgotten_jobs],
    )


job_from = msgspec.json.Decoder(Job).decode
task_from = msgspec.json.Decoder(Task).decode
worker_from = msgspec.json.Decoder(Worker).decode
queue_from = msgspec.json.Decoder(Queue).decode
residue_from = msgspec.json.Decoder(Residue).decode
account_from = msgspec.json.Decoder(Account).decode
cron_from = msgspec.json.Decoder(Cron).decode
record_from: Callable[[str], Record] = msgspec.json.Decoder(Record).decode
token_from = msgspec.json.Decoder(Token).decode


def token_row(token: Token) -> tuple[str, str]:
    return column(token.name), _doc(token)


#: job, position, epoch, begins, ends, data
OutputRow = tuple[str, int, int, int, int, bytes]


def output_rows(chunks: Iterable[Chunk]) -> list[OutputRow]:
    return [(column(c.job), c.task, c.epoch, c.offset, c.end, c.data) for c in chunks]


def cut_rows(cuts: Iterable[Cut]) -> list[tuple[str, int, int, int]]:
    return [(column(cut.job), cut.task, cut.epoch, cut.before) for cut in cuts]


def chunks_from(
    job: str, task: int, epoch: int, found: Iterable[Sequence[Any]]
) -> tuple[Chunk, ...]:
    """From (begins, data) in order."""
    return tuple(Chunk(job, task, epoch, begins, bytes(data)) for begins, data in found)


def live_rows(docs: Mapping[str, Sequence[str]], last_seq: int) -> Rows:
    """The documents of each table by its name, decoded and in the order that `load` promises."""
    rows = Rows(
        jobs=[job_from(doc) for doc in docs[JOBS.name]],
        tasks=[task_from(doc) for doc in docs[TASKS.name]],
        workers=[worker_from(doc) for doc in docs[WORKERS.name]],
        queues=[queue_from(doc) for doc in docs[QUEUES.name]],
        residues=[residue_from(doc) for doc in docs[RESIDUES.name]],
        accounts=[account_from(doc) for doc in docs[ACCOUNTS.name]],
        crons=[cron_from(doc) for doc in docs[CRONS.name]],
        last_seq=last_seq,
    )
    rows.jobs.sort(key=lambda job: (job.created_at, job.id))
    rows.tasks.sort(key=lambda task: (task.job, task.index))
    rows.workers.sort(key=lambda worker: worker.id)
    rows.queues.sort(key=lambda queue: queue.name)
    rows.residues.sort(key=lambda residue: (residue.task, residue.epoch))
    rows.crons.sort(key=lambda cron: cron.key)
    rows.accounts.sort(key=lambda account: account.queue)
    return rows


def job_and_tasks(found: Sequence[Sequence[Any]]) -> tuple[Job, tuple[Task, ...]] | None:
    """From (position, document) in order, where the job itself stands at position -1."""
    if not found or found[0][0] != -1:
        return None
    return job_from(found[0][1]), tuple(task_from(doc) for _, doc in found[1:])


def page(found: Sequence[Sequence[Any]], limit: int) -> JobPage:
    """From (created_at, id, document) in order, one more than fits where there are more."""
    jobs = tuple(job_from(doc) for _, _, doc in found[:limit])
    if len(found) <= limit:
        return JobPage(jobs, None)
    created_at, job_id, _ = found[limit - 1]
    return JobPage(jobs, str(Cursor(created_at, job_id)))


class Cursor(NamedTuple):
    """The last job of a page; the next page begins with the next older one."""

    created_at: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    id: Annotated[str, msgspec.Meta(pattern=r"\A[^\0]*\Z")]  #: as it stands in the column

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(_to_json(self)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        try:
            raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            cursor: Cursor = _cursor_from(raw)
        except (ValueError, binascii.Error, msgspec.MsgspecError) as error:
            raise _bad_cursor(text) from error
        # base64 skips what it does not know, so only the very text that we made counts.
        if str(cursor) != text:
            raise _bad_cursor(text)
        return cursor


_cursor_from: Callable[[bytes], Any] = msgspec.json.Decoder(Cursor).decode


def other_job(batch: str, job: Value) -> CommitFailed:
    """A new job was given the id of a stored one."""
    return CommitFailed(
        f"batch {batch} was not written: another job has the id {job}; submit the new job again"
    )


def _bad_cursor(text: str) -> ValueError:
    return ValueError(
        f"{text[:80]!r} is not a cursor of this store; hand back the one that came with the last "
        "page, or none to begin again"
    )
