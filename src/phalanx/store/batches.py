"""The batch of a commit, from the changes that the core has applied."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from phalanx.core.changes import Changes
from phalanx.core.ledger import Account
from phalanx.core.model import Cron, ElementBlock, Job, Queue, Residue, Task, Worker
from phalanx.core.records import Record
from phalanx.store.protocol import AuditRecord, Batch, UsedKey

K = TypeVar("K")
V = TypeVar("V")


def batch_of(
    batch_id: str,
    changes: Iterable[Changes],
    used_keys: Iterable[UsedKey] = (),
    audit: Iterable[AuditRecord] = (),
) -> Batch:
    """One batch of all changes, in the order in which they were applied.

    Of each row only the last version is written. A row that was removed and added again is written;
    a row that was added and removed again is not.
    """
    jobs: dict[str, Job] = {}
    tasks: dict[tuple[str, int], Task] = {}
    workers: dict[str, Worker | None] = {}
    queues: dict[str, Queue | None] = {}
    residues: dict[tuple[str, int], Residue | None] = {}
    accounts: dict[str, Account] = {}
    crons: dict[str, Cron | None] = {}
    elements: dict[tuple[str, int], ElementBlock] = {}
    removed_jobs: list[str] = []
    records: list[Record] = []
    dropped: dict[str, None] = {}
    for each in changes:
        jobs |= each.jobs
        tasks |= each.tasks
        workers |= each.workers
        queues |= each.queues
        residues |= each.residues
        accounts |= each.accounts
        crons |= each.crons
        elements |= each.elements
        removed_jobs += each.forgotten
        records += each.records
        dropped |= dict.fromkeys(each.dropped_blobs)
    return Batch(
        id=batch_id,
        jobs=tuple(jobs.values()),
        tasks=tuple(tasks.values()),
        workers=_written(workers),
        removed_workers=_removed(workers),
        queues=_written(queues),
        removed_queues=_removed(queues),
        residues=_written(residues),
        removed_residues=_removed(residues),
        accounts=tuple(accounts.values()),
        crons=_written(crons),
        removed_crons=_removed(crons),
        elements=tuple(elements.values()),
        records=tuple(records),
        used_keys=tuple(used_keys),
        audit=tuple(audit),
        dropped_blobs=_unused(dropped, tasks.values()) if dropped else (),
        removed_jobs=tuple(removed_jobs),
    )


def _written(rows: Mapping[K, V | None]) -> tuple[V, ...]:
    return tuple(row for row in rows.values() if row is not None)


def _removed(rows: Mapping[K, V | None]) -> tuple[K, ...]:
    return tuple(key for key, row in rows.items() if row is None)


def _unused(dropped: Iterable[str], tasks: Iterable[Task]) -> tuple[str, ...]:
    """The dropped blobs, without those that were saved again under the same id."""
    used = {blob.id for task in tasks for blob in (task.checkpoint, task.saved) if blob}
    return tuple(blob for blob in dropped if blob not in used)
