"""Records of what happened in the cluster: numbered, one typed struct per kind.

Handlers write them through `Changes.record`, the store keeps them, and every reader (events of a
job, the event stream, log lines, metrics) matches on their types. The docstring of a kind says when
it is written and is the text of the reference page.
"""

from datetime import UTC, datetime
from typing import Annotated, TypeAlias

import msgspec

from phalanx.core.causes import CauseKind, TaskEnding
from phalanx.core.ledger import LostTo
from phalanx.core.model import Phase, Task
from phalanx.core.spec.watch import AbnormalKind
from phalanx.core.time_units import SECOND, Micros

#: Marks a point in time. The public JSON has it as an ISO 8601 string, and so has OpenAPI, for
#: which Litestar takes what is under `extra`.
MOMENT = msgspec.Meta(
    extra_json_schema={
        "extra": {"type": "string", "format": "date-time", "default": "1970-01-01T00:00:00Z"}
    }
)
Moment: TypeAlias = Annotated[Micros, MOMENT]


class RecordBase(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="kind",
    tag=True,
    gc=False,
):
    """Fields of every record, set by `Changes.record`."""

    seq: int = 0  #: number of the record, without gaps
    at: Moment = 0  #: when it happened

    @property
    def time(self) -> datetime:
        """When it happened."""
        return datetime.fromtimestamp(self.at / SECOND, UTC)


class JobRecord(RecordBase, frozen=True):
    """About a job."""

    job: str  #: id of the job


class AttemptRecord(JobRecord, frozen=True):
    """About one attempt of a job."""

    attempt: int  #: number of the attempt


class TaskRecord(AttemptRecord, frozen=True):
    """About one task of an attempt."""

    task: int  #: index of the task, from 0
    worker: str | None  #: where the task is; null for a task claimed without a worker


class WorkerRecord(RecordBase, frozen=True):
    """About a worker."""

    worker: str  #: id of the worker


class QueueRecord(RecordBase, frozen=True):
    """About a queue."""

    queue: str  #: name of the queue


class CronRecord(RecordBase, frozen=True):
    """About a cron."""

    cron: str  #: namespace/name of the cron


# Jobs


class JobSubmitted(JobRecord, frozen=True):
    """The server accepted a job."""

    size: int  #: number of tasks
    owner: str = ""  #: who submitted it
    policies: tuple[str, ...] = ()  #: the policies that permitted it


class ArraySubmitted(JobRecord, frozen=True):
    """The server accepted an array. Its elements have events of their own."""

    elements: int  #: number of elements
    size: int  #: number of tasks of each
    owner: str = ""  #: who submitted it
    policies: tuple[str, ...] = ()  #: the policies that permitted it


class ElementFailed(JobRecord, frozen=True):
    """An element of an array ended without success."""

    index: int  #: of the element
    phase: Phase  #: `failed`, `cancelled` or `timed-out`
    why: str  #: the cause


class ElementsCancelRequested(JobRecord, frozen=True):
    """A user cancelled some elements of an array."""

    indices: str  #: such as `3-5`
    by: str = ""  #: who asked for it


class ElementsRetryRequested(JobRecord, frozen=True):
    """A user asked to run some elements of an array again."""

    indices: str  #: such as `3-5`
    by: str = ""  #: who asked for it


class MembersAdded(JobRecord, frozen=True):
    """More members of a gang were submitted. The gang can start once it has its minimum."""

    members: tuple[str, ...]  #: names of the new members
    size: int  #: number of tasks from now on


class DependenciesMet(JobRecord, frozen=True):
    """All jobs that this job depends on are done."""


class JobCancelRequested(JobRecord, frozen=True):
    """A user cancelled the job. The job ends when all of its tasks have stopped."""

    by: str = ""  #: who cancelled it


class JobHeld(JobRecord, frozen=True):
    """An operator put the job on hold. The job does not start until it is released."""

    by: str = ""  #: who put it on hold


class JobReleased(JobRecord, frozen=True):
    """An operator released the job from its hold."""

    by: str = ""  #: who released it


class JobPriorityChanged(JobRecord, frozen=True):
    """The priority of the job was changed."""

    before: int  #: the old priority
    after: int  #: the new priority
    by: str = ""  #: who changed it


class PlacesGathered(JobRecord, frozen=True):
    """A non-strict gang gathered places, and keeps them until it has enough to start."""

    gathered: int  #: places that it has now
    needed: int  #: places that it needs to start


