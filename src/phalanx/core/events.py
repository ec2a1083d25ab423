"""What can happen to a cluster: facts in the past tense. The core decides what follows from them.

An event that a worker or a user reports is refused if it does not fit the state. An event that a
timer fires (its docstring begins with `Timer`) checks the rows again, and changes nothing if it
comes too late.
"""

from collections.abc import Mapping
from datetime import tzinfo
from typing import Annotated, TypeAlias

import msgspec

from phalanx.core.model import (
    Assignment,
    Blob,
    ElementBlock,
    GangMembers,
    Job,
    Limit,
    Phase,
    Protocol,
    Queue,
)
from phalanx.core.spec.job import JobSpec, Resources
from phalanx.core.spec.watch import AbnormalKind
from phalanx.core.time_units import Micros

# Jobs


class Submitted(msgspec.Struct, frozen=True):
    job: str
    spec: JobSpec
    owner: str = ""
    #: How those jobs in `spec.after` ended that have finished.
    ended: Mapping[str, Phase] = {}
    members: GangMembers | None = None  #: set if the gang is submitted in parts
    policies: tuple[str, ...] = ()  #: the policies that permit it


class MembersJoined(msgspec.Struct, frozen=True):
    """Another part was submitted of a gang that has too few members to start."""

    job: str
    spec: JobSpec  #: the part that joins
    part: GangMembers


class CancelRequested(msgspec.Struct, frozen=True):
    job: str
    by: str = ""


class ElementsCancelled(msgspec.Struct, frozen=True):
    """A user cancelled elements of an array."""

    array: str
    indices: tuple[int, ...]
    by: str = ""


class ElementsRetried(msgspec.Struct, frozen=True):
    """A user asked to run elements of an array again that have ended."""

    array: str
    indices: tuple[int, ...] | None = None  #: None: those that have not succeeded
    by: str = ""
    #: The rows of an array that has ended, from the store.
    row: Job | None = None
    blocks: tuple[ElementBlock, ...] = ()


class Evicted(msgspec.Struct, frozen=True):
    """An operator evicted a whole gang. Jobs evict others with `Nominated`."""

    job: str
    by: str
    why: str


class Shrunk(msgspec.Struct, frozen=True):
    """An elastic gang gives up tasks above its minimum."""

    job: str
    tasks: tuple[int, ...]
    by: str  #: the preemptor's full name


class HoldChanged(msgspec.Struct, frozen=True):
    """An operator held or released a job."""

    job: str
    on_hold: bool
    by: str = ""


class PriorityChanged(msgspec.Struct, frozen=True):
    job: str
    priority: int
    by: str = ""


class BackoffEnded(msgspec.Struct, frozen=True):
    """Timer: the backoff of a job has ended."""

    job: str


class ScheduleTimedOut(msgspec.Struct, frozen=True):
    """Timer: a job that is still pending has reached one of its timeouts."""

    job: str
    at: Micros  #: when the timeout was due


class RegroupDue(msgspec.Struct, frozen=True):
    """Timer: a gang that is below its minimum since then is to be stopped and placed as a unit."""

    job: str
    since: Micros


# Starting


class Placement(msgspec.Struct, frozen=True):
    """A start set: tasks of one job and their workers."""

    job: str
    version: int  #: the job's version when the plan was made
    assignments: tuple[Assignment, ...]


class Placed(msgspec.Struct, frozen=True):
    """Start sets that are reserved together: one job, or all jobs of a group."""

    placements: tuple[Placement, ...]


class Victim(msgspec.Struct, frozen=True):
    """A gang to evict: the named tasks above its minimum, or the whole gang."""

    job: str
    version: int  #: the job's version when the plan was made
    tasks: tuple[int, ...] = ()
    lost: float = 0.0  #: GPU-seconds of work that the plan expects to be lost


class Nominated(msgspec.Struct, frozen=True):
    """Victims are evicted, and their capacity is kept for the preemptor until it starts."""

    placements: tuple[Placement, ...]
    victims: tuple[Victim, ...]
    #: The new places of victims that are moved; kept until they start again.
    moves: tuple[Placement, ...] = ()


class NominationEnded(msgspec.Struct, frozen=True):
    """Timer: capacity that is kept since then and still unused is released."""

    job: str
    at: Micros


class GangGathered(msgspec.Struct, frozen=True):
    """A non-strict gang gathers these places, besides those it has, until it has its minimum."""

    placement: Placement


class GatheringEnded(msgspec.Struct, frozen=True):
    """A non-strict gang gives up its gathered places."""

    job: str
    version: int
    why: str


