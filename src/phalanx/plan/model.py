"""The planner's input: pending gangs, running gangs and the policy.

These are not the core's rows: a worker, a Kubernetes node and a node of a scenario look the same.
Equal task requests are one object, so that what is computed for one is computed for all of them.
None of these values refers back to itself, so the garbage collector need not visit them.
"""

from collections.abc import Hashable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from phalanx.core.model import Assignment, Nomination
from phalanx.core.reasons import NoNodeMatches, Reason
from phalanx.core.spec.job import Pack
from phalanx.core.time_units import HOUR, MINUTE, SECOND, Micros

#: Later than any time.
NEVER: Micros = 1 << 62


class OrderKey(StrEnum):
    """A criterion by which the gangs of one queue are ordered."""

    PRIORITY = "priority"  #: the highest first
    SIZE = "size"  #: the largest first
    CREATED = "created"  #: the oldest first
    SHORTEST = "shortest"  #: the shortest time limit first, with aging
    USER = "user"  #: the user with the smallest dominant share of the queue first


class PlannerPolicy(msgspec.Struct, frozen=True):
    """The rules that an operator can change."""

    order: tuple[OrderKey, ...] = (OrderKey.PRIORITY, OrderKey.SIZE, OrderKey.SHORTEST)
    starve_after: Micros = 10 * MINUTE  #: a gang that has been pending for longer is starving
    #: A gang that has been pending for so many times its time limit, and the median wait of its
    #: size, is overdue; 0: never.
    max_wait: float = 10.0
    share_half_life: Micros = 0  #: of unused shares that are remembered; 0: none are
    min_runtime: Micros = 60 * SECOND  #: a gang that has run for less is not reclaimed
    move_work: float = 600.0  #: at most so many GPU-seconds are lost by the moves for one gang
    move_cooldown: Micros = HOUR  #: a gang is moved at most once in this time
    backfill: bool = True  #: reserve start times for gangs that do not fit yet
    heads: int = 8  #: at most this many reserved starts
    plan_every: Micros = 5 * SECOND  #: the longest time between two plans
    searches: int = 32  #: at most this many gangs have their turn to evict others in one pass
    search_work: int = 3_000  #: at most this much work is done for them, see `SearchBudget`


#: Where the shortest gangs go first, a gang is ordered as if it had been submitted so many times
#: its time limit later, so that gangs which are submitted after that do not overtake it.
_LIMITS_LATER = 1.75
#: A gang without a time limit, or with a longer one, is compared with others as if this were its
#: limit.
LONGEST_LIMIT: Micros = 14 * 24 * HOUR
#: Between queues, the first gang of a queue that uses its whole share is compared as if it had been
#: submitted so much later, and of one that uses a part of its share, by that part of the time.
WHOLE_SHARE_LATER: Micros = 14 * 24 * HOUR


def comparable_limit(duration: Micros | None) -> Micros:
    """The longest time that a gang takes, as far as it counts in a comparison of gangs."""
    return LONGEST_LIMIT if duration is None else min(duration, LONGEST_LIMIT)


class NodeTaint(NamedTuple):
    """A mark on a node that repels the tasks that do not tolerate it."""

    key: str
    value: str
    effect: str


class NodeFacts(NamedTuple):
    """What predicates and preferences ask about a node."""

    name: str
    labels: Mapping[str, str] = {}
    taints: tuple[NodeTaint, ...] = ()


class NodePredicate(Protocol):
    """Which nodes a task may use. Hashable; equal predicates have the same answers, and an answer
    depends on nothing but the facts."""

    def __hash__(self) -> int: ...

    @property
    def conditions(self) -> int:
        """Number of conditions that narrow the choice; 0 if ordinary nodes satisfy it."""

    def matches(self, node: NodeFacts) -> bool: ...

    def unmatched(self, closed: dict[str, str]) -> Reason:
        """The reason if no node matches but some that are closed, each with why."""


class NodePreference(Protocol):
    """Which of the nodes on which a task fits it prefers. Hashable, like a predicate."""

    def __hash__(self) -> int: ...

    def penalty(self, node: NodeFacts) -> float:
        """From 0, the best, to 1."""