class GatheredPlacesReleased(JobRecord, frozen=True):
    """A non-strict gang released the places that it had gathered."""

    places: int  #: number of places released
    why: str  #: the reason


class CapacityKept(JobRecord, frozen=True):
    """Victims are being stopped for the job, and their capacity is kept for it."""

    size: int  #: number of tasks that the capacity is kept for
    victims: tuple[str, ...]  #: ids of the tasks that are being stopped
    until: Moment  #: the capacity is released if the job has not started by then


class KeptCapacityReleased(JobRecord, frozen=True):
    """The job did not start in time, and the capacity kept for it was released."""


class JobEnded(JobRecord, frozen=True):
    """The job ended. Tasks that were still running can stop after this event."""

    phase: Phase  #: `done`, `failed`, `cancelled` or `timed-out`
    why: str  #: the cause
    other_job: str | None = None  #: the other job (namespace/name) that `why` names


# Attempts of a gang


class GangReserved(AttemptRecord, frozen=True):
    """The planner reserved a place for every task of the attempt, all at once."""

    size: int  #: number of tasks reserved
    workers: tuple[str, ...]  #: ids of the workers


class GangStarting(AttemptRecord, frozen=True):
    """Every worker acknowledged its reservation, and the start barrier was released."""

    size: int  #: number of tasks that start
    workers: int  #: number of workers that they start on


class ReservationLost(AttemptRecord, frozen=True):
    """The reservation was cancelled before any task started. The job was requeued."""

    why: str  #: the reason
    suspects: tuple[str, ...]  #: workers that the next attempt avoids


class JobEvicted(AttemptRecord, frozen=True):
    """A preemptor, an operator or a draining worker evicted the attempt."""

    why: str  #: the reason
    by: str = ""  #: the operator
    other_job: str | None = None  #: the preemptor (namespace/name)
    moved: bool = False  #: it starts again at places that are kept for it


class JobShrunk(AttemptRecord, frozen=True):
    """An elastic job was shrunk: tasks above its minimum are stopped for a preemptor."""

    tasks: tuple[int, ...]  #: indices of the tasks
    other_job: str  #: the preemptor (namespace/name)


class GangStopping(AttemptRecord, frozen=True):
    """All tasks of the attempt are being stopped."""

    cause: CauseKind  #: kind of the cause
    why: str  #: the cause in words
    stopping: int  #: number of tasks that are being stopped
    task: int | None = None  #: index of the task that failed first
    other_job: str | None = None  #: the other job (namespace/name) that `why` names
    failed: int = 0  #: number of tasks that had failed, and are not stopped


class GangStopped(AttemptRecord, frozen=True):
    """The last task of the attempt has stopped."""

    outcome: Phase  #: `pending` if the job was requeued, else the phase in which it ended
    seconds: float  #: time from the first stop request to the last stop


class DoneTasksRequeued(AttemptRecord, frozen=True):
    """Tasks that were done run again, because the gang restarts as a whole before the job was done
    (`on_partial_completion: restart`)."""

    tasks: tuple[int, ...]  #: indices of the tasks


class RetryDelayed(AttemptRecord, frozen=True):
    """The job is requeued, but does not start again before a pause has passed."""

    seconds: float  #: the length of the pause
    failures: int  #: number of failures in a row


class WorkLost(AttemptRecord, frozen=True):
    """Work was lost in a stop: the work since the last point from which the job can resume. The
    event is written when the tasks have stopped, after their checkpoints."""

    to: LostTo  #: kind of the stop
    why: str  #: the cause of the stop
    gpu_s: float  #: GPU-seconds lost
    cost: float  #: price of the lost work, at the configured prices
    other_job: str | None = None  #: the preemptor (namespace/name)


class CheckpointMissing(AttemptRecord, frozen=True):
    """The attempt runs for `long_running` and has saved nothing, and the job declares no
    checkpoint: a stop loses all of its work."""

    seconds: float  #: how long the attempt has run
    gpu_s: float  #: GPU-seconds that a stop would lose now
    cost: float  #: their price, at the configured prices


class GangCheckpointSaved(AttemptRecord, frozen=True):
    """Every started task saved its checkpoint. The next attempt resumes from this set."""

    size: int  #: number of tasks in the set


# Tasks


class TaskStarted(TaskRecord, frozen=True):
    """The worker reported that the process of the task is running."""


class TaskClaimed(TaskRecord, frozen=True):
    """A runner of the plain protocol claimed a task that requests no resources."""


class TaskDone(TaskRecord, frozen=True):
    """The process of the task exited with code 0."""


