"""Remove old jobs and audit records, a few at a time, so that commits are not delayed."""

import asyncio
from typing import NamedTuple

from phalanx.core.time_units import SECOND, Micros
from phalanx.engine.engine import Engine
from phalanx.host.clock import wall_clock
from phalanx.server.log_output import Logger
from phalanx.store.protocol import PruneCounts, Store, StoreError
from phalanx.store.rows import KEYS_PER_PRUNE

#: The longest pause between two rounds.
_PAUSE_MAX_S = 300.0
#: Audit records removed in one transaction.
_AUDIT_LIMIT = 5000
#: Jobs removed in one transaction, and the pause before the next.
_LIMIT = 200
_PAUSE_S = 0.2


class Retention(NamedTuple):
    jobs: Micros  #: how long finished jobs and idempotency keys are kept
    audit: Micros


async def keep_pruning(engine: Engine, store: Store, kept: Retention, log: Logger) -> None:
    """Prune forever, while this server leads."""
    pause_s = min(_PAUSE_MAX_S, max(1.0, min(kept) / SECOND / 4))
    while True:
        await asyncio.sleep(pause_s)
        try:
            pruned = await prune(engine, store, wall_clock() - kept.jobs)
            audit = await prune_audit(engine, store, wall_clock() - kept.audit)
        except StoreError as error:
            log.warning("pruning failed", why=str(error))
            continue
        if pruned.jobs or pruned.records or audit:
            log.info(
                "pruned", jobs=pruned.jobs, records=pruned.records, blobs=pruned.blobs, audit=audit
            )


async def prune(engine: Engine, store: Store, before: Micros) -> PruneCounts:
    """Remove the jobs that finished before, while this server leads. Raises StoreError."""
    jobs = records = blobs = keys = 0
    while engine.is_leading and (term := engine.term) is not None:
        pruned = await store.prune(term, before=before, limit=_LIMIT)
        jobs, records, blobs = jobs + pruned.jobs, records + pruned.records, blobs + pruned.blobs
        keys += pruned.keys
        if pruned.jobs < _LIMIT and pruned.keys < KEYS_PER_PRUNE:
            break
        await asyncio.sleep(_PAUSE_S)
    return PruneCounts(jobs, records, blobs, keys)


async def prune_audit(engine: Engine, store: Store, before: Micros) -> int:
    """Remove the audit records from before then, while this server leads. Raises StoreError."""
    removed = 0
    while engine.is_leading:
        count = await store.prune_audit(before, limit=_AUDIT_LIMIT)
        removed += count
        if count < _AUDIT_LIMIT:
            break
        await asyncio.sleep(_PAUSE_S)
    return removed
