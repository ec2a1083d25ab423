"""The rows that the store keeps. They are frozen, and the cluster can be rebuilt from them alone.

A job's row has one nested struct per stage of its life, present only while the job is in that
stage. Times are microseconds since 1970, UTC. Only `Changes` makes new versions of rows. As rows
cannot form reference cycles, the garbage collector need not visit them (`gc=False`).
"""

from bisect import bisect_right
from enum import StrEnum
from typing import NamedTuple

import msgspec

from phalanx.core.causes import Cause, signal_name
from phalanx.core.ledger import Account, JobLosses
from phalanx.core.spec.job import JobSpec, Resources, Role, Schedule, role_ends
from phalanx.core.spec.watch import WatchAction
from phalanx.core.states import State
from phalanx.core.time_units import Micros


class Phase(StrEnum):
    """The phase of a job as a whole, derived from its tasks by `Gang.phase`."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed-out"


ENDED: frozenset[Phase] = frozenset({Phase.DONE, Phase.FAILED, Phase.CANCELLED, Phase.TIMED_OUT})


class Blob(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A reference to bytes in the store."""

    id: str
    size_bytes: int
    saved_at: Micros = 0


class Exit(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """How a process ended."""

    code: int | None = None
    signal: int | None = None
    signalled: bool = False  #: the worker had signalled it to stop
    out_of_memory: bool = False  #: the kernel killed it, because memory was short

    @property
    def is_success(self) -> bool:
        """Whether the process exited with 0 without being stopped, so that its work is done."""
        return self.code == 0 and not self.signalled

    def __str__(self) -> str:
        if self.out_of_memory:
            return "was killed for memory"
        if self.signal is not None:
            return f"was killed by {signal_name(self.signal)}"
        if self.code is None:
            return "failed"
        return f"exited with code {self.code}"


class Place(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Where one attempt of a task runs, and how far it has come."""

    worker: str | None  #: None for a task that was claimed without naming a worker
    placed_at: Micros
    devices: tuple[int, ...] = ()  #: GPU indices on the worker
    port: int | None = None  #: the rendezvous port, on the task that the others connect to
    #: The port at which its peers reach it, if a variable of the job has the addresses of its role.
    address_port: int | None = None
    released_at: Micros | None = None  #: from here on a process may exist
    started_at: Micros | None = None
    stopping_at: Micros | None = None  #: when the stop was requested
    preparing: str = ""  #: what its worker last reported of the preparation

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports of its host that no other task may use."""
        if self.address_port is None:
            return () if self.port is None else (self.port,)
        return (self.address_port,) if self.port is None else (self.port, self.address_port)


class TaskProblem(msgspec.Struct, frozen=True, gc=False):
    """What a worker found wrong with the files of a task, for example a checkpoint too large."""

    attempt: int
    message: str


class Task(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One process tree on one worker."""

    job: str
    index: int
    role: str
    state: State
    epoch: int = 0  #: the job's epoch when this task was last reserved
    releases: int = 0  #: how often it was released to run; shown by the plain protocol only
    place: Place | None = None  #: set from the reservation until the task is pending again
    ended_at: Micros | None = None
    exit: Exit | None = None
    checkpoint: Blob | None = None  #: what the next attempt resumes from
    saved: Blob | None = None  #: saved while stopping, not yet part of a complete set
    problem: TaskProblem | None = None  #: the latest one

    @property
    def id(self) -> str:
        return f"{self.job}.{self.index}"

    @property
    def worker(self) -> str | None:
        return None if self.place is None else self.place.worker

    @property
    def devices(self) -> tuple[int, ...]:
        return () if self.place is None else self.place.devices

    @property
    def placed_at(self) -> Micros | None:
        return None if self.place is None else self.place.placed_at

    @property
    def released(self) -> bool:
        return self.place is not None and self.place.released_at is not None

    @property
    def released_at(self) -> Micros | None:
        return None if self.place is None else self.place.released_at

    @property
    def started_at(self) -> Micros | None:
        return None if self.place is None else self.place.started_at

    @property
    def story(self) -> str:
        """The present attempt in one line, for errors that should be impossible."""
        parts = [f"{self.id} is {self.state} in attempt {self.epoch}"]
        if self.place is not None:
            if self.place.worker is not None:
                parts.append(f"on {self.place.worker}")
            times = ("placed_at", "released_at", "started_at", "stopping_at")
            values = [(name, getattr(self.place, name)) for name in times]
            parts += [f"{name}={at}" for name, at in values if at is not None]
        if self.ended_at is not None:
            parts.append(f"ended_at={self.ended_at}")
        return ", ".join(parts)


def place_of(task: Task) -> Place:
    """The place of a task. Raises AssertionError if it has none."""
    if task.place is None:
        raise AssertionError(f"bug: a task without a place: {task.story}")
    return task.place


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """A task of a job and the worker it is to run on."""

    task: int
    worker: str


class Nomination(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Capacity kept for a gang while the victims that occupy it stop."""

    assignments: tuple[Assignment, ...]
    at: Micros
    until: Micros  #: when the capacity is released if the gang has not started
    victims: tuple[str, ...] = ()  #: the tasks that must stop first


class GatheredPlaces(msgspec.Struct, frozen=True, gc=False):
    """Places that a non-strict gang keeps until it has its minimum."""

    places: tuple[Assignment, ...]
    since: Micros  #: when the first of them was gathered


class PendingState(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Tasks of the job are to be placed.

    Begins at the submission, at a requeue, or when one task failed and restarts alone; ends at the
    release of a reservation.
    """

    after: tuple[str, ...] = ()  #: dependencies that have not finished
    since: Micros | None = None  #: when the job became eligible for placement
    waited: Micros = 0  #: how long it was pending before its earlier attempts
    not_before: Micros = 0  #: the end of the backoff
    lost_reservations: int = 0  #: in a row, before any release
    lost_because: str = ""  #: why the last of them was lost
    gathered: GatheredPlaces | None = None
    nomination: Nomination | None = None
    unused_nominations: int = 0  #: in a row
    evicts_from: Micros = 0  #: before this time no other job is evicted for it


class ReservationState(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A start set is reserved and not released yet."""

    together: tuple[str, ...] = ()  #: jobs of its group, whose reservations are released with it


class Shrink(msgspec.Struct, frozen=True, gc=False):
    """Tasks above the minimum of a gang are being stopped for another job."""

    job: str  #: that job (namespace/name)
    lost: Resources = {}  #: the work that those which have stopped have lost


class RaisedAlarm(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A task reported an abnormal value, and it is not decided yet what follows."""

    task: int
    rank: int
    step: int
    what: str  #: `rank 3 on w-2 reported loss nan at step 120`
    action: WatchAction
    at: Micros


class AttemptState(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The gang has been released and has not stopped as a whole since."""

    healthy_since: Micros | None = None  #: since then all tasks of the start set are running
    short_since: Micros | None = None  #: since then it runs below its minimum
    shrunk_at: Micros | None = None  #: when it last gave up tasks above its minimum
    shrink: Shrink | None = None  #: until all of these tasks have stopped
    safe_at: Micros | None = None  #: work up to here survives a stop
    waited: Micros = 0  #: how long it was pending before its release, and before earlier ones
    warned: bool = False  #: an event says that it runs long and saves nothing
    alarms: tuple[RaisedAlarm, ...] = ()  #: by step; see `handlers/alarms.py`


class StoppingState(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The gang is being stopped as a whole."""

    cause: Cause
    epoch: int  #: the attempt that is stopped
    began_at: Micros
    counted: bool = False  #: whether the failure that caused it was counted
    moves_to: Nomination | None = None  #: the places kept for its restart, if it is moved


class EndState(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The job has its verdict."""

    verdict: Phase
    cause: Cause
    finished_at: Micros | None = None  #: when the last task ended; then the row never changes again


class GangMembers(msgspec.Struct, frozen=True, omit_defaults=True):
    """The members of a gang that is submitted in parts, as far as they have been submitted."""

    needed: int | None  #: how many members the gang starts with; None until a part sets it
    names: tuple[str, ...] = ()  #: pods, and Jobs of several pods
    #: Fields that parts have set for the gang, and their weight: the heavier part wins.
    weights: dict[str, int] = {}
    shared: dict[str, str] = {}  #: fields that must be equal in all members, as they were written
    total: int | None = None  #: how many members its user expects


class PendingTimeout(NamedTuple):
    """When a job that is still pending times out."""

    at: Micros
    limit: Micros
    is_gathering: bool  #: it began with the first gathered place, not when the job was eligible


class Job(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A job without its tasks."""

    id: str
    name: str
    spec: JobSpec
    phase: Phase
    created_at: Micros
    priority: int
    owner: str = ""
    version: int = 0  #: changes whenever a plan made for the job may no longer hold
    epoch: int = 0  #: the number of the last attempt
    failures: int = 0  #: counted failures since it last ran healthily
    on_hold: bool = False  #: an operator prevents it from starting
    satisfied: bool = False  #: it has started with its minimum at least once
    avoid: tuple[str, ...] = ()  #: workers to try last
    #: (worker, attempt): where it could not start, and could not at another try either. The worker
    #: is empty if the server could not resolve its inputs.
    start_refusals: tuple[tuple[str, int], ...] = ()
    cron: str | None = None  #: the cron that submitted it
    due_at: Micros | None = None  #: when the cron was due
    losses: JobLosses | None = None  #: the work that stops have cost
    moved_at: Micros | None = None  #: when it was last moved to other nodes
    saved_step: int | None = None  #: the last step that a task reported as saved elsewhere
    abnormal_step: int | None = None  #: of the abnormal value that it was last stopped for
    #: After a rollback: the last saved step before the abnormal value, until a later one is saved.
    resume_step: int | None = None
    members: GangMembers | None = None  #: set for a gang that was submitted in parts
    array: str | None = None  #: the array that it is an element of
    index: int | None = None  #: its index there
    counts: "ElementCounts | None" = None  #: of an array
    pending: PendingState | None = None
    reservation: ReservationState | None = None
    attempt: AttemptState | None = None
    stopping: StoppingState | None = None
    end: EndState | None = None

    @property
    def full_name(self) -> str:
        """The namespace and the name, as people refer to the job."""
        return f"{self.spec.namespace}/{self.name}"

    @property
    def is_array(self) -> bool:
        """Whether it has elements instead of tasks."""
        return self.spec.array is not None and self.array is None

    @property
    def verdict(self) -> Phase | None:
        return None if self.end is None else self.end.verdict

    @property
    def finished_at(self) -> Micros | None:
        return None if self.end is None else self.end.finished_at

    @property
    def is_live(self) -> bool:
        return self.end is None or self.end.finished_at is None

    @property
    def is_ending(self) -> bool:
        """Whether the gang is stopping or the job has ended: nothing of it can start or stop."""
        return self.stopping is not None or self.end is not None

    @property
    def cause(self) -> Cause | None:
        """Why the job ended, or why its gang is stopping."""
        if self.end is not None:
            return self.end.cause
        return None if self.stopping is None else self.stopping.cause

    @property
    def cannot_start(self) -> bool:
        """Whether two workers refused to start it, or one twice: a worker that refused is tried
        last, so no other one was free."""
        return len(self.start_refusals) > 1

    @property
    def awaits_members(self) -> bool:
        """Whether members are missing; nothing of the gang can start before they are submitted."""
        members = self.members
        return members is not None and (members.needed is None or self.spec.size < members.needed)

    @property
    def eligible_since(self) -> Micros | None:
        """Since when the job can be placed; None if it is not pending or not eligible yet."""
        return None if self.pending is None else self.pending.since

    @property
    def timeouts(self) -> list[PendingTimeout]:
        """The timeouts that are running: the schedule timeout since the job is eligible, and the
        gather timeout since it has its first gathered place."""
        spec, pending = self.spec, self.pending
        timeouts: list[PendingTimeout] = []
        if pending is None:
            return timeouts
        limit = spec.schedule_timeout
        if limit is not None and pending.since is not None:
            timeouts.append(PendingTimeout(pending.since + limit, limit, is_gathering=False))
        limit = spec.gather_timeout
        if limit is not None and pending.gathered is not None:
            at = pending.gathered.since + limit
            timeouts.append(PendingTimeout(at, limit, is_gathering=True))
        return timeouts

    @property
    def times_out_at(self) -> Micros | None:
        """When the job times out if it is still pending then; None if no timeout is running."""
        return min((timeout.at for timeout in self.timeouts), default=None)


class ElementCounts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """How many elements of an array are in which phase."""

    pending: int = 0  #: also those that have no row yet
    starting: int = 0
    running: int = 0
    stopping: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    timed_out: int = 0
    never_ran: int = 0  #: ended without an attempt; not counted among the others

    @property
    def total(self) -> int:
        return sum(msgspec.structs.astuple(self))


class ElementBlock(msgspec.Struct, frozen=True, gc=False):
    """The states of consecutive elements of an array, one character each; see `core/array.py`."""

    array: str
    number: int  #: of the block, from 0
    states: str
    attempts: bytes  #: of each element: how many it has had


class Protocol(StrEnum):
    """How a worker talks to the server."""

    SYNC = "sync"  #: an agent: it prepares and accepts tasks, and reports which attempts are gone
    PLAIN = "plain"  #: it claims tasks, and is trusted to run what it claimed


class Limit(StrEnum):
    """A limit of tasks that a worker enforces."""

    MEMORY = "memory"  #: the memory that the task asks for
    CPU = "cpu"  #: a share of the CPUs in proportion to what the task asks for
    PROCESSES = "processes"  #: the number of processes and threads


class SuspicionKind(StrEnum):
    """What happened first on the suspected worker."""

    START = "start"  #: the worker could not start a task, for a reason of its own
    FAILURE = "failure"  #: a task failed
    VALUE = "value"  #: a watched value was abnormal


class Suspicion(msgspec.Struct, frozen=True):
    """A job whose first failed task, or first abnormal value, was on this worker."""

    job: str
    at: Micros
    owner: str = ""
    kind: SuspicionKind = SuspicionKind.FAILURE
    ran: Micros = 0  #: how long the task had run there
    #: The job has shown elsewhere that it is not the cause. Of a job that still runs, see
    #: `handlers/suspicion.py`.
    counts: bool = False


class Worker(msgspec.Struct, frozen=True, omit_defaults=True):
    """A machine that registered with the server."""

    id: str
    incarnation: str
    protocol: Protocol
    address: str  #: host, or host:port, under which its peers reach it
    born_at: Micros  #: when this incarnation first registered
    registered_at: Micros
    resources: Resources = {}
    labels: dict[str, str] = {}
    slots: int | None = None  #: at most this many tasks at a time
    counts_polls: bool = False  #: a plain worker that registered no slots: they follow its claims
    limits: tuple[Limit, ...] = ()  #: those that it enforces
    generation: int = 0  #: changes whenever a plan made for the worker may no longer hold
    lost_at: Micros | None = None
    cordoned: str | None = None  #: why no new tasks are placed here
    drain_at: Micros | None = None  #: jobs that are still here then are evicted
    drained_by: str = ""  #: the user who drains it
    leaving: bool = False  #: its agent is shutting down, until it registers again
    suspicions: tuple[Suspicion, ...] = ()

    @property
    def is_open(self) -> bool:
        return self.lost_at is None and self.cordoned is None and not self.leaving

    @property
    def host(self) -> str:
        return host_of(self.address) or self.id

    def peer_address(self, number: int) -> str:
        """Where the peers of a gang reach its task with this number among those on this worker.

        If the worker's address has a port, each task has a port of its own, from that one on.
        """
        port = port_of(self.address)
        if port is None:
            return self.host
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{port + number}"


class Residue(msgspec.Struct, frozen=True, omit_defaults=True):
    """Capacity that a stopped attempt still occupies, until its worker reports that it is gone."""

    task: str
    epoch: int
    worker: str
    since: Micros
    placed_at: Micros = 0
    resources: Resources = {}
    devices: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()


class PreemptWithin(StrEnum):
    """Which jobs of its own queue a job may preempt."""

    NEVER = "never"
    LOWER_PRIORITY = "lower_priority"
    LOWER_OR_NEWER_EQUAL = "lower_or_newer_equal"


class ReclaimFrom(StrEnum):
    """Which jobs of other queues a queue may evict to reclaim its fair share."""

    NEVER = "never"
    LOWER_PRIORITY = "lower_priority"
    ANY = "any"


class Queue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A share of the cluster."""

    name: str
    parent: str | None = None
    weight: int = 1  #: its share of the capacity beyond all quotas
    quota: Resources = {}  #: its guaranteed capacity
    limit: Resources = {}  #: the most that it and the queues below it may use
    stopped: bool = False  #: no job of it or of the queues below it starts
    priority: int = 0  #: decides between siblings with equal need
    preempt_within_queue: PreemptWithin = PreemptWithin.LOWER_PRIORITY
    reclaim_from_siblings: ReclaimFrom = ReclaimFrom.ANY
    reclaimable: bool = True  #: whether other queues may reclaim what it borrows
    #: Whether its jobs that are not preemptible together use no more than its quota.
    non_preemptible_within_quota: bool = False
    #: Whether its preemptible jobs that save checkpoints may be moved to other nodes, so that a
    #: pending job fits.
    consolidation: bool = False
    max_priority: int | None = None  #: the highest priority that its jobs may have
    namespaces: tuple[str, ...] = ()  #: those whose jobs may use it, or patterns; empty: all


class CronRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that a cron has submitted."""

    job: str
    name: str
    at: Micros  #: when it was due
    phase: Phase | None = None  #: how it ended


class CronOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of the last time that a cron was due."""

    at: Micros
    what: str  #: `started`, `skipped: …` or `denied: …`
    job: str | None = None


class Cron(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that is submitted on a schedule."""

    key: str  #: namespace/name
    spec: JobSpec
    owner: str
    created_at: Micros
    paused: bool = False
    next_at: Micros | None = None  #: None while it is paused
    last: CronOutcome | None = None
    runs: tuple[CronRun, ...] = ()  #: the unfinished runs, and the most recent that ended
    replacing_at: Micros | None = None  #: a run was due then and starts when the old one has ended

    @property
    def schedule(self) -> Schedule:
        if self.spec.schedule is None:
            raise AssertionError(f"bug: cron {self.key} has no schedule")
        return self.spec.schedule

    @property
    def unfinished(self) -> list[CronRun]:
        return [run for run in self.runs if run.phase is None]


class Rows(msgspec.Struct):
    """Everything a new leader loads: the live rows, and the number of the last record."""

    jobs: list[Job] = []
    tasks: list[Task] = []
    workers: list[Worker] = []
    queues: list[Queue] = []
    residues: list[Residue] = []
    accounts: list[Account] = []
    crons: list[Cron] = []
    elements: list[ElementBlock] = []
    last_seq: int = 0


def cron_key(namespace: str, name: str) -> str:
    return f"{namespace}/{name}"


def host_of(address: str) -> str:
    """The host of `host`, `host:port`, `[v6]:port` or a bare IPv6 address."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdigit() and ":" not in host else address


def port_of(address: str) -> int | None:
    """The port of `host:port` or `[v6]:port`; None if the address has none."""
    rest = address.removeprefix("[").removeprefix(host_of(address)).removeprefix("]")
    return int(rest[1:]) if rest[:1] == ":" and rest[1:].isdecimal() else None


def role_of(spec: JobSpec, index: int) -> Role:
    """The role of a job's task: roles in order, each with its replicas."""
    if len(spec.roles) == 1:
        return spec.roles[0]
    return spec.roles[bisect_right(role_ends(spec.roles), index)]


def index_in_role(spec: JobSpec, index: int) -> int:
    """The number of a job's task within its role, from 0."""
    ends = role_ends(spec.roles)
    at = bisect_right(ends, index)
    return index - ends[at - 1] if at else index
