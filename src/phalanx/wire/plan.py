"""What would happen to a job: where and when it would start, and what it would evict."""

from typing import Any

import msgspec

from phalanx.core.model import Phase


class PlannedTask(msgspec.Struct, frozen=True):
    task: int
    worker: str


class VictimView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A gang that would be evicted. It has no name if the caller may not see its namespace."""

    gpu_s: float  #: GPU-seconds of work that it would lose
    cost: float  #: the price of that work
    job: str | None = None
    name: str | None = None  #: namespace/name
    tasks: tuple[int, ...] = ()  #: the tasks that would be evicted; empty: the whole gang


class AlternativeView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change that would let the job start, tried with the planner."""

    type: str  #: `Fewer`, `Shorter`, `Higher` or `WithMoves`
    message: str
    tasks: int | None = None  #: with so many tasks the job would start now
    time_limit_s: float | None = None  #: with this time limit the job would start now
    priority: int | None = None  #: with this priority the job would evict the victims
    victims: tuple[VictimView, ...] = ()


class PlanView(msgspec.Struct, frozen=True, omit_defaults=True):
    """What would happen if this job were submitted now."""

    starts: bool  #: the job would start at once
    message: str
    warnings: tuple[dict[str, Any], ...]
    placements: tuple[PlannedTask, ...] = ()  #: after the victims have stopped
    victims: tuple[VictimView, ...] = ()  #: what would be evicted first
    starts_at: str | None = None  #: the reserved start time
    due_at: str | None = None  #: of a cron: when its next run is due
    reason: dict[str, Any] | None = None  #: why the job would be pending
    alternatives: tuple[AlternativeView, ...] = ()


class QueueDueView(msgspec.Struct, frozen=True):
    """The time by which a queue is compared with its siblings if the job is its next one."""

    queue: str
    at: str
    #: The part of its share that the queue uses, above 1 if it borrows; None if it deserves nothing
    #: of a resource that it uses or the job needs.
    used_share: float | None
    counted_share: float  #: the part by which the time is computed, from 0 to 1


class BlockedView(msgspec.Struct, frozen=True):
    """Why no start can be reserved for a job that has been pending for long."""

    message: str
    #: The names of the running jobs without a time limit that block it. Jobs in namespaces that the
    #: caller may not see are left out.
    jobs: tuple[str, ...]


class Why(msgspec.Struct, frozen=True):
    """Why a job is pending, stopping or ended, in words and as data."""

    job: str
    phase: Phase
    message: str
    reason: dict[str, Any] | None = None
    rule: str | None = None  #: the rule of fair share by which it waits, and until when
    blocked: BlockedView | None = None
    remedy: str | None = None  #: what would let the job start
    starts_at: str | None = None
    victims: tuple[VictimView, ...] = ()
    alternatives: tuple[AlternativeView, ...] = ()
    #: When it is due, by the share of its queue and of each queue above it; empty unless it waits
    #: for its turn.
    due: tuple[QueueDueView, ...] = ()
    overdue_at: str | None = None  #: when it goes before all queues (`max_wait`)
