"""Groups: jobs that start only together.

All jobs that are connected by the names in their `group` fields are one group, whichever of them
names the other. The group ends with its first start: from then on each job runs by itself.
"""

from phalanx.core import causes
from phalanx.core.changes import Changes
from phalanx.core.gang import Gang
from phalanx.core.handlers.stop import stop_gang
from phalanx.core.model import Phase


def others_of_group(tx: Changes, gang: Gang) -> list[str]:
    """The other unfinished jobs of its group."""
    base = tx.base
    seen = {gang.job.id}
    others: list[str] = []
    to_visit = [gang.job]
    while to_visit:
        job = to_visit.pop()
        named = (base.names.get(_split(name)) for name in job.spec.group)
        neighbours = {other for other in named if other is not None}
        neighbours |= base.wanted_by.get(job.full_name, set())
        for other in sorted(neighbours - seen):
            seen.add(other)
            others.append(other)
            to_visit.append(tx.gang(other).job)
    return others


def member_ended(tx: Changes, gang: Gang) -> None:
    """End the other jobs of a group if this one ends before the first start."""
    job = gang.job
    if job.satisfied or job.verdict is None or job.verdict is Phase.DONE:
        return
    cause = causes.group_member_ended(job.full_name, job.verdict)
    for other in others_of_group(tx, gang):
        member = tx.gang(other)
        if member.job.verdict is None and not member.job.satisfied:
            stop_gang(tx, member, cause)


def _split(name: str) -> tuple[str, str]:
    namespace, _, name = name.partition("/")
    return namespace, name
