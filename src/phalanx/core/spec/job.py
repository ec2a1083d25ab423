"""The job specification in its normal form: every default filled in, every quantity an integer.

Only `validation.job_spec` makes one from what a user wrote; these structs trust their values.
A specification never changes once its job has been accepted.
"""

from enum import StrEnum

import msgspec

#: A span or a point of time (UTC, since 1970) in whole microseconds.
Micros = int

SECOND: Micros = 1_000_000
MINUTE: Micros = 60 * SECOND
HOUR: Micros = 60 * MINUTE

#: Amounts by resource name: cpu and gpu in thousandths, memory in bytes, all others as they are.
Resources = dict[str, int]


class Mode(StrEnum):
    """What a gang does with capacity for a part of its minimum."""

    STRICT = "strict"  #: takes nothing until the whole minimum fits
    NON_STRICT = "non-strict"  #: holds what fits and goes on gathering


class Match(StrEnum):
    """Which tasks count towards the gang's minimum when it is placed."""

    ONLY_WAITING = "only-waiting"
    WAITING_AND_RUNNING = "waiting-and-running"
    WAITING_RUNNING_SUCCEED = "waiting-running-succeed"
    ONCE_SATISFIED = "once-satisfied"


class Restart(StrEnum):
    """What a failed task takes with it."""

    GANG = "gang"  #: all tasks stop and start again together
    TASK = "task"  #: only the failed task starts again
    NEVER = "never"  #: the job fails


class PreemptionPolicy(StrEnum):
    """Whom this job may evict to start."""

    LOWER = "lower"
    NEVER = "never"


class CheckpointPolicy(StrEnum):
    """Which saved bytes the next attempt is given."""

    NONE = "none"  #: declares nothing; bytes that arrive all the same are handed back
    EACH = "each"  #: every task gets its own last bytes
    ALL = "all"  #: only sets that every started task saved in the same drain count


class PackMode(StrEnum):
    REQUIRE = "require"
    PREFER = "prefer"


class Concurrency(StrEnum):
    """What a cron does when its last run is still unfinished."""

    ALLOW = "allow"
    FORBID = "forbid"
    REPLACE = "replace"


class Pack(msgspec.Struct, frozen=True):
    """Keep the gang inside one domain."""

    by: str  #: the node label whose values are the domains
    mode: PackMode


class Schedule(msgspec.Struct, frozen=True):
    """When a job is run again."""

    cron: str
    timezone: str
    concurrency: Concurrency
    keep_done: int
    keep_failed: int


#: What is asked of a node by a role that has an image: workers that can run one say so by label.
NEEDS_RUNTIME = {"runtime": "containers"}


class Role(msgspec.Struct, frozen=True):
    """A named set of identical tasks."""

    name: str
    #: A list is executed; a string is run by `sh -c`; the empty list is the image's own program.
    command: str | tuple[str, ...]
    replicas: int
    min: int  #: the role may start with this many tasks
    env: dict[str, str]
    workdir: str | None
    resources: Resources
    node_selector: dict[str, str]
    per_node: int | None  #: at most this many of the role's tasks on one node
    image: str | None = None  #: what its processes run in; only nodes with a container runtime do
    args: tuple[str, ...] = ()  #: for the image's own program


class JobSpec(msgspec.Struct, frozen=True):
    """What a user submitted. `docs/reference/job.md` explains each field."""

    name: str | None
    namespace: str
    queue: str
    priority: int
    priority_class: str | None
    roles: tuple[Role, ...]
    min_available: int  #: over all roles, never below the sum of the roles' minimums
    mode: Mode
    match: Match
    group: tuple[str, ...]
    schedule_timeout: Micros | None
    pack: Pack | None
    spread: bool
    restart: Restart
    max_retries: int
    backoff: Micros
    grace: Micros
    time_limit: Micros | None
    stall_after: Micros | None
    complete_when: str  #: `all`, or the role whose completion completes the job
    preemptible: bool
    preemption_policy: PreemptionPolicy
    checkpoint: CheckpointPolicy
    fence: bool
    after: tuple[str, ...]
    schedule: Schedule | None

    @property
    def size(self) -> int:
        return sum(role.replicas for role in self.roles)

    @property
    def is_anonymous(self) -> bool:
        """Whether any process may claim it: one task that asks nothing of its node or peers."""
        return (
            self.size == 1
            and not self.group
            and not any(role.resources or role.node_selector for role in self.roles)
        )
