"""Finding a job by its id, the beginning of its id, or its name; and elements of arrays."""

import re
from collections.abc import AsyncIterator, Callable

from phalanx.client.errors import InvalidError, NotFoundError
from phalanx.core.ids import split_element
from phalanx.core.model import ENDED
from phalanx.wire.errors import ErrorInfo
from phalanx.wire.jobs import JobView

#: `AsyncClient.jobs`: the jobs that match, newest first.
ListJobs = Callable[..., AsyncIterator[JobView]]
#: A job: its id, the beginning of its id, its name, namespace/name, or what `submit` returned. An
#: element of an array has its index in brackets behind that.
JobReference = str | JobView

_ID = re.compile(r"j-[0-9a-z]{8}")
_MAX_LISTED = 5


async def find(reference: JobReference, list_jobs: ListJobs) -> str:
    """The id of the one job that the reference means.

    A name that was reused means the unfinished job, otherwise the newest. Raises NotFoundError, and
    InvalidError with the candidates if several jobs match.
    """
    if isinstance(reference, JobView):
        return reference.id
    if _ID.fullmatch(reference):
        return reference
    element = split_element(reference)
    if element is not None:
        array, indices = element
        return f"{await find(array, list_jobs)}[{indices}]"
    namespace, slash, name = reference.rpartition("/")
    matches: list[JobView] = []
    if not slash and reference.startswith("j-"):
        most = _MAX_LISTED + 1  # a short prefix can match very many jobs
        async for job in list_jobs(id_prefix=reference, page=most):
            matches.append(job)
            if len(matches) == most:
                break
    if not matches:
        matches = await _one_per_namespace(list_jobs(namespace=namespace or None, name=name))
    if not matches:
        raise NotFoundError(404, ErrorInfo("not_found", f"there is no job {reference[:80]}"))
    if len(matches) > 1:
        listed = ", ".join(
            f"{job.id} ({job.namespace}/{job.name})" for job in matches[:_MAX_LISTED]
        )
        more = " and more" if len(matches) > _MAX_LISTED else ""
        message = f"{reference} is ambiguous: {listed}{more}; write the id of one of them"
        raise InvalidError(400, ErrorInfo("ambiguous", message))
    return matches[0].id


async def _one_per_namespace(jobs: AsyncIterator[JobView]) -> list[JobView]:
    """The unfinished job of each namespace, or its newest one."""
    chosen: dict[str, JobView] = {}
    async for job in jobs:
        first = chosen.setdefault(job.namespace, job)
        if first.phase in ENDED and job.phase not in ENDED:
            chosen[job.namespace] = job
    return list(chosen.values())
