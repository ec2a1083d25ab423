"""What the planner is told: who waits, who has places, and by which rules to decide.

These are not the core's rows: a worker, a Kubernetes node and a line of a scenario look the same.
Equal requests are one object, so that what was found out for one holds for all of them.
"""

from enum import StrEnum

import msgspec

from phalanx.core.model import Assignment, Nomination
from phalanx.core.reasons import Reason
from phalanx.core.spec.job import MINUTE, SECOND, Micros, Pack


class OrderKey(StrEnum):
    """What gangs of one queue are ordered by."""

    PRIORITY = "priority"  #: the highest first
    SIZE = "size"  #: the largest first
    CREATED = "created"  #: the oldest first


class PlannerPolicy(msgspec.Struct, frozen=True):
    """The rules that an operator can change."""

    order: tuple[OrderKey, ...] = (OrderKey.PRIORITY, OrderKey.SIZE, OrderKey.CREATED)
    starve_after: Micros = 10 * MINUTE  #: whoever waits longer is waited for
    min_runtime: Micros = 60 * SECOND  #: what started later than this ago is not reclaimed
    backfill: bool = True  #: reckon with start times for those who do not fit yet
    heads: int = 8  #: so many of them
    searches: int = 32  #: at most this many searches for victims in one pass


class TaskRequest(msgspec.Struct, frozen=True, cache_hash=True):
    """What one task needs of its node."""

    resources: tuple[tuple[str, int], ...] = ()
    selector: tuple[tuple[str, str], ...] = ()
    per_node: int | None = None  #: at most this many tasks of its role on one node


class RoleRequest(msgspec.Struct, frozen=True):
    """The waiting tasks of a role."""

    role: str
    ask: TaskRequest
    tasks: tuple[int, ...]
    need: int  #: so many of them have to be placed together
    least: int = 0  #: the minimum of the role
    here: int = 0  #: how many tasks of the role have a place


class PendingGang(msgspec.Struct, frozen=True):
    """A gang that wants places."""

    job: str
    name: str  #: namespace/name
    version: int
    queue: str
    priority: int
    created_at: Micros
    size: int  #: all of its tasks, also those that have a place
    parts: tuple[RoleRequest, ...]
    need: int  #: so many tasks over all parts; 0: what it wants is beyond its minimum
    since: Micros | None = None  #: when it became eligible
    not_before: Micros = 0  #: backoff
    blocked: Reason | None = None  #: why it may not be placed, whatever the cluster is like
    repairs: bool = False  #: a part of it runs
    beyond: int = 0  #: how many tasks have a place that it does not need
    strict: bool = True
    #: Names of those it starts with, also of those that only named it; empty once it has started.
    group: tuple[str, ...] = ()
    pack: Pack | None = None
    domain: str | None = None  #: the domain in which a part of it runs
    spread: bool = False
    avoid: tuple[str, ...] = ()
    evicts_from: Micros | None = 0  #: not before then may it evict others; None: never
    lasts: Micros | None = None  #: from its start until nothing of it can be left
    gives_up_at: Micros | None = None
    held: tuple[Assignment, ...] = ()
    held_since: Micros | None = None
    nomination: Nomination | None = None
    #: (role, node) → how many tasks of a role are there already; only for roles with a limit.
    there: tuple[tuple[str, str, int], ...] = ()


class RunningTask(msgspec.Struct, frozen=True):
    """A task where it is."""

    task: int
    role: str
    node: str
    resources: tuple[tuple[str, int], ...]
    devices: tuple[int, ...] = ()
    leaving: bool = False  #: it was told to stop
    ends_at: Micros | None = None  #: nothing of it can be left then
    safe_at: Micros = 0  #: what it did up to here would survive a stop
    preemptible: bool = True
    priority: int | None = None  #: where it is not its gang's


class RunningGang(msgspec.Struct, frozen=True):
    """A gang that has places."""

    job: str
    name: str
    version: int
    queue: str
    priority: int
    created_at: Micros
    started_at: Micros
    places: tuple[RunningTask, ...]
    min_available: int = 0  #: of its places; what is done already does not have to stay
    role_min: tuple[tuple[str, int], ...] = ()
    evictable: bool = True
    grace: Micros | None = None  #: the most that a stop can lose, if it saves when asked to
    evicted: bool = False  #: what is leaving of it makes room for others
    holds: bool = False  #: nothing of it runs: these are places that it keeps
