"""The rows that are kept: frozen, and complete enough to rebuild the cluster from them alone.

Times are microseconds since 1970, UTC. Only `Changes` makes new versions of them.
"""

from enum import StrEnum

import msgspec

from phalanx.core.causes import Cause, signal_name
from phalanx.core.ledger import Account, Lost
from phalanx.core.spec.job import JobSpec, Micros, Resources, Role, Schedule
from phalanx.core.states import State


class Phase(StrEnum):
    """A job as a whole, derived from its tasks; see `phase_of`."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed-out"


ENDED: frozenset[Phase] = frozenset({Phase.DONE, Phase.FAILED, Phase.CANCELLED, Phase.TIMED_OUT})


class Blob(msgspec.Struct, frozen=True):
    """Where bytes lie in the store."""

    id: str
    size_bytes: int


class Exit(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a process ended."""

    code: int | None = None
    signal: int | None = None
    signalled: bool = False  #: we had asked it to stop

    @property
    def is_success(self) -> bool:
        """It ended well and of its own accord, so its work is finished."""
        return self.code == 0 and not self.signalled

    def __str__(self) -> str:
        if self.signal is not None:
            return f"was killed by {signal_name(self.signal)}"
        if self.code is None:
            return "failed"
        return f"exited with code {self.code}"


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process tree on one worker."""

    job: str
    index: int
    role: str
    state: State
    epoch: int = 0  #: the job's epoch when this task was last reserved
    releases: int = 0  #: how often it was released to run; shown by the plain protocol only
    worker: str | None = None
    devices: tuple[int, ...] = ()  #: GPU indices on that worker
    port: int | None = None  #: the rendezvous port, on the task the others connect to
    placed_at: Micros | None = None
    released_at: Micros | None = None  #: from here on its process may exist
    started_at: Micros | None = None
    stopping_at: Micros | None = None  #: when it was told to stop
    ended_at: Micros | None = None
    exit: Exit | None = None
    checkpoint: Blob | None = None  #: what its next attempt is given
    saved: Blob | None = None  #: saved in the present drain, not yet part of a complete set

    @property
    def id(self) -> str:
        return f"{self.job}.{self.index}"

    @property
    def released(self) -> bool:
        return self.released_at is not None

    @property
    def story(self) -> str:
        """What the row tells about its present attempt, for errors that should be impossible."""
        told = [f"{self.id} is {self.state} at epoch {self.epoch}"]
        if self.worker is not None:
            told.append(f"on {self.worker}")
        for name in ("placed_at", "released_at", "started_at", "stopping_at", "ended_at"):
            at = getattr(self, name)
            if at is not None:
                told.append(f"{name}={at}")
        return ", ".join(told)


class Assignment(msgspec.Struct, frozen=True):
    task: int
    worker: str


class Nomination(msgspec.Struct, frozen=True, omit_defaults=True):
    """Room that others are leaving, kept for the gang that they leave for."""

    assignments: tuple[Assignment, ...]
    at: Micros
    until: Micros  #: by then it is used or given up
    victims: tuple[str, ...] = ()  #: the tasks that have to stop first


class Drain(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stopping of a gang. A job has at most one."""

    cause: Cause
    epoch: int
    began_at: Micros
    counted: bool = False  #: whether the failure that began it was counted


