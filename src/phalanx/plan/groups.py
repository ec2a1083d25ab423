"""Which gangs start together: all that are connected by the names they give."""

from collections.abc import Iterator
from typing import NamedTuple

from phalanx.plan.model import Claim
from phalanx.plan.waiting import Waiting


class Group(NamedTuple):
    members: tuple[Claim, ...]
    missing: tuple[str, ...]  #: names that nobody who waits has


def assembled(claim: Claim, waiting: Waiting) -> Group:
    """The group of a claim, as far as it is there. Members that may not start yet are missing."""
    if not claim.group:
        return Group((claim,), ())
    present = waiting.grouped
    by_name = {other.name: other for other in present.values()}
    members = {claim.job: claim}
    missing: set[str] = set()
    ahead = [claim]
    while ahead:
        one = ahead.pop()
        near = [other for other in present.values() if one.name in other.group]
        for name in one.group:
            if name in by_name:
                near.append(by_name[name])
            elif name != one.name:
                missing.add(name)
        for other in near:
            if other.job not in members:
                members[other.job] = other
                ahead.append(other)
    ordered = sorted(members.values(), key=lambda member: (member.created_at, member.name))
    return Group(tuple(ordered), tuple(sorted(missing)))


def groups_of(waiting: Waiting) -> Iterator[Group]:
    seen: set[str] = set()
    for claim in waiting.grouped.values():
        if claim.job not in seen:
            group = assembled(claim, waiting)
            seen.update(member.job for member in group.members)
            yield group
