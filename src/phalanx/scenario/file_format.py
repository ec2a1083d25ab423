"""The fields of a scenario file, read into plain values. An unknown field is an error.

A field that the file omits is None here; defaults that depend on other fields are set elsewhere.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from phalanx.core.model import PreemptWithin, Queue, ReclaimFrom
from phalanx.core.spec import quantities
from phalanx.core.spec.fields import (
    REQUIRED,
    Field,
    FieldPath,
    Reader,
    as_is,
    as_key,
    boolean,
    distinct,
    integer,
    items,
    mapping,
    one_of,
    read_table,
    refusal,
    shown,
    text,
    texts,
)
from phalanx.core.spec.job import Match, Mode, Pack, PackMode, PreemptionPolicy, Resources, Restart
from phalanx.core.time_units import SECOND, Micros
from phalanx.plan.model import OrderKey, PlannerPolicy

T = TypeVar("T")

#: The largest number and the largest weight that a file may contain.
_LARGEST = 1_000_000_000
_LARGEST_WEIGHT = 1_000_000
_whole = integer(0, _LARGEST)
_signed = integer(-_LARGEST, _LARGEST)


class TaskState(StrEnum):
    """The state of a task that has a place."""

    RUNNING = "running"
    RESERVED = "reserved"
    PREEMPTING = "preempting"


class NodeEntry(msgspec.Struct, frozen=True):
    """A node of the file."""

    name: str
    resources: Resources
    labels: dict[str, str]


class TaskEntry(msgspec.Struct, frozen=True):
    """A task of the file."""

    name: str
    node: str | None
    resources: Resources
    role: str
    node_selector: dict[str, str]
    state: TaskState
    held: str | None  #: the node of its gathered place
    preemptible: bool | None
    priority: int | None


class GangEntry(msgspec.Struct, frozen=True):
    """A gang as one list names it. A gang may be listed as running and as pending."""

    gang: str
    tasks: tuple[TaskEntry, ...]
    queue: str | None
    user: str | None
    priority: int | None
    min_available: int | None
    preemptible: bool | None
    preemption_policy: PreemptionPolicy | None
    submit_order: int | None
    min_per_role: dict[str, int] | None
    topology: Pack | None
    spread: bool | None
    mode: Mode | None
    match: Match | None
    group: tuple[str, ...] | None
    restart: Restart | None
    schedule_timeout_s: Micros | None
    gather_timeout_s: Micros | None
    min_resources: Resources
    waiting_s: Micros | None
    time_limit_s: Micros | None
    started_s_ago: Micros | None
    checkpointed_s_ago: Micros | None
    moved_s_ago: Micros | None
    finished_members: int | None
    satisfied: bool | None


class ScenarioFile(msgspec.Struct, frozen=True):
    """A scenario as its file gives it."""

    name: str
    policy: PlannerPolicy
    nodes: tuple[NodeEntry, ...]
    queues: tuple[Queue, ...]
    unused_shares: dict[str, Resources]
    running: tuple[GangEntry, ...]
    pending: tuple[GangEntry, ...]
    expect: Any  #: read by `expectation`


def read_scenario_file(document: object) -> ScenarioFile:
    """The fields of a document, or `Invalid` with every problem in it."""
    fields = read_table(document, "a scenario: a mapping with nodes, queues, …", _SCENARIO)
    return ScenarioFile(**{name: fields[name] for name in ScenarioFile.__struct_fields__})


# Readers


def duration(value: object) -> Micros:
    """Seconds, perhaps with a fraction."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refusal(f"is {shown(value)}; write a number of seconds")
    if not 0 <= value <= _LARGEST:
        raise refusal(f"is {shown(value)}; it must be from 0 to {_LARGEST}")
    return round(value * SECOND)


def _weight(value: object) -> int:
    """A weight in thousandths: only the ratio of weights counts, so fractions are possible."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refusal(f"is {shown(value)}; write a number, like 2 or 0.5")
    if not 0 <= value <= _LARGEST_WEIGHT:
        raise refusal(f"is {shown(value)}; it must be from 0 to {_LARGEST_WEIGHT}")
    return round(value * 1000)


def many(what: str, read: Reader[T]) -> Reader[tuple[T, ...]]:
    """A reader of a list. `what` describes the list in an error message."""

    def read_all(value: object) -> tuple[T, ...]:
        path = FieldPath()
        results = []
        for index, item in enumerate(items(value, what)):
            with path.at(index):
                results.append(read(item))
        path.raise_problems()
        return tuple(results)

    return read_all


def by_name(what: str, read: Reader[T]) -> Reader[dict[str, T]]:
    """A reader of a mapping. `what` describes the mapping in an error message."""

    def read_all(value: object) -> dict[str, T]:
        path = FieldPath()
        results: dict[str, T] = {}
        for key, item in mapping(value, what).items():
            with path.at(as_key(key)):
                results[text(key)] = read(item)
        path.raise_problems()
        return results

    return read_all


def _struct(kind: Callable[..., T], what: str, table: Mapping[str, Field]) -> Reader[T]:
    """A reader of a mapping with the fields of a table."""
    return lambda value: kind(**read_table(value, what, table))


def _label(value: object) -> str:
    """A label's value. YAML reads a value like 7 as a number; here it is text."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_number else text(value)