class TaskStopped(TaskRecord, frozen=True):
    """A task that was being stopped has stopped."""

    how: TaskEnding = TaskEnding.EXITED  #: how its process ended


class TaskFailed(TaskRecord, frozen=True):
    """The process of the task ended before its work was done, or was given up."""

    how: TaskEnding  #: how its process ended
    why: str  #: what happened, as the rest of a sentence that begins with the task
    exit_code: int | None = None  #: exit code of its process
    signal: int | None = None  #: number of the signal that killed it


class TaskStopTimedOut(TaskRecord, frozen=True):
    """The worker did not report in time that the task stopped. The job does not wait for it."""


class TaskCheckpointSaved(TaskRecord, frozen=True):
    """A task that was being stopped saved a checkpoint."""

    size_bytes: int  #: size of the checkpoint


class JobImagesPinned(JobRecord, frozen=True):
    """The tags of the job's images were resolved. All attempts of the job use these digests."""

    images: tuple[str, ...]  #: their references with digests


class TaskPreparing(TaskRecord, frozen=True):
    """The worker prepares the start of the task, and says how far it is: it pulls an image. No task
    of the gang starts before every worker has finished."""

    message: str  #: what the worker does, such as the image that it pulls


class TaskProblemReported(TaskRecord, frozen=True):
    """The worker found something wrong with the files of the task, such as a checkpoint that is
    too large. It did not end the task."""

    message: str  #: what is wrong, and what to do


class TaskCheckpointDiscarded(TaskRecord, frozen=True):
    """A task saved a checkpoint that is not used, because a value was abnormal before it. The next
    attempt resumes from an earlier checkpoint."""

    size_bytes: int  #: size of the checkpoint


class TaskValueAbnormal(TaskRecord, frozen=True):
    """A running task reported a value that breaks a rule of the job's `watch`."""

    rank: int  #: rank of the task
    name: str  #: name of the value
    how: AbnormalKind  #: the rule
    step: int  #: the step that the value was reported with
    value: float | None = None  #: the value; null if it is not a finite number
    median: float | None = None  #: for a spike, the median magnitude of the values before it

    @property
    def text(self) -> str:
        """`rank 3 on w-2 reported loss 57.1 at step 120, 8.2 times the median of 6.96`."""
        where = "" if self.worker is None else f" on {self.worker}"
        number = "nan" if self.value is None else f"{self.value:.4g}"
        text = f"rank {self.rank}{where} reported {self.name} {number} at step {self.step}"
        if self.value is None or not self.median:
            return text
        times = abs(self.value) / self.median
        return f"{text}, {times:.1f} times the median of {self.median:.4g}"


class WorkerSuspected(TaskRecord, frozen=True):
    """The abnormal values of a gang began with this task, so its worker is suspected: the next
    attempt avoids it, and suspicions of several jobs cordon it."""

    rank: int  #: rank of the task
    step: int  #: the step of its first abnormal value


class WorkSaved(TaskRecord, frozen=True):
    """A running task reported that its work so far is saved."""

    step: int | None = None  #: the step that it reported


class AttemptGone(TaskRecord, frozen=True):
    """The worker confirmed that a task which had been given up is no longer running."""


# Workers


class WorkerJoined(WorkerRecord, frozen=True):
    """The worker registered with the server."""

    incarnation: str  #: changes when the agent restarts


class WorkerDeclaredLost(WorkerRecord, frozen=True):
    """The server has not heard from the worker for too long."""


class WorkerRecovered(WorkerRecord, frozen=True):
    """A worker that was declared lost reported again."""


class WorkerDeleted(WorkerRecord, frozen=True):
    """The worker was deleted."""

    by: str = ""  #: who deleted it


class WorkerCordoned(WorkerRecord, frozen=True):
    """The worker was cordoned: its tasks continue, and no new tasks are placed on it."""

    why: str  #: the reason


class WorkerUncordoned(WorkerRecord, frozen=True):
    """The worker was uncordoned: new tasks can be placed on it."""


class WorkerDraining(WorkerRecord, frozen=True):
    """The worker is draining: it is cordoned, and its tasks are evicted at the deadline."""

    why: str  #: the reason
    until: Moment  #: the deadline
    by: str = ""  #: who requested it


class WorkerShuttingDown(WorkerRecord, frozen=True):
    """The agent of the worker is shutting down, and its tasks are evicted."""


# Queues


class QueueCreated(QueueRecord, frozen=True):
    """The queue was created."""

    by: str = ""  #: who created it


