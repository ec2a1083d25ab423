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


class ElementsView(msgspec.Struct, frozen=True, kw_only=True):
    """How many elements of an array are in which phase."""

    total: int
    pending: int
    starting: int
    running: int
    stopping: int
    done: int
    failed: int
    cancelled: int
    timed_out: int
    never_ran: int  #: ended without an attempt; not counted among the others
    parallel: int | None  #: how many run at the same time; null for any number


class JobView(msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
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
    elements: ElementsView | None = None  #: of an array
    array: str | None = None  #: the array of an element
    index: int | None = None  #: of an element in its array
    params: dict[str, str] | None = None  #: of an element of a grid


class RelatedJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job before or after another one."""

    id: str
    name: str = ""
    phase: Phase | None = None  #: null for a job that is no longer stored


class ElementView(msgspec.Struct, frozen=True, omit_defaults=True):
    """An element of an array. Show its id for everything else."""

    id: str
    index: int
    phase: Phase
    attempt: int  #: the number of the latest attempt; 0 if it never ran
    params: dict[str, str] = {}
    cause: str | None = None  #: why it ended or is stopping
    finished_at: str | None = None


class ElementList(msgspec.Struct, frozen=True):
    elements: tuple[ElementView, ...]
    cursor: str | None  #: request the next page with it; null on the last page


class JobDetail(JobView, frozen=True, omit_defaults=True, kw_only=True):
    counts: Counts
    tasks: tuple[TaskView, ...]
    spec: dict[str, Any]  #: in the native form
    lost: LostView  #: the work lost to stops
    after: tuple[RelatedJob, ...] = ()  #: the jobs that this one depends on
    dependants: tuple[RelatedJob, ...] = ()  #: the unfinished jobs that depend on this one
    cron: str | None = None  #: the cron that submitted the job
    first_failed: tuple[ElementView, ...] = ()  #: of an array: elements that did not succeed


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
