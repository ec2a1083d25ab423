"""Gangs that are submitted in parts, one member or several at a time.

No task of such a gang is placed before it has all members it needs. Members that come later join
as ordinary tasks, whatever the gang does at that time. What the parts set for the gang must agree,
and each member is submitted once.
"""

from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

import msgspec
from msgspec.structs import asdict, replace

from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict, Invalid, Problem
from phalanx.core.events import MembersJoined
from phalanx.core.gang import Gang, tasks_of
from phalanx.core.handlers.limits import check_namespace_limits
from phalanx.core.handlers.requeue import arm_timeouts
from phalanx.core.handlers.submit import unknown_queue
from phalanx.core.interning import shared_spec
from phalanx.core.model import GangMembers, Job, PendingState
from phalanx.core.queues import check_namespace_of_queue, check_priority_in_queue
from phalanx.core.records import MembersAdded
from phalanx.core.spec.job import JobSpec, Role
from phalanx.core.spec.references import has_ordinal
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
    if job.members is None:
        raise Conflict(f"job {job.id} was not submitted as pods; no member can join it")
    if job.is_ending:
        raise Conflict(f"job {job.id} is {job.phase}; submit the members again when it has stopped")
    parts = _Parts(job, job.members, event.spec, event.part)
    is_settled = not _was_never_placed(job)
    problems = [*_problems(parts, is_settled=is_settled), *unknown_queue(tx, event.spec)]
    if problems:
        raise Invalid(problems)
    members = _joined_members(parts)
    spec = _grown_spec(parts, members) if is_settled else _joined_spec(parts, members)
    if problems := list(_too_many(spec)):
        raise Invalid(problems)
    check_namespace_of_queue(tx.base.queues, spec.queue, spec.namespace)
    check_priority_in_queue(tx.base.queues, spec.queue, spec.priority)
    check_namespace_limits(tx, event.spec, jobs=0, tasks=max(0, spec.size - gang.size))
    if is_settled:
        _add_tasks(tx, gang, spec, members)
    else:
        _set_tasks(tx, gang, spec, members)
    tx.record(MembersAdded(job.id, event.part.names or ("a PodGroup",), gang.size))
    tx.replan = True


def _was_never_placed(job: Job) -> bool:
    """Whether no task has had a place or keeps one, so that the gang can be put together anew."""
    pending = job.pending
    keeps = pending is not None and (pending.gathered or pending.nomination)
    return job.epoch == 0 and not job.satisfied and not keeps


def _set_tasks(tx: Changes, gang: Gang, spec: JobSpec, members: GangMembers) -> None:
    """Put the gang together anew, from the members before and the new ones."""
    job = gang.job
    # A priority that an operator has changed stays.
    priority = spec.priority if job.priority == job.spec.priority else job.priority
    tx.set_job(gang, spec=shared_spec(spec), priority=priority, members=members)
    tx.set_tasks(gang, tasks_of(job.id, gang.job.spec, State.BLOCKED))
    pending = gang.job.pending or PendingState()
    if gang.job.awaits_members:
        tx.set_pending(gang, since=None)
        return
    is_eligible = not pending.after
    if is_eligible:
        tx.set_pending(gang, since=tx.now if pending.since is None else pending.since)
    if gang.size == 1 and is_eligible:
        tx.move(gang, gang.tasks[0], Move.MEMBERS_JOINED, State.PENDING)
    arm_timeouts(tx, gang)


def _add_tasks(tx: Changes, gang: Gang, spec: JobSpec, members: GangMembers) -> None:
    """Add the new members behind the others, whose indices stay."""
    if gang.size == 1 and gang.tasks[0].state is State.PENDING:
        tx.move(gang, gang.tasks[0], Move.MEMBERS_JOINED, State.BLOCKED)
    tx.set_job(gang, spec=shared_spec(spec), members=members)
    tx.add_tasks(gang, tasks_of(gang.job.id, gang.job.spec, State.BLOCKED)[gang.size :])


def _problems(parts: _Parts, *, is_settled: bool) -> Iterator[Problem]:
    earlier = set(parts.old.names)
    for name in parts.new.names:
        if name in earlier:
            yield Problem(
                "name",
                f"is {name}, a member that job {parts.job.id} already has; submit each member once",
            )
    if parts.old.names and parts.new.names:
        yield from _differing_members(parts.old, parts.new)
    yield from _contradictions(parts, is_settled=is_settled)


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


def _contradictions(parts: _Parts, *, is_settled: bool) -> Iterator[Problem]:
    """The fields of the gang that both parts set, with equal weight and different values; once
    it is settled, all fields in which the new part differs and does not count less."""
    old, new = parts.old, parts.new
    for field, weight in new.weights.items():
        if field in old.shared or field in new.shared:
            continue
        before = old.weights.get(field, -1)
        if weight < before or (weight > before and not is_settled):
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
        total=old.total if new.total is None else new.total,
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
    return _with_roles(replace(old, **fields), _joined_roles(old.roles, new.roles), members)


def _grown_spec(parts: _Parts, members: GangMembers) -> JobSpec:
    """The specification of a gang that has been placed, with the new members behind the others.

    Of the gang only its longest grace period can change.
    """
    old, new = parts.job.spec, parts.spec
    grace = max(old.grace, new.grace) if "grace" in parts.new.weights else old.grace
    if not old.roles:
        raise AssertionError(f"bug: job {parts.job.id} was placed without roles")
    last = old.roles[-1]
    roles = [*old.roles[:-1], *_joined_roles([last], new.roles, taken=old.roles)]
    return _with_roles(replace(old, grace=grace), roles, members)


def _with_roles(spec: JobSpec, roles: Iterable[Role], members: GangMembers) -> JobSpec:
    """The specification with these roles. The gang is elastic if it has more than its minimum."""
    roles = tuple(roles)
    size = sum(role.replicas for role in roles)
    is_elastic = members.needed is not None and members.needed < size
    return replace(
        spec,
        roles=tuple(replace(role, min=0 if is_elastic else role.replicas) for role in roles),
        min_available=members.needed if is_elastic else size,
    )


def _joined_roles(
    old: Iterable[Role], new: Iterable[Role], taken: Iterable[Role] = ()
) -> list[Role]:
    """The old roles and the new ones. Equal members are replicas of one role. The names of the
    `taken` roles are not used again."""
    roles = {role.name: role for role in old}
    names = {*roles, *(role.name for role in taken)}
    alike = {_content(role): role.name for role in roles.values()}
    #: By name: the number that was last appended to it.
    numbers: dict[str, int] = {}
    for role in new:
        equal = None if has_ordinal(role.env.values()) else alike.get(_content(role))
        if equal is not None:
            merged = roles[equal]
            roles[equal] = replace(merged, replicas=merged.replicas + role.replicas)
        else:
            name = _free_name(role.name, names, numbers)
            names.add(name)
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
