"""Points in time: microseconds in the core, ISO 8601 strings in JSON."""

from datetime import UTC, datetime, timedelta

from phalanx.core.time_units import SECOND, Micros

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - without a zone it is formatted faster


def iso_time(at: Micros) -> str:
    return (_EPOCH + timedelta(microseconds=at)).isoformat(timespec="microseconds") + "Z"


def iso_time_or_none(at: Micros | None) -> str | None:
    return None if at is None else iso_time(at)


def micros(text: str) -> Micros:
    return round(datetime.fromisoformat(text).timestamp() * SECOND)


def now_micros() -> Micros:
    return round(datetime.now(UTC).timestamp() * SECOND)
