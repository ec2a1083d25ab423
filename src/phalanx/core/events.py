"""What can happen to a cluster. Facts in the past tense; the core decides what follows from them.

Those that a worker or user reports are refused when they do not fit. Those that a timer fires
(they say so) are harmless when late: they look at the rows again and may find nothing to do.
"""

from collections.abc import Mapping
from datetime import tzinfo

import msgspec

from phalanx.core.model import Assignment, Blob, Gathering, Phase, Protocol, Queue
from phalanx.core.spec.job import JobSpec, Micros, Resources

# Jobs


class Submitted(msgspec.Struct, frozen=True):
    job: str
    spec: JobSpec
    owner: str = ""
    key: str | None = None
    #: How the jobs in `spec.after` ended that are no longer live.
    ended: Mapping[str, Phase] = {}
    gathering: Gathering | None = None  #: members of it may be missing


class MembersJoined(msgspec.Struct, frozen=True):
    """More was submitted of a gang that has too few members to start."""

    job: str
    spec: JobSpec  #: of the part that joins
    part: Gathering
    key: str | None = None


class CancelRequested(msgspec.Struct, frozen=True):
    job: str
    by: str = ""


class Evicted(msgspec.Struct, frozen=True):
    """The whole gang has to give way, to a job or to an operator."""

    job: str
    by: str
    why: str


class Shrunk(msgspec.Struct, frozen=True):
    """An elastic gang gives tasks beyond its minimum."""

    job: str
    tasks: tuple[int, ...]
    by: str


class HoldChanged(msgspec.Struct, frozen=True):
    job: str
    on_hold: bool
    by: str = ""


class PriorityChanged(msgspec.Struct, frozen=True):
    job: str
    priority: int
    by: str = ""


class BackoffEnded(msgspec.Struct, frozen=True):
    """Timer: a job may be placed again."""

    job: str


class ScheduleTimedOut(msgspec.Struct, frozen=True):
    """Timer: a job that has waited since then may give up."""

    job: str
    since: Micros


class RegroupDue(msgspec.Struct, frozen=True):
    """Timer: a gang that has been short since then is to be placed as a unit."""

    job: str
    since: Micros


# Starting


class Placement(msgspec.Struct, frozen=True):
    """A start set: tasks of one job and where they go."""

    job: str
    version: int  #: the job's version when the plan was made
    assignments: tuple[Assignment, ...]


class Placed(msgspec.Struct, frozen=True):
    """One claimant's start sets, one per job of its group. All are reserved or none is."""

    placements: tuple[Placement, ...]


class Victim(msgspec.Struct, frozen=True):
    """A gang that gives way: the named tasks beyond its minimum, or all of it."""

    job: str
    version: int  #: the job's version when the plan was made
    tasks: tuple[int, ...] = ()


class Nominated(msgspec.Struct, frozen=True):
    """Victims make room for one claimant, which keeps it until it starts. All of it or nothing."""

    placements: tuple[Placement, ...]
    victims: tuple[Victim, ...]


class NominationEnded(msgspec.Struct, frozen=True):
    """Timer: room that was kept since then and is still not used is given up."""

    job: str
    at: Micros


class Held(msgspec.Struct, frozen=True):
    """A non-strict gang keeps these places, besides those it holds, until it has its minimum."""

    placement: Placement


class HoldsReleased(msgspec.Struct, frozen=True):
    """A gang gives up what it holds."""

    job: str
    version: int
    why: str


class ReservationExpired(msgspec.Struct, frozen=True):
    """Timer: a start set that is not released by now goes back."""

    job: str
    epoch: int


class Accepted(msgspec.Struct, frozen=True):
    """An agent has prepared a task."""

    task: str
    epoch: int


class Claimed(msgspec.Struct, frozen=True):
    """A plain worker takes its reserved task, or anybody takes one that asks for nothing."""

    task: str
    worker: str | None = None


class Started(msgspec.Struct, frozen=True):
    task: str
    epoch: int


class StartTimedOut(msgspec.Struct, frozen=True):
    """Timer: tasks of a released start set that are not seen by now have failed."""

    job: str
    epoch: int


# Ending


class Exited(msgspec.Struct, frozen=True):
    task: str
    epoch: int
    code: int | None = None
    signal: int | None = None
    signalled: bool = False  #: the worker had sent it a signal


