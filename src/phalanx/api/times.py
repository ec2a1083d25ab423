"""Times in views: RFC 3339 in UTC."""

from datetime import UTC, datetime

from phalanx.core.spec.job import SECOND, Micros


def moment(at: Micros) -> str:
    return (
        datetime.fromtimestamp(at / SECOND, UTC)
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z")
    )


def when(at: Micros | None) -> str | None:
    return None if at is None else moment(at)