_labels = texts("a mapping of labels, like {rack: r1}", text, _label)


def _topology(value: object) -> Pack:
    """The label by which a gang is packed, required or preferred."""
    given = read_table(
        value,
        "{required: LABEL} or {preferred: LABEL}",
        {"required": Field(text), "preferred": Field(text)},
    )
    if (given["required"] is None) == (given["preferred"] is None):
        raise refusal("names both or neither of required and preferred; keep one of them")
    if given["required"] is not None:
        return Pack(given["required"], PackMode.REQUIRE)
    return Pack(given["preferred"], PackMode.PREFER)


def _policy(value: object) -> PlannerPolicy:
    """The planner's policy; settings that the file omits have their defaults."""
    given = read_table(value, "a mapping, like {order: [priority, created]}", _POLICY)
    named = {name: name.removesuffix("_s") for name in _POLICY}
    return PlannerPolicy(
        **{named.get(key, key): read for key, read in given.items() if read is not None}
    )


def _factor(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1000:
        raise refusal(f"is {shown(value)}; write a number from 0 to 1000")
    return float(value)


def _order(value: object) -> tuple[OrderKey, ...]:
    """The keys by which the gangs of a queue are ordered."""
    keys = many("a list of priority, size, created, shortest and user", one_of(OrderKey))(value)
    if not keys or len(set(keys)) < len(keys):
        raise refusal("is empty or names a key twice; name each key once")
    return keys


_POLICY = {
    "order": Field(_order),
    "starve_after_s": Field(duration),
    "max_wait": Field(_factor),
    "share_half_life_s": Field(duration),
    "min_runtime_s": Field(duration),
    "move_work": Field(_factor),
    "move_cooldown_s": Field(duration),
    "backfill": Field(boolean),
}

_NODE = {
    "name": Field(text, REQUIRED),
    "resources": Field(quantities.capacity, {}),
    "labels": Field(_labels, {}),
}

_QUEUE = {
    "name": Field(text, REQUIRED),
    "parent": Field(text),
    "weight": Field(_weight, 1),
    "quota": Field(quantities.allowance, {}),
    "limit": Field(quantities.allowance, {}),
    "stopped": Field(boolean, default=False),
    "priority": Field(_signed, 0),
    "preempt_within_queue": Field(one_of(PreemptWithin), PreemptWithin.LOWER_PRIORITY.value),
    "reclaim_from_siblings": Field(one_of(ReclaimFrom), ReclaimFrom.ANY.value),
    "reclaimable": Field(boolean, default=True),
    "non_preemptible_within_quota": Field(boolean, default=False),
    "consolidation": Field(boolean, default=False),
}

_TASK = {
    "name": Field(text, REQUIRED),
    "node": Field(text),
    "resources": Field(quantities.resources, {}),
    "role": Field(text, "worker"),
    "node_selector": Field(_labels, {}),
    "state": Field(one_of(TaskState), TaskState.RUNNING.value),
    "held": Field(text),
    "preemptible": Field(boolean),
    "priority": Field(_signed),
}

_GANG = {
    "gang": Field(text, REQUIRED),
    "tasks": Field(many("a list of tasks", _struct(TaskEntry, "a task", _TASK)), REQUIRED),
    "queue": Field(text),
    "user": Field(text),
    "priority": Field(_signed),
    "min_available": Field(_whole),
    "preemptible": Field(boolean),
    "preemption_policy": Field(one_of(PreemptionPolicy)),
    "submit_order": Field(_signed),
    "min_per_role": Field(by_name("a mapping of roles to numbers", _whole)),
    "topology": Field(_topology),
    "spread": Field(boolean),
    "mode": Field(one_of(Mode)),
    "match": Field(one_of(Match)),
    "group": Field(distinct("a list of gangs", text)),
    "restart": Field(one_of(Restart)),
    "schedule_timeout_s": Field(duration),
    "gather_timeout_s": Field(duration),
    "min_resources": Field(quantities.resources, {}),
    "waiting_s": Field(duration),
    "time_limit_s": Field(duration),
    "started_s_ago": Field(duration),
    "checkpointed_s_ago": Field(duration),
    "moved_s_ago": Field(duration),
    "finished_members": Field(_whole),
    "satisfied": Field(boolean),
}

_gangs = many("a list of gangs", _struct(GangEntry, "a gang", _GANG))

#: Fields that describe the case to people; the planner does not use them.
_ABOUT = ("source", "tier", "tags", "controversial", "note", "asserted_by_source")

_SCENARIO = {
    "name": Field(text, REQUIRED),
    "policy": Field(_policy, {}),
    "nodes": Field(many("a list of nodes", _struct(NodeEntry, "a node", _NODE)), []),
    "queues": Field(many("a list of queues", _struct(Queue, "a queue", _QUEUE)), []),
    "unused_shares": Field(by_name("a mapping of queues to amounts", quantities.allowance), {}),
    "running": Field(_gangs, []),
    "pending": Field(_gangs, []),
    "expect": Field(as_is),
    **{name: Field(as_is) for name in _ABOUT},
}
