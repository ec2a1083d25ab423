"""Arrays: list their elements, cancel and retry some of them."""

from functools import partial
from itertools import islice
from typing import Annotated, Any

from litestar import Request, get
from litestar.params import FromPath, QueryParameter

from phalanx.api.audit import note_job
from phalanx.api.auth import USERS, principal_of
from phalanx.api.elements import UNSUCCESSFUL, element_views, live_array, stored_array
from phalanx.api.errors import wrong
from phalanx.api.lookup import find, unknown
from phalanx.api.services import services_of
from phalanx.api.views import job_view
from phalanx.core.array import NEVER_RAN, PHASES, Array
from phalanx.core.errors import Conflict, Invalid
from phalanx.core.events import ElementsCancelled, ElementsRetried
from phalanx.core.ids import element_id
from phalanx.core.model import Job, Phase
from phalanx.core.spec.arrays import selected
from phalanx.engine.idempotency import ClaimedKey
from phalanx.engine.turn import Turn
from phalanx.wire.jobs import ElementList, ElementView, JobView

#: Failed elements that the view of an array shows.
_FIRST_FAILED = 5
#: Positions have fewer digits.
_CURSOR_DIGITS = 9

Elements = Annotated[
    str | None, QueryParameter(description="Only these elements of an array, such as 3-5.")
]
InPhase = Annotated[Phase | None, QueryParameter(description="Only elements in this phase.")]
NeverRan = Annotated[
    bool | None,
    QueryParameter(description="Only elements that ended without an attempt, or only others."),
]
Limit = Annotated[int, QueryParameter(ge=1, le=1000, description="The most entries on a page.")]
PageCursor = Annotated[
    str | None, QueryParameter(description="The `cursor` of the page before this one.")
]


@get(
    "/jobs/{job_id:str}/elements",
    opt={"allowed": USERS},
    summary="List the elements of an array",
)
async def list_elements(  # noqa: PLR0913, PLR0917
    request: Request[Any, Any, Any],
    job_id: FromPath[str],
    phase: InPhase = None,
    never_ran: NeverRan = None,
    limit: Limit = 100,
    cursor: PageCursor = None,
) -> ElementList:
    """In the order of the array."""
    states = {state for state, each in PHASES.items() if phase in (None, each)}
    if never_ran is not None:
        states &= NEVER_RAN if never_ran else PHASES.keys() - NEVER_RAN
    if cursor is not None and not (cursor.isdecimal() and len(cursor) <= _CURSOR_DIGITS):
        raise wrong("cursor", "is not the cursor of a page; begin again without one")
    array = await _array(request, job_id)
    first = int(cursor or 0)
    positions = (position for position in array.positions(states) if position >= first)
    page = list(islice(positions, limit + 1))
    views = await element_views(services_of(request), array, page[:limit], principal_of(request))
    return ElementList(views, str(page[limit]) if len(page) > limit else None)


async def _array(request: Request[Any, Any, Any], job_id: str) -> Array:
    """The array, live or not, if the caller may see it. Raises Unknown or Conflict."""
    services = services_of(request)
    job = (await find(request, job_id)).job
    if not job.is_array:
        raise Conflict(f"job {job_id} is not an array; it has no elements")
    array = await services.engine.do(lambda turn: live_array(turn.cluster, job.id))
    array = array or await stored_array(services, job.id)
    if array is None:
        raise unknown(job_id)
    return array


async def first_failed(request: Request[Any, Any, Any], job_id: str) -> tuple[ElementView, ...]:
    """The first elements of an array that ended without success, after an attempt."""
    array = await _array(request, job_id)
    first = list(islice(array.positions(UNSUCCESSFUL - NEVER_RAN), _FIRST_FAILED))
    return await element_views(services_of(request), array, first, principal_of(request))


def _selected(job: Job, elements: str) -> tuple[int, ...]:
    """The indices that a caller names. Raises Invalid, Unknown or Conflict."""
    if job.spec.array is None or not job.is_array:
        raise Conflict(f"job {job.id} is not an array; it has no elements")
    try:
        return tuple(selected(job.spec.array, elements))
    except Invalid as error:
        raise wrong("elements", error.problems[0].message) from None


async def cancel_elements(request: Request[Any, Any, Any], array_id: str, elements: str) -> JobView:
    """Cancel elements of an array: the view of the element, or of the array for several."""
    principal = principal_of(request)

    def work(turn: Turn) -> Job | None:
        array = live_array(turn.cluster, array_id)
        if array is None or not principal.may_see(array.job.spec.namespace):
            return None
        indices = _selected(array.job, elements)
        changes = turn.apply(ElementsCancelled(array_id, indices, principal.name))
        note_job(request, turn, array.job)
        gang = changes.gangs.get(element_id(array_id, indices[0])) if len(indices) == 1 else None
        return (gang or changes.gangs[array_id]).job

    job = await services_of(request).engine.do(work)
    if job is None:
        ended = (await find(request, array_id)).job
        _selected(ended, elements)
        raise Conflict(f"array {ended.id} is {ended.phase}; its elements cannot be cancelled")
    return job_view(job, principal)


async def retry_elements(
    request: Request[Any, Any, Any], array_id: str, elements: str | None, key: ClaimedKey
) -> JobView:
    """Run elements of an array again; None: those that ended without success."""
    principal = principal_of(request)
    while True:
        array = await _array(request, array_id)
        if key.earlier is not None:
            return job_view(array.job, principal)
        indices = None if elements is None else _selected(array.job, elements)
        job = await services_of(request).engine.do(
            partial(_retry_in_turn, request, array, indices, key)
        )
        if job is not None:
            return job_view(job, principal)


def _retry_in_turn(
    request: Request[Any, Any, Any],
    array: Array,
    indices: tuple[int, ...] | None,
    key: ClaimedKey,
    turn: Turn,
) -> Job | None:
    """The array after the retry; None if it has ended since it was looked up."""
    job = array.job
    is_ended = job.id not in turn.cluster.gangs
    if is_ended and job.end is None:
        return None
    changes = turn.apply(
        ElementsRetried(
            job.id,
            indices,
            principal_of(request).name,
            row=job if is_ended else None,
            blocks=tuple(array.blocks) if is_ended else (),
        )
    )
    note_job(request, turn, job)
    key.use(turn)
    return changes.gangs[job.id].job


ROUTES = [list_elements]