class InputsUnavailable(msgspec.Struct, frozen=True):
    """The secrets or images of a reserved gang could not be resolved."""

    job: str
    epoch: int
    why: str
    final: bool = False  #: another try would fail too


class ImagesPinned(msgspec.Struct, frozen=True):
    """The tags of images of a reserved gang were resolved, once for all its attempts."""

    job: str
    images: dict[str, str]  #: by image: the reference with its digest


class ReservationExpired(msgspec.Struct, frozen=True):
    """Timer: a start set that is not released by now is given back."""

    job: str
    epoch: int


class Accepted(msgspec.Struct, frozen=True):
    """An agent has prepared a task."""

    task: str
    epoch: int


class Claimed(msgspec.Struct, frozen=True):
    """A plain worker claims its reserved task, or any worker a task that requests no resources."""

    task: str
    worker: str | None = None


class Started(msgspec.Struct, frozen=True):
    task: str
    epoch: int


class StartTimedOut(msgspec.Struct, frozen=True):
    """Timer: released tasks that have not been reported as started by now have failed."""

    job: str
    epoch: int


# Ending


class Exited(msgspec.Struct, frozen=True):
    task: str
    epoch: int
    code: int | None = None
    signal: int | None = None
    signalled: bool = False  #: the worker had sent it a signal
    memory_used: int | None = None  #: its peak in bytes, if the kernel killed it for memory
    note: str = ""  #: what explains the exit, from the worker


class SpawnFailed(msgspec.Struct, frozen=True):
    task: str
    epoch: int
    message: str
    final: bool = False  #: another try on this worker would fail too


class Stopped(msgspec.Struct, frozen=True):
    """A worker reports that it has stopped a task as requested."""

    task: str
    epoch: int


class Vanished(msgspec.Struct, frozen=True):
    """A worker does not know what became of the process."""

    task: str
    epoch: int
    gone: bool = True  #: the process cannot be alive; else its worker stays charged


class StopTimedOut(msgspec.Struct, frozen=True):
    """Timer: tasks whose stop was requested long enough ago end without their worker's report."""

    job: str


class TimeLimitReached(msgspec.Struct, frozen=True):
    """Timer: the attempt of this epoch has reached its time limit."""

    job: str
    epoch: int


class LongRunDue(msgspec.Struct, frozen=True):
    """Timer: the attempt of this epoch has run long, and should have saved its work by now."""

    job: str
    epoch: int


class StallDue(msgspec.Struct, frozen=True):
    """Timer: the attempt of this epoch should have made progress by now."""

    job: str
    epoch: int


# Saving


class CheckpointSaved(msgspec.Struct, frozen=True):
    """A task that is stopping has saved its state; the bytes are in the store."""

    task: str
    epoch: int
    blob: Blob


class PreparationReported(msgspec.Struct, frozen=True):
    """A worker says what it does before it can accept a task, such as pulling an image."""

    task: str
    epoch: int
    message: str


class ProblemReported(msgspec.Struct, frozen=True):
    """A worker found something wrong with what a task left; the task goes on or ended anyway."""

    task: str
    epoch: int
    message: str


_LARGEST_STEP = 2**53
#: A step that a task reports, which every language and database can hold.
Step: TypeAlias = Annotated[int, msgspec.Meta(ge=-_LARGEST_STEP, le=_LARGEST_STEP)]


class Progressed(msgspec.Struct, frozen=True):
    task: str
    epoch: int
    step: int | None = None
    safe: bool = False  #: the gang's work up to now survives a stop
    saved_step: int | None = None  #: the step that was saved


class AbnormalValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value that breaks a rule of `watch`."""

    name: str
    kind: AbnormalKind
    step: Step
    value: float | None = None  #: None if it is not a finite number
    median: float | None = None  #: for a spike, the median magnitude before it


class ValuesAbnormal(msgspec.Struct, frozen=True):
    """A task reported values that break rules of its job."""

    task: str
    epoch: int
    values: tuple[AbnormalValue, ...]


class AlarmsDue(msgspec.Struct, frozen=True):
    """Timer: the other tasks have reported their values of the same time by now."""

    job: str


# Workers


class WorkerRegistered(msgspec.Struct, frozen=True):
    worker: str
    incarnation: str
    protocol: Protocol
    address: str
    resources: Resources = {}
    labels: Mapping[str, str] = {}
    slots: int | None = None
    limits: tuple[Limit, ...] = ()


class Inventoried(msgspec.Struct, frozen=True):
    """The complete list of the attempts on a worker, as its agent reports it."""

    worker: str
    incarnation: str
    tasks: tuple[tuple[str, int], ...]  #: (task, epoch)


class WorkerReturned(msgspec.Struct, frozen=True):
    """A lost plain worker has sent a message again."""

    worker: str


class PollersCounted(msgspec.Struct, frozen=True):
    """A plain worker that registered no slots has asked for this many tasks at the same time."""

    worker: str
    pollers: int


class WorkerLost(msgspec.Struct, frozen=True):
    worker: str


class WorkerRemoved(msgspec.Struct, frozen=True):
    """An operator removed a worker and confirms that no task runs there any more."""

    worker: str
    by: str = ""


class CordonChanged(msgspec.Struct, frozen=True):
    worker: str
    reason: str | None  #: None uncordons the worker


class WorkerLeaving(msgspec.Struct, frozen=True):
    """The agent is shutting down: no more tasks are placed there, and its jobs are evicted."""

    worker: str


class DrainRequested(msgspec.Struct, frozen=True):
    """A worker is drained: no more tasks are placed there, its jobs are evicted at the deadline."""

    worker: str
    why: str
    by: str
    deadline: Micros | None = None  #: None: at once


class DrainDue(msgspec.Struct, frozen=True):
    """Timer: the deadline of a draining worker; jobs that are still there are evicted."""

    worker: str
    at: Micros


class Gone(msgspec.Struct, frozen=True):
    """A worker reports that no process of an attempt is left."""

    worker: str
    task: str
    epoch: int


# Queues


class QueueSet(msgspec.Struct, frozen=True):
    queue: Queue


class QueuesSet(msgspec.Struct, frozen=True):
    """Several queues were set together: all are set or none is. Parents may come with children."""

    queues: tuple[Queue, ...]
    by: str = ""


class QueueRemoved(msgspec.Struct, frozen=True):
    queue: str


# Crons
#
# The engine puts on each event what the core must not look up: the time zone of the schedule (None
# if the host does not know it), why the cron's owner may not run the job now (None: allowed), and
# the policies that decided so.


class CronSet(msgspec.Struct, frozen=True):
    """A job with a schedule was submitted. It replaces the cron of the same name."""

    spec: JobSpec
    owner: str = ""
    zone: tzinfo | None = None


class CronRemoved(msgspec.Struct, frozen=True):
    cron: str
    by: str = ""


class CronPaused(msgspec.Struct, frozen=True):
    cron: str
    paused: bool
    by: str = ""
    zone: tzinfo | None = None


class CronRequested(msgspec.Struct, frozen=True):
    """A user asked for a run now."""

    cron: str
    by: str = ""
    zone: tzinfo | None = None
    refusal: str | None = None
    policies: tuple[str, ...] = ()


class CronDue(msgspec.Struct, frozen=True):
    """Timer: a run is due, unless it was submitted already."""

    cron: str
    at: Micros
    zone: tzinfo | None = None
    refusal: str | None = None
    policies: tuple[str, ...] = ()


class CronReplacementDue(msgspec.Struct, frozen=True):
    """Timer: the run that was due at that time can start, because the run before it has ended."""

    cron: str
    at: Micros
    zone: tzinfo | None = None
    refusal: str | None = None
    policies: tuple[str, ...] = ()


Event = (
    Submitted
    | MembersJoined
    | CancelRequested
    | ElementsCancelled
    | ElementsRetried
    | Evicted
    | Shrunk
    | HoldChanged
    | PriorityChanged
    | BackoffEnded
    | ScheduleTimedOut
    | RegroupDue
    | Placed
    | Nominated
    | NominationEnded
    | GangGathered
    | GatheringEnded
    | InputsUnavailable
    | ImagesPinned
    | ReservationExpired
    | Accepted
    | Claimed
    | Started
    | StartTimedOut
    | Exited
    | SpawnFailed
    | Stopped
    | Vanished
    | StopTimedOut
    | TimeLimitReached
    | LongRunDue
    | StallDue
    | CheckpointSaved
    | PreparationReported
    | ProblemReported
    | Progressed
    | ValuesAbnormal
    | AlarmsDue
    | WorkerRegistered
    | Inventoried
    | WorkerReturned
    | PollersCounted
    | WorkerLost
    | WorkerRemoved
    | CordonChanged
    | DrainRequested
    | DrainDue
    | WorkerLeaving
    | Gone
    | QueueSet
    | QueuesSet
    | QueueRemoved
    | CronSet
    | CronRemoved
    | CronPaused
    | CronRequested
    | CronDue
    | CronReplacementDue
)
