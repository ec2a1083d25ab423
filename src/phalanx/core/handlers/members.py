"""Gangs that are submitted in parts: what has come waits, and is joined by what comes later.

Nothing of such a gang is placed before it has its minimum; from then on nobody joins it. What the
parts say of the gang has to agree, and no member comes twice.
"""

from collections.abc import Iterable, Iterator
from itertools import count
from typing import NamedTuple

from msgspec.structs import asdict, replace

from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict, Duplicate, Invalid, Problem
from phalanx.core.events import MembersJoined
from phalanx.core.handlers.requeue import arm_schedule_timeout
from phalanx.core.handlers.submit import tasks_of, unknown_queue
from phalanx.core.interning import shared_spec
from phalanx.core.model import Gathering, Job
from phalanx.core.records import MembersAdded
from phalanx.core.spec import quantities
from phalanx.core.spec.job import JobSpec, Role
from phalanx.core.states import Move, State

#: Of these the longest counts, whoever says it.
_LONGEST = ("grace", "time_limit")
#: A name of a role has no more characters than this.
_ROLE_CHARS = 63


class _Parts(NamedTuple):
    """What is there, and what joins it."""

    job: Job
    old: Gathering
    spec: JobSpec
    new: Gathering


def members_joined(tx: Changes, event: MembersJoined) -> None:
    if event.key is not None:
        known = tx.base.keys.get((event.spec.namespace, event.key))
        if known is not None:
            raise Duplicate(event.key, known)
    gang = tx.gang(event.job)
    job = gang.job
    if job.gathering is None or not job.awaits_members:
        raise Conflict(f"job {job.id} has all of its members; nobody can join it any more")
    parts = _Parts(job, job.gathering, event.spec, event.part)
    problems = [*_problems(parts), *unknown_queue(tx, event.spec)]
    if problems:
        raise Invalid(problems)
    gathering = _gathered(parts, event.key)
    spec = _spec(parts, gathering)
    if short := _short(spec, gathering):
        raise Invalid(short)
    # A priority that an operator has changed stays as it is.
    priority = spec.priority if job.priority == job.spec.priority else job.priority
    tx.set_job(gang, spec=shared_spec(spec), priority=priority, gathering=gathering)
    tx.set_tasks(gang, tasks_of(job.id, gang.job.spec, State.BLOCKED))
    tx.record(MembersAdded(job.id, event.part.members or ("a PodGroup",), gang.size))
    if gang.job.awaits_members:
        return
    tx.set_job(gang, waiting_since=tx.now)
    if gang.size == 1:
        tx.move(gang, gang.tasks[0], Move.MEMBERS_JOINED, State.PENDING)
    arm_schedule_timeout(tx, gang)
    tx.replan = True


def _problems(parts: _Parts) -> Iterator[Problem]:
    for name in parts.new.members:
        if name in parts.old.members:
            yield Problem(
                "name",
                f"is {name} for a member that job {parts.job.id} has already; submit each once",
            )
    if parts.old.members and parts.new.members:
        yield from _unlike(parts.old, parts.new)
    yield from _at_odds(parts)


def _unlike(old: Gathering, new: Gathering) -> Iterator[Problem]:
    for field in sorted({*old.shared, *new.shared}):
        mine, theirs = new.shared.get(field), old.shared.get(field)
        if mine != theirs:
            yield Problem(
                field,
                f"is {mine or 'not given'} for {new.members[0]}, and {theirs or 'not given'} for"
                f" {old.members[0]}, which was submitted before; members of a gang have the same",
            )


def _at_odds(parts: _Parts) -> Iterator[Problem]:
    old, new = parts.old, parts.new
    for field, weight in new.said.items():
        if field in old.shared or field in new.shared or weight != old.said.get(field):
            continue
        mine, theirs = _value(parts.spec, new, field), _value(parts.job.spec, old, field)
        if mine != theirs:
            yield Problem(
                field,
                f"is {_printed(mine)} for {_whose(new)}, and {_printed(theirs)} for {_whose(old)},"
                f" submitted before; all that is said of the gang {parts.job.name} is the same",
            )


def _value(spec: JobSpec, part: Gathering, field: str) -> object:
    if field in _LONGEST:
        return None
    return part.of if field == "min_available" else asdict(spec)[field]


def _printed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _whose(part: Gathering) -> str:
    return part.members[0] if part.members else "its PodGroup"


def _gathered(parts: _Parts, key: str | None) -> Gathering:
    old, new = parts.old, parts.new
    weights = {
        field: max(old.said.get(field, 0), new.said.get(field, 0)) for field in old.said | new.said
    }
    return Gathering(
        of=new.of if _counts_more(parts, "min_available") else old.of,
        members=(*old.members, *new.members),
        said=weights,
        shared=old.shared | new.shared,
        least=old.least | new.least,
        keys=old.keys if key is None else (*old.keys, key),
    )


def _counts_more(parts: _Parts, field: str) -> bool:
    return parts.new.said.get(field, -1) > parts.old.said.get(field, -1)


def _spec(parts: _Parts, gathering: Gathering) -> JobSpec:
    """The specification of all that has come."""
    old, new = parts.job.spec, parts.spec
    said = {
        field: getattr(new, field)
        for field in parts.new.said
        if field not in ("min_available", *_LONGEST) and _counts_more(parts, field)
    }
    for field in _LONGEST:
        if field in parts.new.said:
            both = (old, new) if field in parts.old.said else (new,)
            said[field] = max(getattr(spec, field) for spec in both)
    roles = _joined(old.roles, new.roles)
    size = sum(role.replicas for role in roles)
    is_over_all = gathering.of is not None and gathering.of < size
    return replace(
        old,
        **said,
        roles=tuple(replace(role, min=0 if is_over_all else role.replicas) for role in roles),
        min_available=gathering.of if is_over_all else size,
    )


def _joined(old: Iterable[Role], new: Iterable[Role]) -> list[Role]:
    """Equal members are replicas of one role; others are roles of their own."""
    roles = {role.name: role for role in old}
    for role in new:
        equal = next((other for other in roles.values() if _alike(other) == _alike(role)), None)
        if equal is not None:
            roles[equal.name] = replace(equal, replicas=equal.replicas + role.replicas)
        else:
            name = _free_name(role.name, roles)
            roles[name] = replace(role, name=name)
    return list(roles.values())


def _alike(role: Role) -> Role:
    return replace(role, name="", replicas=1, min=0)


def _free_name(name: str, taken: Iterable[str]) -> str:
    if name not in taken:
        return name
    numbered = (f"{name[: _ROLE_CHARS - len(str(n)) - 1]}-{n}" for n in count(1))
    return next(each for each in numbered if each not in taken)


def _short(spec: JobSpec, gathering: Gathering) -> list[Problem]:
    """What the members that may start do not ask for, though its PodGroup counts on it."""
    if gathering.of is None or spec.size < gathering.of:
        return []
    problems = []
    for name, amount in gathering.least.items():
        asked = sorted(
            share for role in spec.roles for share in [role.resources.get(name, 0)] * role.replicas
        )
        if sum(asked[: gathering.of]) < amount:
            problems.append(
                Problem(
                    f"minResources.{name}",
                    f"is {quantities.printed(name, amount)}, more than {gathering.of} of its pods"
                    " request, and is no gate of its own: cancel the gang, and let its pods"
                    " request it",
                )
            )
    return problems
