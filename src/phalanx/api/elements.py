"""Elements of arrays as jobs, also those that never became one."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from phalanx.api.services import Services
from phalanx.api.visibility import visible_cause
from phalanx.core.array import ENDS, NEVER_RAN, PHASES, UNFINISHED, WAITING, Array
from phalanx.core.causes import cancelled
from phalanx.core.cluster import Cluster
from phalanx.core.environment import element_values
from phalanx.core.gang import tasks_of
from phalanx.core.ids import split_element
from phalanx.core.model import EndState, Job, Phase, Task
from phalanx.core.reasons import After, OnHold, OtherElementsFirst, own_reason
from phalanx.core.spec.arrays import INDEX
from phalanx.core.states import State
from phalanx.engine.turn import Turn
from phalanx.identity.principal import Principal
from phalanx.wire.jobs import ElementView
from phalanx.wire.times import iso_time_or_none

#: The states of elements that ended without success.
UNSUCCESSFUL = frozenset(PHASES) - UNFINISHED - {ENDS[Phase.DONE]}


class ElementWithoutJob(NamedTuple):
    """An element of which there is no row: it is not placed yet, or it never was."""

    job: Job
    tasks: tuple[Task, ...]
    reason: OtherElementsFirst | OnHold | After | None


def live_array(cluster: Cluster, job: str) -> Array | None:
    gang = cluster.gangs.get(job)
    return gang if isinstance(gang, Array) else None


async def stored_array(services: Services, job: str) -> Array | None:
    """An array that has ended."""
    row = await services.store.job(job)
    if row is None or not row[0].is_array:
        return None
    return Array(row[0], list(await services.store.elements(job)))


def element_without_job(array: Array | None, job: str) -> ElementWithoutJob | None:
    """The element with this id, if there is one and no row of it."""
    parts = split_element(job)
    if array is None or parts is None or not parts[1].isdecimal() or len(parts[1]) > 9:
        return None
    position = array.position(int(parts[1]))
    if position is None or array.state(position) not in (WAITING, *NEVER_RAN):
        return None
    element, state = array.new_job(position), array.state(position)
    if state == WAITING:
        pending = State.PENDING if element.spec.size == 1 else State.BLOCKED
        return ElementWithoutJob(
            element, tuple(tasks_of(element.id, element.spec, pending)), _reason(array)
        )
    verdict = PHASES[state]
    cause = array.job.cause or cancelled("")
    element = replace(element, phase=verdict, end=EndState(verdict, cause))
    return ElementWithoutJob(
        element, tuple(tasks_of(element.id, element.spec, State.CANCELLED)), None
    )


def _reason(array: Array) -> OtherElementsFirst | OnHold | After:
    """Why an element waits: its array cannot start, or other elements are placed first."""
    own = own_reason(array.job, 0)
    if isinstance(own, OnHold | After):
        return own
    spec = array.job.spec.array
    return OtherElementsFirst(None if spec is None else spec.parallel)


def params_of(job: Job) -> dict[str, str]:
    return {name: value for name, value in element_values(job).items() if name != INDEX}


async def element_views(
    services: Services, array: Array, positions: Sequence[int], principal: Principal
) -> tuple[ElementView, ...]:
    def live(turn: Turn) -> dict[str, Job]:
        gangs = turn.cluster.gangs
        names = map(array.element, positions)
        return {name: gangs[name].job for name in names if name in gangs}

    rows = await services.engine.do(live)
    jobs = []
    for position in positions:
        name = array.element(position)
        job = rows.get(name)
        if job is None and array.state(position) not in (WAITING, *NEVER_RAN):
            stored = await services.store.job(name)
            job = None if stored is None else stored[0]
        if job is None:
            without = element_without_job(array, name)
            job = array.new_job(position) if without is None else without.job
        jobs.append(job)
    return tuple(element_view(job, principal) for job in jobs)


def element_view(job: Job, principal: Principal) -> ElementView:
    return ElementView(
        id=job.id,
        index=job.index or 0,
        phase=job.phase,
        attempt=job.epoch,
        params=params_of(job),
        cause=None if job.cause is None else visible_cause(principal, job.cause),
        finished_at=iso_time_or_none(job.finished_at),
    )
