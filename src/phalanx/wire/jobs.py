"""Native views of jobs, tasks and events. Times are RFC 3339 in UTC."""

from typing import Any

import msgspec

from phalanx.core.model import Exit, Phase, TaskProblem
from phalanx.core.states import State
from phalanx.wire.cost import LostView
from phalanx.wire.crons import CronView
from phalanx.wire.errors import ErrorInfo
from phalanx.wire.progress import ProgressView


class TaskView(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    job: str
    task: int  #: the task's number in its job, from 0
    role: str
    index: int  #: the task's number in its role, from 0
    state: State
    attempt: int  #: the attempt that the task was last reserved for; 0 before the first
    worker: str | None = None
    devices: tuple[int, ...] = ()
    reserved_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    exit: Exit | None = None
    checkpoint_bytes: int | None = None
    problem: TaskProblem | None = None  #: what was wrong with the files of the task, at last


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
    attempt: int  #: the number of the latest attempt; 0 before the first
    failures: int
    owner: str = ""
    on_hold: bool = False
    finished_at: str | None = None
    reason: dict[str, Any] | None = None  #: why the job, or some of its tasks, is pending
    cause: str | None = None  #: why the job ended or is stopping
    progress: ProgressView | None = None  #: null if its tasks have not reported any


class RelatedJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job before or after another one."""

    id: str
    name: str = ""
    phase: Phase | None = None  #: null for a job that is no longer stored


class JobDetail(JobView, frozen=True, omit_defaults=True, kw_only=True):
    counts: Counts
    tasks: tuple[TaskView, ...]
    spec: dict[str, Any]  #: in the native form
    lost: LostView  #: the work lost to stops
    after: tuple[RelatedJob, ...] = ()  #: the jobs that this one depends on
    dependants: tuple[RelatedJob, ...] = ()  #: the unfinished jobs that depend on this one
    cron: str | None = None  #: the cron that submitted the job


class SubmitReply(JobView, frozen=True, omit_defaults=True, kw_only=True):
    """The answer to a submission."""

    warnings: tuple[dict[str, Any], ...]


class BatchItem(msgspec.Struct, frozen=True, omit_defaults=True):
    job: SubmitReply | None = None
    cron: CronView | None = None  #: for a job with a schedule
    error: ErrorInfo | None = None


class BatchReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """One result per job, in the order of the submission."""

    accepted: int
    refused: int
    results: tuple[BatchItem, ...]
    queues: tuple[str, ...] = ()  #: the queues that the submission has set
    warnings: tuple[dict[str, Any], ...] = ()  #: about the file as a whole


class JobList(msgspec.Struct, frozen=True):
    jobs: tuple[JobView, ...]
    cursor: str | None  #: request the next page with it; null on the last page
