"""Pages over all jobs: the unfinished from memory, the latest first, then the finished ones.

A cursor names the last job of its page. A job that ends between two pages moves to the part that
comes later, so it may be seen twice and is never missed.
"""

import heapq
from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from phalanx.api.errors import wrong
from phalanx.api.services import Services
from phalanx.api.views import job_view, reason_of
from phalanx.core.model import ENDED, Job
from phalanx.core.reasons import Reason
from phalanx.engine.turn import Turn
from phalanx.store.protocol import JobQuery
from phalanx.store.rows import Cursor
from phalanx.wire.jobs import JobList, JobView

_LIVE = "live."
_FINISHED = "finished."


class Wanted(NamedTuple):
    query: JobQuery
    namespaces: tuple[str, ...] | None  #: those that the page is confined to; None means all

    def matches(self, job: Job) -> bool:
        query = self.query
        return (
            (self.namespaces is None or job.spec.namespace in self.namespaces)
            and (query.queue is None or job.spec.queue == query.queue)
            and (query.phase is None or job.phase is query.phase)
            and (query.name is None or job.name == query.name)
        )


async def listed(services: Services, wanted: Wanted, limit: int, cursor: str | None) -> JobList:
    page: list[JobView] = []
    if cursor is None or cursor.startswith(_LIVE):
        below = None if cursor is None else cursor.removeprefix(_LIVE)
        reasons = services.engine.reasons
        page = await services.engine.do(lambda turn: _live(turn, wanted, below, limit + 1, reasons))
        if len(page) > limit:
            return JobList(tuple(page[:limit]), f"{_LIVE}{page[limit - 1].id}")
        cursor = None
    elif not cursor.startswith(_FINISHED):
        raise _bad_cursor()
    else:
        await services.engine.do(lambda turn: None)  # a standby's view may be old
    after = None if cursor is None else cursor.removeprefix(_FINISHED)
    room = limit - len(page)
    if wanted.query.phase is not None and wanted.query.phase not in ENDED:
        return JobList(tuple(page), None)
    found = await _finished(services, wanted, room + 1, after)
    page += [job_view(job) for job in found[:room]]
    if len(found) <= room:
        return JobList(tuple(page), None)
    if room == 0:
        # The page is full; the finished ones begin on the next one.
        return JobList(tuple(page), f"{_LIVE}{page[-1].id}")
    last = found[room - 1]
    return JobList(tuple(page), f"{_FINISHED}{Cursor(last.finished_at or 0, last.id)}")


def _live(
    turn: Turn,
    wanted: Wanted,
    below: str | None,
    limit: int,
    reasons: Mapping[str, Reason],
) -> list[JobView]:
    gangs = turn.cluster.gangs
    names = (
        name
        for name, gang in gangs.items()
        if (below is None or name < below) and wanted.matches(gang.job)
    )
    latest = heapq.nlargest(limit, names)
    return [job_view(gangs[n].job, reason_of(gangs[n], reasons, turn.now)) for n in latest]


async def _finished(services: Services, wanted: Wanted, limit: int, after: str | None) -> list[Job]:
    """The next ones of every namespace, merged into one order."""
    found: list[Job] = []
    try:
        for namespace in (None,) if wanted.namespaces is None else wanted.namespaces:
            part = await services.store.finished(
                replace(wanted.query, namespace=namespace), limit=limit, cursor=after
            )
            found += part.jobs
    except ValueError:
        raise _bad_cursor() from None
    found.sort(key=lambda job: (job.finished_at or 0, job.id), reverse=True)
    return found[:limit]


def _bad_cursor() -> Exception:
    return wrong("cursor", "is not one that a page gave; begin again without it")
