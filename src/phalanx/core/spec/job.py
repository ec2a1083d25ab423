"""The specification of a job in its normal form: all defaults filled in, quantities as integers.

Only `validation.job_spec` creates one from user input; these structs do not check their values.
The specification of an accepted job never changes.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import accumulate

import msgspec
from msgspec.structs import replace

from phalanx.core.spec.arrays import ArraySpec
from phalanx.core.spec.secret_references import SecretKey
from phalanx.core.spec.security import ContainerSecurity
from phalanx.core.spec.watch import ValueRules
from phalanx.core.time_units import Micros

#: Amounts by resource: cpu and gpu in thousandths, memory in bytes, all others as they are.
Resources = dict[str, int]


def total(amounts: Iterable[Resources]) -> Resources:
    """The sum of amounts, by resource."""
    summed: Resources = {}
    for each in amounts:
        for name, amount in each.items():
            summed[name] = summed.get(name, 0) + amount
    return summed


class Mode(StrEnum):
    """What a pending gang does with capacity for fewer tasks than its minimum."""

    STRICT = "strict"  #: leaves it to other jobs until the minimum fits at once
    NON_STRICT = "non-strict"  #: gathers it until there is enough


class Match(StrEnum):
    """Which tasks count towards the minimum of a gang when it is placed."""

    ONLY_WAITING = "only-waiting"
    WAITING_AND_RUNNING = "waiting-and-running"
    WAITING_RUNNING_SUCCEED = "waiting-running-succeed"
    ONCE_SATISFIED = "once-satisfied"


class Restart(StrEnum):
    """What happens after a task has failed."""

    GANG = "gang"  #: all tasks of the gang stop and start again together
    TASK = "task"  #: only the failed task starts again
    NEVER = "never"  #: the job fails


class PartialCompletion(StrEnum):
    """What happens to a gang that has to start again when some of its tasks are done."""

    RESTART = "restart"  #: the whole gang starts again, with the tasks that were done
    FAIL = "fail"  #: the job fails


class PreemptionPolicy(StrEnum):
    """Which jobs this job can evict in order to start."""

    LOWER = "lower"
    NEVER = "never"


class CheckpointPolicy(StrEnum):
    """Which checkpoint the next attempt receives."""

    NONE = "none"  #: the job declares none; a checkpoint that arrives is still handed back
    EACH = "each"  #: every task receives its own last checkpoint
    ALL = "all"  #: only checkpoints that all started tasks saved in the same stop count


class PackMode(StrEnum):
    REQUIRE = "require"
    PREFER = "prefer"


class Concurrency(StrEnum):
    """What a cron does when it is due and its last run has not finished."""

    ALLOW = "allow"
    FORBID = "forbid"
    REPLACE = "replace"


class Pack(msgspec.Struct, frozen=True):
    """Place the whole gang in one domain."""

    by: str  #: the node label whose values are the domains
    mode: PackMode


class Schedule(msgspec.Struct, frozen=True):
    """When the runs of a cron start, and how many finished runs are kept."""

    cron: str
    timezone: str
    concurrency: Concurrency
    keep_done: int
    keep_failed: int


#: The node selector of every role with an image: workers with a container runtime have the label.
NEEDS_RUNTIME = {"runtime": "containers"}
#: The node selector of jobs with `run_as_user`: workers that run tasks as users have the label.
NEEDS_USERS = {"task_users": "mapped"}
#: The node selector of every role that uses secrets: agents have the label. Workers of the plain
#: protocol do not, and the server sends them no secrets.
NEEDS_AGENT = {"secrets": "delivered"}


class Role(msgspec.Struct, frozen=True):
    """A named set of identical tasks."""

    name: str
    #: A list is executed, a string is run by `sh -c`, an empty list is the program of the image.
    command: str | tuple[str, ...]
    replicas: int
    min: int  #: the fewest tasks of the role that have to run together
    env: dict[str, str]
    workdir: str | None
    resources: Resources
    node_selector: dict[str, str]
    per_node: int | None  #: the most tasks of the role on one node
    image: str | None = None  #: the container image that the tasks run in
    args: tuple[str, ...] = ()  #: arguments for the program of the image
    #: Files for the task in memory, by name; their texts may refer to secrets.
    secret_files: dict[str, str] = {}
    pull_secrets: tuple[str, ...] = ()  #: secrets with the credentials of the image's registry
    secrets: tuple[SecretKey, ...] = ()  #: what `env` and `secret_files` refer to
    security: ContainerSecurity | None = None  #: of the container


#: The fields that list jobs which have to end before a job starts.
DEPENDENCY_FIELDS = ("after", "afterany", "afternotok")

#: Jobs with many roles whose `role_ends` are kept.
_KEPT_ENDS = 64
#: id of the roles → those roles, referenced so that the id stays theirs, and their ends.
_ends: dict[int, tuple[tuple[Role, ...], list[int]]] = {}


def role_ends(roles: tuple[Role, ...]) -> list[int]:
    """For each role, the number of tasks up to its end. Kept, because it is asked for each task."""
    kept = _ends.get(id(roles))
    if kept is None:
        if len(_ends) >= _KEPT_ENDS:
            _ends.clear()
        kept = _ends[id(roles)] = roles, list(accumulate(role.replicas for role in roles))
    return kept[1]


class JobSpec(msgspec.Struct, frozen=True):
    """The job that a user submitted. `docs/reference/job.md` explains each field."""

    name: str | None  #: unique among the unfinished jobs of the namespace
    namespace: str
    queue: str
    priority: int  #: jobs with a higher priority start first
    priority_class: str | None  #: the name that the priority was given by
    roles: tuple[Role, ...]
    min_available: int  #: over all roles; at least the sum of the minimums of the roles
    min_resources: Resources  #: the job is not tried before so much is free in the cluster
    max_running: int | None  #: the most tasks that have a place at the same time
    mode: Mode
    match: Match
    group: tuple[str, ...]  #: `namespace/name` of the jobs that start together with this one
    schedule_timeout: Micros | None  #: the longest time that the job is pending
    gather_timeout: Micros | None  #: the longest time from the first gathered place to the start
    pack: Pack | None
    spread: bool  #: prefer the emptiest node to the fullest
    restart: Restart
    on_partial_completion: PartialCompletion
    max_retries: int  #: the number of failures that end the job
    backoff: Micros  #: the pause before the second restart; it doubles with each further one
    grace: Micros  #: the time between SIGTERM and SIGKILL
    time_limit: Micros | None  #: the longest run time of one attempt
    stall_after: Micros | None  #: the longest time without progress
    watch: dict[str, ValueRules]  #: by name, the rules for values that tasks report
    complete_when: str  #: `all`, or the role that completes the job when it is done
    preemptible: bool  #: whether the job can be evicted for another one
    preemption_policy: PreemptionPolicy
    checkpoint: CheckpointPolicy
    run_as_user: str | None  #: the user of the tasks, instead of the user of the namespace
    fence: bool  #: two attempts never run at the same time, even if a worker is cut off
    external_services: dict[str, str]  #: endpoints outside the cluster that its tasks use, by name
    after: tuple[str, ...]  #: jobs that must be done first; names become ids at the submission
    afterany: tuple[str, ...]  #: jobs that must have ended first, in whatever phase
    afternotok: tuple[str, ...]  #: jobs that must have ended first without being done
    schedule: Schedule | None  #: set for a cron, whose runs have none
    #: Set for an array, and for its elements, which share the specification.
    array: ArraySpec | None = None

    @property
    def dependencies(self) -> tuple[str, ...]:
        """The jobs that it runs after, under whatever condition. Each is listed once."""
        named = self.after + self.afterany + self.afternotok
        return tuple(dict.fromkeys(named)) if named else ()

    @property
    def size(self) -> int:
        roles = self.roles
        if len(roles) == 1:
            return roles[0].replicas
        return role_ends(roles)[-1] if roles else 0

    @property
    def requested(self) -> Resources:
        """The requests of all tasks, summed."""
        return total(
            {name: amount * role.replicas for name, amount in role.resources.items()}
            for role in self.roles
        )

    @property
    def elements(self) -> int:
        """How many gangs the submission has: the elements of an array, or 1."""
        return 1 if self.array is None else len(self.array.elements)

    @property
    def is_prepared_first(self) -> bool:
        """Whether something has to be prepared for its tasks before the gang is released."""
        return self.has_images or any(role.secrets for role in self.roles)

    @property
    def has_images(self) -> bool:
        """Whether images have to be pulled before its tasks can start."""
        return any(role.image is not None for role in self.roles)

    @property
    def is_anonymous(self) -> bool:
        """Whether any process can claim the job: one task without resources, labels or group."""
        return (
            self.size == 1
            and not self.group
            and self.run_as_user is None
            and not any(role.resources or role.node_selector for role in self.roles)
        )


def with_images(spec: JobSpec, images: Mapping[str, str]) -> JobSpec:
    """The job with other references for its images."""
    if all(images.get(role.image or "") in (None, role.image) for role in spec.roles):
        return spec
    roles = (
        role if role.image is None else replace(role, image=images.get(role.image, role.image))
        for role in spec.roles
    )
    return replace(spec, roles=tuple(roles))