class QueueChanged(QueueRecord, frozen=True):
    """The settings of the queue were changed."""

    by: str = ""  #: who changed them


class QueueDeleted(QueueRecord, frozen=True):
    """The queue was deleted."""


# Crons


class CronCreated(CronRecord, frozen=True):
    """The cron was created."""

    owner: str = ""  #: the user that its jobs belong to


class CronChanged(CronRecord, frozen=True):
    """The cron was replaced by one of the same name."""

    owner: str = ""  #: the user that its jobs belong to


class CronDeleted(CronRecord, frozen=True):
    """The cron was deleted. The jobs that it submitted continue."""

    by: str = ""  #: who deleted it


class CronSchedulePaused(CronRecord, frozen=True):
    """The cron was paused. Runs that come due during the pause are skipped."""

    by: str = ""  #: who paused it


class CronScheduleResumed(CronRecord, frozen=True):
    """The cron was resumed."""

    by: str = ""  #: who resumed it


class CronRunRequested(CronRecord, frozen=True):
    """A user requested a run outside the schedule."""

    by: str = ""  #: who requested it


class CronSkipped(CronRecord, frozen=True):
    """A run was due and was skipped, because the previous run is unfinished."""

    due_at: Moment  #: when the run was due
    unfinished: str  #: id of the unfinished job


class CronReplacing(CronRecord, frozen=True):
    """A run is due and starts once the previous run, which is being cancelled, has ended."""

    due_at: Moment  #: when the run was due


class CronDenied(CronRecord, frozen=True):
    """A run was due, but the server refused its job."""

    due_at: Moment  #: when the run was due
    owner: str  #: the user that the job belongs to
    why: str  #: the reason
    policies: tuple[str, ...] = ()  #: the policies that forbid it


class CronFired(JobRecord, frozen=True):
    """A cron submitted the job."""

    cron: str  #: namespace/name of the cron
    due_at: Moment  #: when the run was due


JobRecords: TypeAlias = (
    JobSubmitted
    | ArraySubmitted
    | ElementFailed
    | ElementsCancelRequested
    | ElementsRetryRequested
    | MembersAdded
    | DependenciesMet
    | JobCancelRequested
    | JobHeld
    | JobReleased
    | JobPriorityChanged
    | JobImagesPinned
    | PlacesGathered
    | GatheredPlacesReleased
    | CapacityKept
    | KeptCapacityReleased
    | JobEnded
)
AttemptRecords: TypeAlias = (
    GangReserved
    | GangStarting
    | ReservationLost
    | JobEvicted
    | JobShrunk
    | GangStopping
    | GangStopped
    | DoneTasksRequeued
    | RetryDelayed
    | WorkLost
    | CheckpointMissing
    | GangCheckpointSaved
)
TaskRecords: TypeAlias = (
    TaskStarted
    | TaskClaimed
    | TaskDone
    | TaskStopped
    | TaskFailed
    | TaskStopTimedOut
    | TaskCheckpointSaved
    | TaskPreparing
    | TaskProblemReported
    | TaskCheckpointDiscarded
    | TaskValueAbnormal
    | WorkerSuspected
    | WorkSaved
    | AttemptGone
)
WorkerRecords: TypeAlias = (
    WorkerJoined
    | WorkerDeclaredLost
    | WorkerRecovered
    | WorkerDeleted
    | WorkerCordoned
    | WorkerUncordoned
    | WorkerDraining
    | WorkerShuttingDown
)
QueueRecords: TypeAlias = QueueCreated | QueueChanged | QueueDeleted
CronRecords: TypeAlias = (
    CronCreated
    | CronChanged
    | CronDeleted
    | CronSchedulePaused
    | CronScheduleResumed
    | CronRunRequested
    | CronSkipped
    | CronReplacing
    | CronDenied
    | CronFired
)
#: Everything that is recorded.
Record: TypeAlias = (
    JobRecords | AttemptRecords | TaskRecords | WorkerRecords | QueueRecords | CronRecords
)


def about(task: Task) -> tuple[str, int, int, str | None]:
    """The fields of a `TaskRecord`, in order."""
    return task.job, task.epoch, task.index, task.worker


def job_of(record: RecordBase) -> str | None:
    """Id of the job that the record is about."""
    return record.job if isinstance(record, JobRecord) else None


def kind_of(record: RecordBase | type[RecordBase]) -> str:
    """Name of the record's kind, as written in JSON."""
    return (record if isinstance(record, type) else type(record)).__name__
