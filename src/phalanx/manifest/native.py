"""Files and request bodies in the native form."""

from collections.abc import Container, Mapping
from types import MappingProxyType

from phalanx.core.errors import Invalid, Problem
from phalanx.core.spec import SECOND, JobSpec, Micros
from phalanx.core.validation import job_spec
from phalanx.manifest import documents


def jobs(
    data: bytes,
    *,
    priority_classes: Mapping[str, int] = MappingProxyType({}),
    lost_after: Micros = 30 * SECOND,
    timezones: Container[str] | None = None,
    limit_bytes: int = documents.LIMIT_BYTES,
) -> list[JobSpec]:
    """The job of each document; `Invalid` with the problems of all of them if one has any."""
    specs: list[JobSpec] = []
    problems: list[Problem] = []
    found = documents.read(data, limit_bytes=limit_bytes)
    for number, document in enumerate(found, 1):
        try:
            specs.append(
                job_spec(
                    document,
                    priority_classes=priority_classes,
                    lost_after=lost_after,
                    timezones=timezones,
                )
            )
        except Invalid as error:
            prefix = f"document {number}: " if len(found) > 1 else ""
            problems += [Problem((prefix + p.path).rstrip(), p.message) for p in error.problems]
    if problems:
        raise Invalid(problems)
    return specs