class LabelsMatch(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """The predicate of a node selector: the node has all of these labels."""

    labels: tuple[tuple[str, str], ...]

    @property
    def conditions(self) -> int:
        return len(self.labels)

    def matches(self, node: NodeFacts) -> bool:
        return all(node.labels.get(key) == value for key, value in self.labels)

    def unmatched(self, closed: dict[str, str]) -> Reason:
        return NoNodeMatches(dict(self.labels), closed)


def selecting(labels: Mapping[str, str]) -> LabelsMatch | None:
    """The predicate of a node selector; None if it is empty."""
    return LabelsMatch(tuple(sorted(labels.items()))) if labels else None


class TaskRequest(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """What one task needs of its node."""

    resources: tuple[tuple[str, int], ...] = ()
    nodes: NodePredicate | None = None  #: the nodes that it may use; None: all
    per_node: int | None = None  #: at most this many tasks of its role on one node
    preference: NodePreference | None = None
    #: What the task requires of tasks around it, and what their rules ask about it: a value that
    #: the `PlacedTasks` of a capacity understand. None: no rule concerns it.
    traits: Hashable = None

    @property
    def conditions(self) -> int:
        """Number of conditions on the node."""
        return 0 if self.nodes is None else self.nodes.conditions


class RoleRequest(msgspec.Struct, frozen=True, gc=False):
    """The pending tasks of a role."""

    name: str
    request: TaskRequest
    tasks: Sequence[int]
    need: int  #: the gang starts only if so many of them are placed
    minimum: int = 0  #: the minimum of the role, including tasks that have a place
    placed: int = 0  #: number of tasks of the role that have a place


class PendingGang(msgspec.Struct, frozen=True, gc=False):
    """A gang with tasks that have no place."""

    job: str
    name: str  #: namespace/name
    version: int
    queue: str
    priority: int
    created_at: Micros
    size: int  #: number of tasks, including those that have a place
    roles: tuple[RoleRequest, ...]
    need: (
        int  #: the gang starts only with so many tasks; 0: all pending tasks are above its minimum
    )
    since: Micros | None = None  #: when it became eligible
    not_before: Micros = 0  #: the end of its backoff
    backoff_because: str = ""  #: why its last reservation was lost
    ineligible: Reason | None = None  #: why it must not be placed, whatever is free
    is_repair: bool = False  #: other tasks of it run
    above_minimum: int = 0  #: number of tasks that have a place beyond the minimum
    user: str = ""  #: empty where gangs are not ordered by user
    preemptible: bool = True
    strict: bool = True
    #: (resource, amount): it is not tried before so much is free in the cluster.
    gate: tuple[tuple[str, int], ...] = ()
    #: Names of the gangs that it starts with, in either direction; empty once it has started.
    group: tuple[str, ...] = ()
    pack: Pack | None = None
    domain: str | None = None  #: the domain in which other tasks of it run
    spread: bool = False
    avoid: tuple[str, ...] = ()
    evicts_from: Micros | None = 0  #: the time from which it may evict others; None: never
    duration: Micros | None = None  #: the longest time from its start to the end of its last task
    expires_at: Micros | None = None  #: when the first of its timeouts ends
    gathered: tuple[Assignment, ...] = ()
    nomination: Nomination | None = None
    #: (role, node, number of tasks there), for roles that limit the tasks on one node.
    placed_on: tuple[tuple[str, str, int], ...] = ()

    @property
    def aged_at(self) -> Micros:
        """When it would have been submitted, where the shortest gangs go first."""
        return self.created_at + round(_LIMITS_LATER * comparable_limit(self.duration))


class EvictionGuard(NamedTuple):
    """A limit on how many of some tasks are evicted together, whatever gangs they belong to."""

    name: str
    allowed: int


class RunningTask(msgspec.Struct, frozen=True, gc=False):
    """A task that has a place."""

    index: int
    role: str
    node: str
    resources: tuple[tuple[str, int], ...]
    devices: tuple[int, ...] = ()
    stopping: bool = False
    ends_at: Micros | None = None  #: the time by which it has certainly ended
    safe_at: Micros = 0  #: work done before this time survives a stop
    preemptible: bool = True
    priority: int | None = None  #: None: the priority of its gang
    traits: Hashable = None  #: see `TaskRequest`
    guard: EvictionGuard | None = None


class RunningGang(msgspec.Struct, frozen=True, gc=False):
    """A gang with tasks that have a place."""

    job: str
    name: str
    version: int
    queue: str
    priority: int
    created_at: Micros
    started_at: Micros
    tasks: tuple[RunningTask, ...]
    min_available: int = 0  #: of these tasks; tasks that are done have been subtracted
    role_min: tuple[tuple[str, int], ...] = ()
    preemptible: bool = True
    evictable: bool = True  #: preemptible, and nothing in its state forbids it now
    grace: Micros | None = None  #: the most work that a stop loses, if it saves when asked to
    evicted: bool = False  #: its stopping tasks were evicted, so their queue will demand them again
    guarded: bool = False  #: some of its tasks have a guard
    only_gathered: bool = False  #: nothing of it runs: these are gathered places
    size: int = 0  #: number of tasks, including those without a place
    user: str = ""  #: empty where gangs are not ordered by user
    waited: Micros = 0  #: how long it was pending before it started
    #: The gang as it is pending once it has stopped; None: it saves no checkpoints, or cannot be
    #: moved for another reason.
    restart: PendingGang | None = None
    moved_at: Micros | None = None  #: when it was last moved
    moves_to: tuple[Assignment, ...] = ()  #: the places kept for it while it stops, if it is moved

    @property
    def has_tasks_above_minimum(self) -> bool:
        """Whether it could lose single tasks and go on, or has only gathered places."""
        return self.only_gathered or len(self.tasks) > self.min_available
