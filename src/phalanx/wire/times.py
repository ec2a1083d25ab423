"""Points in time: microseconds in the core, ISO 8601 strings in JSON."""

from datetime import UTC, datetime

from phalanx.core.time_units import SECOND, Micros


def iso_time(at: Micros) -> str:
    moment = datetime.fromtimestamp(at / SECOND, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def iso_time_or_none(at: Micros | None) -> str | None:
    return None if at is None else iso_time(at)


def micros(text: str) -> Micros:
    return round(datetime.fromisoformat(text).timestamp() * SECOND)


def now_micros() -> Micros:
    return round(datetime.now(UTC).timestamp() * SECOND)