class Gathering(msgspec.Struct, frozen=True, omit_defaults=True):
    """What has been submitted of a gang whose members come one after the other."""

    of: int | None  #: how many members it needs; None until somebody says it
    members: tuple[str, ...] = ()  #: pods, and Jobs of several, by name
    #: Fields that were said of the gang, and with which weight: the heavier word counts.
    said: dict[str, int] = {}
    shared: dict[str, str] = {}  #: what members have in common, in their own words
    least: Resources = {}  #: the members that may start have to ask for as much in sum
    keys: tuple[str, ...] = ()  #: idempotency keys of those that joined


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job without its tasks."""

    id: str
    name: str
    spec: JobSpec
    phase: Phase
    created_at: Micros
    priority: int
    owner: str = ""
    key: str | None = None  #: the idempotency key it was submitted with
    version: int = 0  #: changes whenever a plan made for the job may no longer hold
    epoch: int = 0  #: counts its reservations
    failures: int = 0  #: counted failures since it last ran healthily
    losses: int = 0  #: reservations lost before release, in a row
    waits_for: tuple[str, ...] = ()  #: jobs that must be done first and are not
    waiting_since: Micros | None = None  #: when it last became eligible for placement
    not_before: Micros = 0  #: backoff
    on_hold: bool = False  #: an operator keeps it from starting
    satisfied: bool = False  #: it has started whole once
    together: tuple[str, ...] = ()  #: jobs whose reservation is released with its own
    healthy_since: Micros | None = None  #: all of its start set was running from here on
    short_since: Micros | None = None  #: it runs below its minimum from here on
    shrunk_at: Micros | None = None
    safe_at: Micros | None = None  #: work up to here would survive a stop
    avoid: tuple[str, ...] = ()  #: workers to try last
    held: tuple[Assignment, ...] = ()  #: what a non-strict gang has gathered and keeps
    held_since: Micros | None = None
    nomination: Nomination | None = None
    unused: int = 0  #: nominations in a row that came to nothing
    evicts_from: Micros = 0  #: not before then may others be evicted for it
    drain: Drain | None = None
    verdict: Phase | None = None
    cause: Cause | None = None  #: why it ended
    cron: str | None = None  #: the cron that made it
    due_at: Micros | None = None  #: when the cron was due
    lost: Lost | None = None  #: what stops have cost it
    gathering: Gathering | None = None  #: how it came together, if it did not come whole
    finished_at: Micros | None = None  #: every task is terminal; the row never changes again

    @property
    def full_name(self) -> str:
        """The namespace and the name, as people refer to the job."""
        return f"{self.spec.namespace}/{self.name}"

    @property
    def is_live(self) -> bool:
        return self.finished_at is None

    @property
    def awaits_members(self) -> bool:
        """Too little of it has been submitted: nothing of it may start."""
        gathering = self.gathering
        return gathering is not None and (gathering.of is None or self.spec.size < gathering.of)


class Protocol(StrEnum):
    """How a worker talks to the server."""

    SYNC = "sync"  #: an agent: it prepares, accepts, and reports what is gone
    PLAIN = "plain"  #: it claims, and is trusted to run what it claimed


class Suspicion(msgspec.Struct, frozen=True):
    """A job whose first failure in a drain was on this worker."""

    job: str
    at: Micros


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
    generation: int = 0  #: changes whenever a plan made for the worker may no longer hold
    lost_at: Micros | None = None
    cordoned: str | None = None  #: why nothing new is placed here
    drain_at: Micros | None = None  #: what is still here then is evicted
    drained_by: str = ""  #: who wants it empty
    leaving: bool = False  #: its agent is about to end, until it registers again
    suspicions: tuple[Suspicion, ...] = ()

    @property
    def is_open(self) -> bool:
        return self.lost_at is None and self.cordoned is None and not self.leaving

    @property
    def host(self) -> str:
        return host_of(self.address) or self.id


class Residue(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a settled attempt still occupies, because its worker has not said that it is gone."""

    task: str
    epoch: int
    worker: str
    since: Micros
    placed_at: Micros = 0
    resources: Resources = {}
    devices: tuple[int, ...] = ()
    port: int | None = None


class PreemptWithin(StrEnum):
    """Whom a job may evict inside its own queue."""

    NEVER = "never"
    LOWER_PRIORITY = "lower_priority"
    LOWER_OR_NEWER_EQUAL = "lower_or_newer_equal"


class ReclaimFrom(StrEnum):
    """Whom a queue may evict in others to get what it deserves."""

    NEVER = "never"
    LOWER_PRIORITY = "lower_priority"
    ANY = "any"


class Queue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A share of the cluster."""

    name: str
    parent: str | None = None
    weight: int = 1  #: its share of what the quotas leave
    quota: Resources = {}  #: what it is owed first
    limit: Resources = {}  #: the most that it and those below it may use
    stopped: bool = False  #: nothing of it or below it starts
    priority: int = 0  #: among siblings whose need is equal
    preempt_within_queue: PreemptWithin = PreemptWithin.LOWER_PRIORITY
    reclaim_from_siblings: ReclaimFrom = ReclaimFrom.ANY
    reclaimable: bool = True  #: whether others may take back what it uses beyond its share


class CronRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that a cron has made."""

    job: str
    name: str
    at: Micros  #: when it was due
    phase: Phase | None = None  #: how it ended


class CronOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of the last time that a cron was due."""

    at: Micros
    what: str
    job: str | None = None


class Cron(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that is made again and again."""

    key: str  #: namespace/name
    spec: JobSpec
    owner: str
    created_at: Micros
    paused: bool = False
    next_at: Micros | None = None  #: None while it is paused
    last: CronOutcome | None = None
    runs: tuple[CronRun, ...] = ()  #: the unfinished ones, and the last that ended
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
    """Everything a leader needs to go on: what is live, and the last record's number."""

    jobs: list[Job] = []
    tasks: list[Task] = []
    workers: list[Worker] = []
    queues: list[Queue] = []
    residues: list[Residue] = []
    accounts: list[Account] = []
    crons: list[Cron] = []
    last_seq: int = 0


def cron_key(namespace: str, name: str) -> str:
    return f"{namespace}/{name}"


def host_of(address: str) -> str:
    """The host of `host`, `host:port`, `[v6]:port` or a bare IPv6 address."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdigit() and ":" not in host else address


def role_of(spec: JobSpec, index: int) -> Role:
    """The role of a job's task: roles in order, each with its replicas."""
    for role in spec.roles:
        if index < role.replicas:
            return role
        index -= role.replicas
    raise IndexError("bug: a task index beyond the job's size")


def index_in_role(spec: JobSpec, index: int) -> int:
    """The number of a job's task within its role, from 0."""
    for role in spec.roles:
        if index < role.replicas:
            break
        index -= role.replicas
    return index
