"""Pages of jobs, newest first: unfinished jobs from memory, merged with finished ones of the store.

The order is (created_at, id), descending, and a cursor names the last job of its page. A job keeps
its place in that order when it ends, so no page repeats or skips a job.
"""

import heapq
from typing import NamedTuple

from msgspec.structs import replace

from phalanx.api.errors import wrong
from phalanx.api.lookup import JobWithTasks
from phalanx.api.plain_views import plain_task_views
from phalanx.api.progress_views import progress_view
from phalanx.api.services import Services
from phalanx.api.views import job_view, reason_of
from phalanx.api.visibility import visible_reason
from phalanx.core.model import ENDED, Job
from phalanx.engine.progress_board import ProgressBoard
from phalanx.engine.turn import Turn
from phalanx.identity.principal import Principal
from phalanx.store.pages import Cursor
from phalanx.store.protocol import JobQuery
from phalanx.wire.jobs import JobList, JobView
from phalanx.wire.plain import PlainTaskView

#: A page of tasks has no further job after so many.
_MANY_TASKS = 10_000
#: A long page is made in parts, so that it delays no other request.
_VIEWS_PER_TURN = 100


class JobFilter(NamedTuple):
    principal: Principal
    query: JobQuery
    namespaces: tuple[str, ...] | None  #: those that the caller may see; None means all
    finished: bool | None = None  #: only finished jobs, only unfinished ones, or both

    @property
    def may_be_finished(self) -> bool:
        return self.finished is not False and (
            self.query.phase is None or self.query.phase in ENDED
        )

    def matches(self, job: Job) -> bool:
        """Whether an unfinished job belongs on the page."""
        query = self.query
        return (
            self.finished is not True
            and job.array is None
            and (self.namespaces is None or job.spec.namespace in self.namespaces)
            and (query.queue is None or job.spec.queue == query.queue)
            and (query.phase is None or job.phase is query.phase)
            and (query.name is None or job.name == query.name)
            and (query.id_prefix is None or job.id.startswith(query.id_prefix))
            and (query.name_contains is None or query.name_contains in job.name)
        )


async def page_of_jobs(
    services: Services, wanted: JobFilter, limit: int, cursor: str | None
) -> JobList:
    """One page. Raises Invalid on a cursor that no page gave."""
    last = None if cursor is None else _parsed(cursor)
    # Memory first: a job that ends in between is in both, and none is in neither.
    live = await services.engine.do(lambda turn: _live_keys(turn, wanted, last, limit + 1))
    finished: dict[Cursor, Job] = {}
    if wanted.may_be_finished:
        jobs = await _finished(services, wanted, last, limit + 1)
        finished = {_key(job): job for job in jobs}
    keys = sorted({*live, *finished}, reverse=True)
    page: list[JobView] = []
    for start in range(0, min(limit, len(keys)), _VIEWS_PER_TURN):
        part = keys[start : min(limit, start + _VIEWS_PER_TURN)]
        page += await _views(services, wanted.principal, part, finished)
    return JobList(tuple(page), str(keys[limit - 1]) if len(keys) > limit else None)


def _key(job: Job) -> Cursor:
    return Cursor(job.created_at, job.id)


async def _views(
    services: Services, principal: Principal, keys: list[Cursor], finished: dict[Cursor, Job]
) -> list[JobView]:
    board = services.agent_sync.progress
    live = await services.engine.do(lambda turn: _live_views(turn, principal, keys, services))
    views = []
    for key in keys:
        view = live.get(key)
        if view is None:
            job = finished.get(key) or await _ended(services, key)
            view = None if job is None else _finished_view(job, principal, board)
        if view is not None:
            views.append(view)
    return views


async def _ended(services: Services, key: Cursor) -> Job | None:
    """A job that ended while the page was made."""
    stored = await services.store.job(key.id)
    return None if stored is None else stored[0]


def _live_views(
    turn: Turn, principal: Principal, keys: list[Cursor], services: Services
) -> dict[Cursor, JobView]:
    gangs = turn.cluster.gangs
    reasons, board = services.engine.reasons, services.agent_sync.progress
    views = {}
    for key in keys:
        gang = gangs.get(key.id)
        if gang is None:
            continue
        reason = visible_reason(principal, reason_of(gang, reasons, turn.now), gangs)
        view = job_view(gang.job, principal, reason)
        reported = board.job(gang.job.id)
        if reported is not None:
            view = replace(view, progress=progress_view(reported, gang.tasks, turn.now))
        views[key] = view
    return views


def _live_keys(turn: Turn, wanted: JobFilter, last: Cursor | None, limit: int) -> list[Cursor]:
    """The newest unfinished jobs after the last one of the page before."""
    # Mostly newest first already, which is where `nlargest` is fast.
    gangs, matches = reversed(turn.cluster.gangs.values()), wanted.matches
    keys = ((job.created_at, job.id) for gang in gangs if matches(job := gang.job))
    older = keys if last is None else (key for key in keys if key < last)
    return [Cursor(*key) for key in heapq.nlargest(limit, older)]


async def page_of_tasks(
    services: Services, wanted: JobFilter, limit: int, cursor: str | None
) -> tuple[list[PlainTaskView], str | None]:
    """The tasks of one page of jobs, and the cursor of the next page.

    A page ends early after the job with which it has very many tasks. Raises Invalid on a cursor
    that no page gave.
    """
    last = None if cursor is None else _parsed(cursor)

    def live(turn: Turn) -> dict[Cursor, JobWithTasks]:
        gangs = turn.cluster.gangs
        page = ((key, gangs[key.id]) for key in _live_keys(turn, wanted, last, limit + 1))
        return {key: JobWithTasks(gang.job, tuple(gang.tasks)) for key, gang in page}

    page = await services.engine.do(live)
    keys = set(page)
    if wanted.may_be_finished:
        keys |= {_key(job) for job in await _finished(services, wanted, last, limit + 1)}
    tasks: list[PlainTaskView] = []
    ordered = sorted(keys, reverse=True)
    for number, key in enumerate(ordered[:limit], 1):
        row = page.get(key) or await services.store.job(key.id)
        if row is not None:
            tasks += plain_task_views(row[0], row[1])
        if number < len(ordered) and (number == limit or len(tasks) >= _MANY_TASKS):
            return tasks, str(key)
    return tasks, None


def _finished_view(job: Job, principal: Principal, board: ProgressBoard) -> JobView:
    view, reported = job_view(job, principal), board.job(job.id)
    return view if reported is None else replace(view, progress=progress_view(reported, (), 0))


async def _finished(
    services: Services, wanted: JobFilter, last: Cursor | None, limit: int
) -> list[Job]:
    """The newest finished jobs of each namespace."""
    cursor = None if last is None else str(last)
    jobs: list[Job] = []
    for namespace in (None,) if wanted.namespaces is None else wanted.namespaces:
        query = replace(wanted.query, namespace=namespace)
        page = await services.store.finished_jobs(query, limit=limit, cursor=cursor)
        jobs += page.jobs
    return jobs


def _parsed(cursor: str) -> Cursor:
    try:
        return Cursor.parse(cursor)
    except ValueError:
        raise wrong("cursor", "is not the cursor of a page; begin again without one") from None
