"""What the core has to ask others, because it is a matter of their rules or of the world's.

The answers are functions, so that the core stays what it is: the same questions, the same rows.
"""

from collections.abc import Callable
from datetime import UTC, tzinfo
from typing import NamedTuple

from phalanx.core.spec.job import JobSpec


def _only_utc(name: str) -> tzinfo | None:
    return UTC if name == "UTC" else None


def _everybody(spec: JobSpec, owner: str) -> str | None:
    return None


class Lookups(NamedTuple):
    #: The clock of a time zone, by its name; None if there is no such zone.
    zone: Callable[[str], tzinfo | None] = _only_utc
    #: Why this owner may not run this job now; None if it may.
    refusal: Callable[[JobSpec, str], str | None] = _everybody
