"""Finding a job by what people call it: an id, the beginning of an id, or a name."""

import re
from collections.abc import Callable, Iterator

from phalanx.client.errors import InvalidError, NotFoundError
from phalanx.core.model import ENDED
from phalanx.wire.errors import ErrorInfo
from phalanx.wire.jobs import JobView

Listed = Callable[..., Iterator[JobView]]

_ID = re.compile(r"j-[0-9a-z]{8}")
_SHOWN = 5


def find(called: str, jobs: Listed) -> str:
    """The id of the one job that is called so; `jobs` lists jobs, newest first.

    Of several jobs of a namespace that had the name one after another, the unfinished one is
    meant, otherwise the newest. Raises NotFoundError, and InvalidError with the candidates if there
    are several.
    """
    if _ID.fullmatch(called):
        return called
    namespace, slash, name = called.rpartition("/")
    found: list[JobView] = []
    if not slash and called.startswith("j-"):
        found = list(jobs(id_prefix=called))
    if not found:
        found = _named(jobs(namespace=namespace or None, name=name))
    if not found:
        raise NotFoundError(404, ErrorInfo("not_found", f"there is no job {called[:80]}"))
    if len(found) > 1:
        shown = ", ".join(f"{job.id} ({job.namespace}/{job.name})" for job in found[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        message = f"{called} is ambiguous: {shown}{more}; write the id of one of them"
        raise InvalidError(400, ErrorInfo("ambiguous", message))
    return found[0].id


def _named(jobs: Iterator[JobView]) -> list[JobView]:
    """The job that is meant in each namespace, from all that had the name, newest first."""
    meant: dict[str, JobView] = {}
    for job in jobs:
        known = meant.setdefault(job.namespace, job)
        if known.phase in ENDED and job.phase not in ENDED:
            meant[job.namespace] = job
    return list(meant.values())
