"""Groups: gangs that start together, because they are connected by the names in their groups."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from phalanx.core.spec.job import PackMode
from phalanx.plan.model import PendingGang
from phalanx.plan.pending import PendingGangs


class GangGroup(NamedTuple):
    members: tuple[PendingGang, ...]
    missing: tuple[str, ...]  #: names of members that are not pending, or not eligible yet


def group_of(gang: PendingGang, pending: PendingGangs) -> GangGroup:
    """The group of a gang; the gang alone if it starts by itself."""
    if not gang.group:
        return GangGroup((gang,), ())
    members = {gang.job: gang}
    missing: set[str] = set()
    ahead = [gang]
    while ahead:
        member = ahead.pop()
        for name in member.group:
            other = pending.by_name.get(name)
            if other is None and name != member.name:
                missing.add(name)
            elif other is not None and other.job not in members:
                members[other.job] = other
                ahead.append(other)
    ordered = sorted(members.values(), key=_age)
    ordered.sort(key=_constraints, reverse=True)
    return GangGroup(tuple(ordered), tuple(sorted(missing)))


def last_member(gangs: Sequence[PendingGang]) -> PendingGang:
    """The member with the lowest priority and the latest creation; the group is served with its
    queue."""
    return max(gangs, key=lambda gang: (-gang.priority, gang.created_at, gang.name))


def _age(gang: PendingGang) -> tuple[int, str]:
    return gang.created_at, gang.name


def _constraints(gang: PendingGang) -> tuple[bool, int]:
    """How constrained the choice of nodes is: by a domain, by labels. Those are placed first."""
    required = gang.pack is not None and gang.pack.mode is PackMode.REQUIRE
    return required, max(role.request.conditions for role in gang.roles)


def groups_of(pending: PendingGangs) -> Iterator[GangGroup]:
    """All groups with a pending member, each once."""
    seen: set[str] = set()
    for gang in sorted(pending.grouped.values(), key=_age):
        if gang.job not in seen:
            group = group_of(gang, pending)
            seen.update(member.job for member in group.members)
            yield group
