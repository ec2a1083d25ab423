"""Views of workers and queues. Amounts are written as users write them."""

from typing import Any

import msgspec

from phalanx.core.model import Limit, PreemptWithin, Protocol, ReclaimFrom


class WorkerView(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    status: str  #: `active`, `cordoned`, `leaving` or `lost`
    protocol: Protocol
    incarnation: str
    exec_addr: str
    resources: dict[str, Any]
    free: dict[str, Any]
    tags: dict[str, str]
    tasks: tuple[str, ...]  #: the tasks that occupy it, of the namespaces that the caller may see
    task_count: int  #: all tasks that occupy it
    registered_at: str
    slots: int | None = None
    limits: tuple[Limit, ...] = ()  #: the limits of tasks that it enforces
    cordoned: str | None = None
    lost_at: str | None = None


class DrainReply(msgspec.Struct, frozen=True):
    worker: WorkerView
    evicted: tuple[str, ...]  #: the jobs that are evicted from it


class OutputReply(msgspec.Struct, frozen=True):
    next: int  #: the first byte that the server needs


class QueueUsage(msgspec.Struct, frozen=True):
    """What a queue uses now, together with the queues below it."""

    used: dict[str, Any]
    fair_share: dict[str, Any]
    borrowed: dict[str, Any]  #: the part of `used` above the fair share
    running: int  #: jobs that are starting, running or stopping
    pending: int


class QueueView(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    weight: int
    quota: dict[str, Any]
    limit: dict[str, Any]
    parent: str | None = None
    stopped: bool = False
    priority: int = 0  #: among siblings with equal need
    preempt_within_queue: PreemptWithin = PreemptWithin.LOWER_PRIORITY
    reclaim_from_siblings: ReclaimFrom = ReclaimFrom.ANY
    reclaimable: bool = True
    non_preemptible_within_quota: bool = False
    consolidation: bool = False
    max_priority: int | None = None  #: the highest priority that its jobs may have
    namespaces: tuple[str, ...] = ()  #: those whose jobs may use it, or patterns; empty: all
    usage: QueueUsage | None = None  #: if it was asked for


class QueueChange(msgspec.Struct, frozen=True):
    before: QueueView | None  #: null for a new queue
    after: QueueView


class QueuesReply(msgspec.Struct, frozen=True):
    """The changes of a file of queues, made or, with `dry_run`, only computed."""

    changes: tuple[QueueChange, ...]
    unchanged: tuple[str, ...]
    warnings: tuple[dict[str, Any], ...]
