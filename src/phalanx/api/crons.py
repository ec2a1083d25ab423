"""Crons: list, show, pause, resume, run, remove. Submitting a job with a schedule creates one."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

import msgspec
from litestar import Request, delete, get, post
from litestar.params import FromPath, QueryParameter

from phalanx.api.audit import ACTION, note
from phalanx.api.auth import USERS, principal_of
from phalanx.api.idempotency import IdempotencyKey, claim
from phalanx.api.services import services_of
from phalanx.api.views import warning_views
from phalanx.core.errors import Unknown
from phalanx.core.events import CronPaused, CronRemoved, CronRequested
from phalanx.core.model import Cron, cron_key
from phalanx.core.spec.native_form import native
from phalanx.engine.turn import Turn
from phalanx.identity.principal import Principal, check_namespace
from phalanx.wire.crons import CronView, LastView, RunView
from phalanx.wire.times import iso_time, iso_time_or_none

T = TypeVar("T")

Namespace = Annotated[
    str | None, QueryParameter(required=False, description="Only crons of this namespace.")
]


def cron_view(cron: Cron, warnings: Iterable[msgspec.Struct] = ()) -> CronView:
    spec, last, schedule = cron.spec, cron.last, cron.schedule
    return CronView(
        name=spec.name or "",
        namespace=spec.namespace,
        queue=spec.queue,
        cron=schedule.cron,
        timezone=schedule.timezone,
        concurrency=schedule.concurrency,
        paused=cron.paused,
        created_at=iso_time(cron.created_at),
        next_at=iso_time_or_none(cron.next_at),
        last=None if last is None else LastView(iso_time(last.at), last.what, last.job),
        runs=tuple(RunView(run.job, run.name, iso_time(run.at), run.phase) for run in cron.runs),
        spec=native(spec),
        owner=cron.owner,
        replacing_at=None if cron.replacing_at is None else iso_time(cron.replacing_at),
        warnings=warning_views(warnings),
    )


@get("/crons", opt={"allowed": USERS}, summary="List the crons")
async def list_crons(
    request: Request[Any, Any, Any], namespace: Namespace = None
) -> list[CronView]:
    """By namespace and name, of the namespaces that the caller may see."""
    principal = principal_of(request)
    if namespace is not None:
        check_namespace(principal, namespace)

    def work(turn: Turn) -> list[CronView]:
        return [
            cron_view(cron)
            for _, cron in sorted(turn.cluster.crons.items())
            if principal.may_see(cron.spec.namespace) and namespace in (None, cron.spec.namespace)
        ]

    return await services_of(request).engine.do(work)


async def _on(
    request: Request[Any, Any, Any],
    namespace: str,
    name: str,
    work: Callable[[Turn, Cron, Principal], T],
    *,
    is_repeat: bool = False,
) -> T:
    """Run a command on a cron that the caller may see. Raises Unknown."""
    principal, key = principal_of(request), cron_key(namespace, name)

    def visible(turn: Turn) -> T:
        cron = turn.cluster.crons.get(key)
        if cron is None or not principal.may_see(namespace):
            raise Unknown(f"there is no cron {key[:80]}")
        result = work(turn, cron, principal)
        if ACTION in request.route_handler.opt and not is_repeat:
            note(request, turn, namespace=namespace, target=name)
        return result

    return await services_of(request).engine.do(visible)


@get("/crons/{namespace:str}/{name:str}", opt={"allowed": USERS}, summary="Show a cron")
async def show_cron(
    request: Request[Any, Any, Any], namespace: FromPath[str], name: FromPath[str]
) -> CronView:
    return await _on(request, namespace, name, lambda turn, cron, by: cron_view(cron))


@delete(
    "/crons/{namespace:str}/{name:str}",
    opt={"allowed": USERS, "action": "remove cron", "decided_by": "ManageCron"},
    status_code=204,
    summary="Remove a cron",
)
async def remove_cron(
    request: Request[Any, Any, Any],
    namespace: FromPath[str],
    name: FromPath[str],
    key: IdempotencyKey = None,
) -> None:
    """Its unfinished runs continue."""
    async with claim(request, key) as claimed:
        if claimed.earlier is not None:
            return

        def work(turn: Turn, cron: Cron, by: Principal) -> None:
            turn.apply(CronRemoved(cron.key, by.name))
            claimed.use(turn)

        await _on(request, namespace, name, work)


@post(
    "/crons/{namespace:str}/{name:str}/pause",
    opt={"allowed": USERS, "action": "pause cron", "decided_by": "ManageCron"},
    status_code=200,
    summary="Pause a cron",
)
async def pause_cron(
    request: Request[Any, Any, Any], namespace: FromPath[str], name: FromPath[str]
) -> CronView:
    """Its unfinished runs continue."""
    return await _pause(request, namespace, name, paused=True)


@post(
    "/crons/{namespace:str}/{name:str}/resume",
    opt={"allowed": USERS, "action": "resume cron", "decided_by": "ManageCron"},
    status_code=200,
    summary="Resume a cron",
)
async def resume_cron(
    request: Request[Any, Any, Any], namespace: FromPath[str], name: FromPath[str]
) -> CronView:
    """Runs that were due during the pause are not made up for."""
    return await _pause(request, namespace, name, paused=False)


async def _pause(
    request: Request[Any, Any, Any], namespace: str, name: str, *, paused: bool
) -> CronView:
    def work(turn: Turn, cron: Cron, by: Principal) -> CronView:
        turn.apply(CronPaused(cron.key, paused, by.name))
        return cron_view(turn.cluster.crons[cron.key])

    return await _on(request, namespace, name, work)


@post(
    "/crons/{namespace:str}/{name:str}/run",
    opt={"allowed": USERS, "action": "run cron", "decided_by": "ManageCron"},
    status_code=201,
    summary="Run a cron now",
)
async def run_cron(
    request: Request[Any, Any, Any],
    namespace: FromPath[str],
    name: FromPath[str],
    key: IdempotencyKey = None,
) -> CronView:
    """The next scheduled time does not change.

    With the concurrency policy `replace`, the run starts when the unfinished one has stopped.
    """
    async with claim(request, key) as claimed:
        is_repeat = claimed.earlier is not None

        def work(turn: Turn, cron: Cron, by: Principal) -> CronView:
            if not is_repeat:
                turn.apply(CronRequested(cron.key, by.name))
                claimed.use(turn)
            return cron_view(turn.cluster.crons[cron.key])

        return await _on(request, namespace, name, work, is_repeat=is_repeat)


ROUTES = [list_crons, show_cron, remove_cron, pause_cron, resume_cron, run_cron]
