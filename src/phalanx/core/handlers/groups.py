"""Groups: jobs that may only start when each of them can.

Who names whom does not matter: all that are connected by their names are one group. It lasts until
the first start; from then on each member is on its own.
"""

from phalanx.core import causes
from phalanx.core.changes import Changes
from phalanx.core.gang import Gang
from phalanx.core.handlers.stop import drain
from phalanx.core.model import Phase


def mates(tx: Changes, gang: Gang) -> list[str]:
    """The other unfinished jobs of its group."""
    base = tx.base
    seen = {gang.job.id}
    found: list[str] = []
    ahead = [gang.job]
    while ahead:
        job = ahead.pop()
        named = (base.names.get(_split(name)) for name in job.spec.group)
        near = {other for other in named if other is not None}
        near |= base.wanted_by.get(job.full_name, set())
        for other in sorted(near - seen):
            seen.add(other)
            found.append(other)
            ahead.append(tx.gang(other).job)
    return found


def member_ended(tx: Changes, gang: Gang) -> None:
    """A member that ends before the first start takes the others with it."""
    job = gang.job
    if job.satisfied or job.verdict is None or job.verdict is Phase.DONE:
        return
    cause = causes.group_member_ended(job.id, job.full_name, job.verdict)
    for other in mates(tx, gang):
        mate = tx.gang(other)
        if mate.job.verdict is None and not mate.job.satisfied:
            drain(tx, mate, cause)


def _split(name: str) -> tuple[str, str]:
    namespace, _, name = name.partition("/")
    return namespace, name
