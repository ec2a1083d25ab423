"""Jobs, tasks and their stories as they are shown. Times are RFC 3339 in UTC.

A task carries the names of Workron's job (`status`, `gang_id`, `reservation_epoch`, …), and so
does a job of one task, so that scripts written for them go on working.
"""

from typing import Any

import msgspec

from phalanx.core.model import Exit, Phase
from phalanx.core.states import State
from phalanx.wire.cost import LostView
from phalanx.wire.crons import CronView
from phalanx.wire.errors import ErrorInfo


class TaskView(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    gang_id: str  #: the job
    gang_index: int  #: its place in the job
    gang_size: int
    role: str
    status: State
    command: str  #: for a shell
    resources: dict[str, Any]
    priority: int
    queue_name: str
    max_retries: int
    attempts: int
    created_at: str
    reservation_epoch: int  #: with `preemption_epoch` one number: every report carries it
    preemption_epoch: int
    argv: tuple[str, ...] | None = None  #: where the command was given as a list
    depends_on: tuple[str, ...] = ()
    worker_id: str | None = None
    devices: tuple[int, ...] = ()
    reserved_at: str | None = None
    started_at: str | None = None
    done_at: str | None = None
    exit: Exit | None = None
    checkpoint_bytes: int | None = None


class ClaimView(TaskView, frozen=True, omit_defaults=True, kw_only=True):
    """A task with all that its process is given."""

    grace_s: float
    workdir: str | None = None
    env: dict[str, str] = {}
    image: str | None = None
    args: tuple[str, ...] = ()  #: for the image's own program


class Counts(msgspec.Struct, frozen=True):
    succeeded: int
    failed: int
    running: int
    pending: int
    total: int


class JobView(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    name: str
    namespace: str
    queue: str
    phase: Phase
    priority: int
    size: int
    created_at: str
    epoch: int
    failures: int
    owner: str = ""
    on_hold: bool = False
    finished_at: str | None = None
    reason: dict[str, Any] | None = None  #: why it waits
    cause: str | None = None  #: why it ended, or is being stopped


class Relative(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that another runs after, or before."""

    id: str
    name: str = ""
    phase: Phase | None = None  #: none if it is kept no longer


class JobDetail(JobView, frozen=True, omit_defaults=True, kw_only=True):
    counts: Counts
    tasks: tuple[TaskView, ...]
    spec: dict[str, Any]  #: in the native form
    lost: LostView  #: what stops have cost it
    after: tuple[Relative, ...] = ()  #: what it runs after
    dependants: tuple[Relative, ...] = ()  #: what runs after it and is unfinished
    cron: str | None = None  #: the cron that made it
    # The seeds' names, for a job of one task.
    gang_id: str | None = None
    gang_index: int | None = None
    gang_size: int | None = None
    status: State | None = None
    command: str | None = None
    resources: dict[str, Any] | None = None
    queue_name: str | None = None
    max_retries: int | None = None
    attempts: int | None = None
    depends_on: tuple[str, ...] | None = None
    worker_id: str | None = None
    reservation_epoch: int | None = None
    preemption_epoch: int | None = None
    reserved_at: str | None = None
    started_at: str | None = None
    done_at: str | None = None


class SubmitReply(JobView, frozen=True, omit_defaults=True, kw_only=True):
    """The answer to a submission. With the short form, Workron's names are in it too."""

    warnings: tuple[dict[str, Any], ...]
    gang_id: str | None = None
    tasks: tuple[str, ...] | None = None
    status: State | None = None
    command: str | None = None
    resources: dict[str, Any] | None = None
    queue_name: str | None = None
    max_retries: int | None = None
    depends_on: tuple[str, ...] | None = None


class BatchItem(msgspec.Struct, frozen=True, omit_defaults=True):
    job: SubmitReply | None = None
    cron: CronView | None = None  #: where the job has a schedule
    error: ErrorInfo | None = None


class BatchReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """In the order of the submission, each accepted or refused."""

    accepted: int
    refused: int
    results: tuple[BatchItem, ...]
    queues: tuple[str, ...] = ()  #: that the submission has set
    warnings: tuple[dict[str, Any], ...] = ()  #: about the file as a whole


class JobList(msgspec.Struct, frozen=True):
    jobs: tuple[JobView, ...]
    cursor: str | None  #: hand it back for the next page; null on the last one


class Preempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a runner is told when it says that it lives: nothing, or to stop."""

    action: str | None = None
    preemption_epoch: int | None = None
