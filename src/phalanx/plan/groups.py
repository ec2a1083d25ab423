"""Which gangs start together: all that are connected by the names they give."""

from collections.abc import Iterator
from typing import NamedTuple

from phalanx.core.spec.job import PackMode
from phalanx.plan.model import PendingGang
from phalanx.plan.pending import PendingGangs


class GangGroup(NamedTuple):
    members: tuple[PendingGang, ...]
    missing: tuple[str, ...]  #: names that nobody who waits has


def assembled(claim: PendingGang, waiting: PendingGangs) -> GangGroup:
    """The group of a claim, as far as it is there. Members that may not start yet are missing."""
    if not claim.group:
        return GangGroup((claim,), ())
    members = {claim.job: claim}
    missing: set[str] = set()
    ahead = [claim]
    while ahead:
        one = ahead.pop()
        for name in one.group:
            other = waiting.by_name.get(name)
            if other is None and name != one.name:
                missing.add(name)
            elif other is not None and other.job not in members:
                members[other.job] = other
                ahead.append(other)
    ordered = sorted(members.values(), key=lambda member: (member.created_at, member.name))
    ordered.sort(key=_bounds, reverse=True)
    return GangGroup(tuple(ordered), tuple(sorted(missing)))


def _bounds(claim: PendingGang) -> tuple[bool, int]:
    """What leaves a gang the least choice of nodes: a domain, labels. It is placed first."""
    required = claim.pack is not None and claim.pack.mode is PackMode.REQUIRE
    return required, max(len(part.request.selector) for part in claim.roles)


def groups_of(waiting: PendingGangs) -> Iterator[GangGroup]:
    seen: set[str] = set()
    for claim in sorted(waiting.grouped.values(), key=lambda gang: (gang.created_at, gang.name)):
        if claim.job not in seen:
            group = assembled(claim, waiting)
            seen.update(member.job for member in group.members)
            yield group