class SpawnFailed(msgspec.Struct, frozen=True):
    task: str
    epoch: int
    message: str


class Stopped(msgspec.Struct, frozen=True):
    """A worker acknowledges that a task it was told to stop is no more."""

    task: str
    epoch: int


class Vanished(msgspec.Struct, frozen=True):
    """Nobody knows what became of the process."""

    task: str
    epoch: int
    gone: bool = True  #: it cannot be alive; else its worker stays charged


class StopTimedOut(msgspec.Struct, frozen=True):
    """Timer: tasks that were told to stop long enough ago settle without their worker."""

    job: str


class TimeLimitReached(msgspec.Struct, frozen=True):
    """Timer: the attempt of this epoch has run as long as its job allows."""

    job: str
    epoch: int


class StallDue(msgspec.Struct, frozen=True):
    """Timer: the attempt of this epoch should have made progress by now."""

    job: str
    epoch: int


# Saving


class CheckpointSaved(msgspec.Struct, frozen=True):
    """A task that is being stopped has saved its state; the bytes are in the store."""

    task: str
    epoch: int
    blob: Blob


class Progressed(msgspec.Struct, frozen=True):
    task: str
    epoch: int
    step: int | None = None
    safe: bool = False  #: the gang's work up to now would survive a stop


# Workers


class WorkerRegistered(msgspec.Struct, frozen=True):
    worker: str
    incarnation: str
    protocol: Protocol
    address: str
    resources: Resources = {}
    labels: Mapping[str, str] = {}
    slots: int | None = None


class Inventoried(msgspec.Struct, frozen=True):
    """All that an agent has: what it does not name, it does not have."""

    worker: str
    incarnation: str
    tasks: tuple[tuple[str, int], ...]  #: (task, epoch)


class WorkerReturned(msgspec.Struct, frozen=True):
    """A plain worker that was lost is heard again."""

    worker: str


class WorkerLost(msgspec.Struct, frozen=True):
    worker: str


class WorkerRemoved(msgspec.Struct, frozen=True):
    """An operator vouches that nothing of ours runs there any more."""

    worker: str
    by: str = ""


class CordonChanged(msgspec.Struct, frozen=True):
    worker: str
    reason: str | None  #: None opens the worker again


class WorkerLeaving(msgspec.Struct, frozen=True):
    """Its agent is about to end: nothing more goes there, and what is there goes elsewhere."""

    worker: str


class DrainRequested(msgspec.Struct, frozen=True):
    """A worker is to be emptied: nothing new is placed there, and the rest has until then."""

    worker: str
    why: str
    by: str
    deadline: Micros | None = None  #: None: at once


class DrainDue(msgspec.Struct, frozen=True):
    """Timer: what is still on a worker that is being emptied has to go."""

    worker: str
    at: Micros


class Gone(msgspec.Struct, frozen=True):
    """A worker reports that an attempt has left nothing behind."""

    worker: str
    task: str
    epoch: int


# Queues


class QueueSet(msgspec.Struct, frozen=True):
    queue: Queue


class QueuesSet(msgspec.Struct, frozen=True):
    """Several at once: all are set or none is. Parents may come with their children."""

    queues: tuple[Queue, ...]
    by: str = ""


class QueueRemoved(msgspec.Struct, frozen=True):
    queue: str


# Crons
#
# The engine puts on each event what the core must not look up: the time zone of the schedule (None
# if the host does not know it), and why the cron's owner may not run the job now (None: allowed).


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


class CronDue(msgspec.Struct, frozen=True):
    """Timer: a run is due, unless it was submitted already."""

    cron: str
    at: Micros
    zone: tzinfo | None = None
    refusal: str | None = None


class CronReplacementDue(msgspec.Struct, frozen=True):
    """Timer: the run that was due at that time can start, because the run before it has ended."""

    cron: str
    at: Micros
    zone: tzinfo | None = None
    refusal: str | None = None


Event = (
    Submitted
    | MembersJoined
    | CancelRequested
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
    | Held
    | HoldsReleased
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
    | StallDue
    | CheckpointSaved
    | Progressed
    | WorkerRegistered
    | Inventoried
    | WorkerReturned
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
