"""From what people call a job to the job: an id, the beginning of one, or a name."""

import re
from collections.abc import Callable, Iterator

from phalanx.client.errors import InvalidError, NotFoundError
from phalanx.wire.errors import ErrorInfo
from phalanx.wire.jobs import JobView

Listed = Callable[..., Iterator[JobView]]

_ID = re.compile(r"j-[0-9a-z]{20}")
_SHOWN = 5


def find(called: str, jobs: Listed) -> str:
    """The id of the one job that is called so. `jobs` lists them. Raises NotFoundError, and
    InvalidError if there are several.

    Of several that had a name one after another, the unfinished one is meant, else the latest.
    """
    if _ID.fullmatch(called):
        return called
    namespace, slash, name = called.rpartition("/")
    if not slash and called.startswith("j-"):
        found = [job for job in jobs() if job.id.startswith(called)]
    else:
        found = _named(jobs(namespace=namespace or None, name=name))
    if not found:
        raise NotFoundError(404, ErrorInfo("not_found", f"there is no job {called[:80]}"))
    if len(found) > 1:
        shown = ", ".join(f"{job.id} ({job.namespace}/{job.name})" for job in found[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        told = f"{called} may be {shown}{more}; say which"
        raise InvalidError(400, ErrorInfo("ambiguous", told))
    return found[0].id


def _named(jobs: Iterator[JobView]) -> list[JobView]:
    """The one that is meant in each namespace; they come the unfinished and the latest first."""
    meant: dict[str, JobView] = {}
    for job in jobs:
        meant.setdefault(job.namespace, job)
    return list(meant.values())
