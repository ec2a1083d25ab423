"""Gangs that are submitted in parts, one member or several at a time.

No task of such a gang is placed before it has all members it needs; after that none can join. What
the parts set for the gang must agree, and each member is submitted once.
"""

from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

import msgspec
from msgspec.structs import asdict, replace

from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict, Invalid, Problem
from phalanx.core.events import MembersJoined
from phalanx.core.handlers.limits import check_namespace_limits
from phalanx.core.handlers.requeue import arm_timeouts
from phalanx.core.handlers.submit import tasks_of, unknown_queue
from phalanx.core.interning import shared_spec
from phalanx.core.model import GangMembers, Job
from phalanx.core.records import MembersAdded
from phalanx.core.spec.job import JobSpec, Role
from phalanx.core.spec.schema import ROLE_LIMIT, TASK_LIMIT
from phalanx.core.states import Move, State

#: Of these fields the longest value of all parts counts.
_LONGEST = ("grace", "time_limit")
#: The longest name of a role.
_ROLE_CHARS = 63

_encode = msgspec.json.Encoder(order="deterministic").encode


class _Parts(NamedTuple):
    """The job as it is, and the part that joins it."""

    job: Job
    old: GangMembers
    spec: JobSpec  #: of the part that joins
    new: GangMembers


def members_joined(tx: Changes, event: MembersJoined) -> None:
    gang = tx.gang(event.job)
    job = gang.job
    if job.members is None or not job.awaits_members:
        raise Conflict(f"job {job.id} has all its members; no more can join")
    parts = _Parts(job, job.members, event.spec, event.part)
    problems = [*_problems(parts), *unknown_queue(tx, event.spec)]
    if problems:
        raise Invalid(problems)
    members = _joined_members(parts)
    spec = _joined_spec(parts, members)
    if problems := list(_too_many(spec)):
        raise Invalid(problems)
    check_namespace_limits(tx, event.spec, jobs=0, tasks=max(0, spec.size - gang.size))
    # A priority that an operator has changed stays.
    priority = spec.priority if job.priority == job.spec.priority else job.priority
    tx.set_job(gang, spec=shared_spec(spec), priority=priority, members=members)
    tx.set_tasks(gang, tasks_of(job.id, gang.job.spec, State.BLOCKED))
    tx.record(MembersAdded(job.id, event.part.names or ("a PodGroup",), gang.size))
    if gang.job.awaits_members:
        return
    tx.set_pending(gang, since=tx.now)
    if gang.size == 1:
        tx.move(gang, gang.tasks[0], Move.MEMBERS_JOINED, State.PENDING)
    arm_timeouts(tx, gang)
    tx.replan = True


def _problems(parts: _Parts) -> Iterator[Problem]:
    earlier = set(parts.old.names)
    for name in parts.new.names:
        if name in earlier:
            yield Problem(
                "name",
                f"is {name}, a member that job {parts.job.id} already has; submit each member once",
            )
    if parts.old.names and parts.new.names:
        yield from _differing_members(parts.old, parts.new)
    yield from _contradictions(parts)


def _differing_members(old: GangMembers, new: GangMembers) -> Iterator[Problem]:
    """The fields that must be equal in all members and are not."""
    for field in sorted({*old.shared, *new.shared}):
        mine, theirs = new.shared.get(field), old.shared.get(field)
        if mine != theirs:
            yield Problem(
                field,
                f"is {mine or 'not set'} for {new.names[0]} and {theirs or 'not set'} for"
                f" {old.names[0]}, submitted before; all members of a gang need the same value",
            )


def _contradictions(parts: _Parts) -> Iterator[Problem]:
    """The fields of the gang that both parts set, with equal weight and different values."""
    old, new = parts.old, parts.new
    for field, weight in new.weights.items():
        if field in old.shared or field in new.shared or weight != old.weights.get(field):
            continue
        mine, theirs = _value(parts.spec, new, field), _value(parts.job.spec, old, field)
        if mine != theirs:
            yield Problem(
                field,
                f"is {_printed(mine)} for {_source(new)} and {_printed(theirs)} for {_source(old)},"
                f" submitted before; all parts of gang {parts.job.name} need the same value",
            )


def _value(spec: JobSpec, part: GangMembers, field: str) -> object:
    if field in _LONGEST:
        return None
    return part.needed if field == "min_available" else asdict(spec)[field]


def _printed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _source(part: GangMembers) -> str:
    return part.names[0] if part.names else "its PodGroup"


def _joined_members(parts: _Parts) -> GangMembers:
    old, new = parts.old, parts.new
    weights = {
        field: max(old.weights.get(field, 0), new.weights.get(field, 0))
        for field in old.weights | new.weights
    }
    return GangMembers(
        needed=new.needed if _counts_more(parts, "min_available") else old.needed,
        names=(*old.names, *new.names),
        weights=weights,
        shared=old.shared | new.shared,
    )


def _counts_more(parts: _Parts, field: str) -> bool:
    return parts.new.weights.get(field, -1) > parts.old.weights.get(field, -1)


def _joined_spec(parts: _Parts, members: GangMembers) -> JobSpec:
    """The specification of the whole gang as far as it has been submitted."""
    old, new = parts.job.spec, parts.spec
    fields = {
        field: getattr(new, field)
        for field in parts.new.weights
        if field not in ("min_available", *_LONGEST) and _counts_more(parts, field)
    }
    for field in _LONGEST:
        if field in parts.new.weights:
            specs = (old, new) if field in parts.old.weights else (new,)
            fields[field] = max(getattr(spec, field) for spec in specs)
    roles = _joined_roles(old.roles, new.roles)
    size = sum(role.replicas for role in roles)
    is_elastic = members.needed is not None and members.needed < size
    return replace(
        old,
        **fields,
        roles=tuple(replace(role, min=0 if is_elastic else role.replicas) for role in roles),
        min_available=members.needed if is_elastic else size,
    )


def _joined_roles(old: Iterable[Role], new: Iterable[Role]) -> list[Role]:
    """All roles of the gang. Equal members are replicas of one role."""
    roles = {role.name: role for role in old}
    alike = {_content(role): role.name for role in roles.values()}
    #: By name: the number that was last appended to it.
    numbers: dict[str, int] = {}
    for role in new:
        equal = alike.get(_content(role))
        if equal is not None:
            merged = roles[equal]
            roles[equal] = replace(merged, replicas=merged.replicas + role.replicas)
        else:
            name = _free_name(role.name, roles, numbers)
            roles[name] = replace(role, name=name)
            alike[_content(role)] = name
    return list(roles.values())


def _content(role: Role) -> bytes:
    """Equal for members that are replicas of one role."""
    return _encode(replace(role, name="", replicas=1, min=0))


def _free_name(name: str, taken: Container[str], numbers: dict[str, int]) -> str:
    free = name
    while free in taken:
        number = numbers[name] = numbers.get(name, 0) + 1
        free = f"{name[: _ROLE_CHARS - len(str(number)) - 1]}-{number}"
    return free


def _too_many(spec: JobSpec) -> Iterator[Problem]:
    """The limits of a job that its parts exceed together."""
    for count, limit, what in (
        (len(spec.roles), ROLE_LIMIT, "different members"),
        (spec.size, TASK_LIMIT, "tasks"),
    ):
        if count > limit:
            yield Problem(
                "roles",
                f"would be {count} {what} with those submitted before; a job has at most {limit}:"
                " make the gang smaller",
            )
