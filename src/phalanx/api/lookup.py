"""Find the job or task named by a path, finished or not, if the caller may see it."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from litestar import Request
from litestar.connection import ASGIConnection

from phalanx.api.audit import note_job
from phalanx.api.auth import WORKERS, principal_of
from phalanx.api.elements import element_without_job, live_array, stored_array
from phalanx.api.services import Services, services_of
from phalanx.api.views import reason_of
from phalanx.api.visibility import visible_reason
from phalanx.core.array import elements_of, name_an_element
from phalanx.core.errors import Conflict, Unknown
from phalanx.core.gang import Gang
from phalanx.core.ids import split_claim, split_element, split_task
from phalanx.core.model import Job, Task
from phalanx.core.reasons import Reason
from phalanx.engine.turn import Turn
from phalanx.identity.principal import Principal, check_placed

T = TypeVar("T")


class JobWithTasks(NamedTuple):
    job: Job
    tasks: tuple[Task, ...]
    reason: Reason | None = None


def job_of(name: str) -> str:
    """The job's id, from its own id or from the id of one of its tasks or claims."""
    name = split_claim(name)[0]
    return name.rpartition(".")[0] or name


def unknown(name: str) -> Unknown:
    return Unknown(f"there is no job {name[:80]}")


async def find(request: ASGIConnection[Any, Any, Any, Any], name: str) -> JobWithTasks:
    """The job, from memory or from the store. Raises Unknown, also if the caller may not see it."""
    try:
        target = await _find(request, name)
    except Unknown:
        await _check_element(request, job_of(name))
        raise
    if not principal_of(request).may_see(target.job.spec.namespace):
        raise unknown(name)
    return target


async def _check_element(request: ASGIConnection[Any, Any, Any, Any], name: str) -> None:
    """Raise Unknown with the elements of the array, if the name is that of another element."""
    parts = split_element(name)
    array = None if parts is None else (await find(request, parts[0])).job
    if parts is not None and array is not None and array.is_array:
        elements = str(elements_of(array))
        raise Unknown(
            f"array {array.id} has no element {parts[1][:20]}; its elements are {elements[:80]}"
        )


async def find_task(request: Request[Any, Any, Any], name: str) -> tuple[Job, Task]:
    """The task, also by the id of a job with one task. Raises Unknown.

    A worker sees the tasks that are placed on it. Raises Forbidden for other tasks.
    """
    principal = principal_of(request)
    if principal.role not in WORKERS:
        target = await find(request, name)
        return target.job, named_task(target, name)
    target = await _find(request, name)
    task = named_task(target, name)
    nodes = await services_of(request).engine.do(lambda turn: turn.cluster.nodes)
    check_placed(principal, task.id, task.worker, nodes.get(task.worker or ""))
    return target.job, task


async def _find(request: ASGIConnection[Any, Any, Any, Any], name: str) -> JobWithTasks:
    """The job, whether or not the caller may see it. Raises Unknown."""
    name = split_claim(name)[0]
    services = services_of(request)
    job = job_of(name)
    principal, reasons = principal_of(request), services.engine.reasons
    target = await services.engine.do(lambda turn: _live(turn, job, reasons, principal))
    if target is None:
        target = await _stored(services, job)
    if target is None:
        raise unknown(name)
    if name != job and not 0 <= split_task(name)[1] < len(target.tasks):
        raise unknown(name)
    return target


async def _stored(services: Services, job: str) -> JobWithTasks | None:
    row = await services.store.job(job)
    if row is not None:
        return JobWithTasks(*row)
    parts = split_element(job)
    array = None if parts is None else await stored_array(services, parts[0])
    element = element_without_job(array, job)
    return None if element is None else JobWithTasks(*element)


def _live(turn: Turn, job: str, reasons: Any, principal: Principal) -> JobWithTasks | None:
    gangs = turn.cluster.gangs
    gang = gangs.get(job)
    if gang is None:
        parts = split_element(job)
        array = None if parts is None else live_array(turn.cluster, parts[0])
        element = element_without_job(array, job)
        return None if element is None else JobWithTasks(*element)
    reason = visible_reason(principal, reason_of(gang, reasons, turn.now), gangs)
    return JobWithTasks(gang.job, tuple(gang.tasks), reason)


def named_task(target: JobWithTasks, name: str) -> Task:
    """The task with this id, or with the id of its job if there is only one. Raises Unknown."""
    name = split_claim(name)[0]
    if name != target.job.id:
        return target.tasks[split_task(name)[1]]
    if target.job.is_array:
        raise Unknown(name_an_element(target.job))
    if not target.tasks:
        raise Unknown(f"job {name} has no tasks yet; submit the members of its gang")
    if len(target.tasks) > 1:
        raise Unknown(f"job {name} has {len(target.tasks)} tasks; name one of them, like {name}.0")
    return target.tasks[0]


async def change(
    request: Request[Any, Any, Any], name: str, work: Callable[[Turn, Gang, Principal], T]
) -> T:
    """Run a command on an unfinished job that the caller may see.

    Raises Unknown for a job that does not exist, and Conflict for one that has ended.
    """
    services, principal = services_of(request), principal_of(request)
    job = job_of(name)

    def if_visible(turn: Turn) -> T | None:
        gang = turn.cluster.gangs.get(job)
        if gang is None:
            return None
        if not principal.may_see(gang.job.spec.namespace):
            raise unknown(name)
        result = work(turn, gang, principal)
        note_job(request, turn, gang.job)
        return result

    result = await services.engine.do(if_visible)
    if result is None:
        ended = (await find(request, name)).job
        if ended.end is None:
            raise Conflict(
                f"element {ended.id} is not placed yet, because other elements are first; change"
                f" the whole array {ended.array}"
            )
        raise Conflict(f"job {ended.id} is {ended.phase}; a {ended.phase} job cannot be changed")
    return result
