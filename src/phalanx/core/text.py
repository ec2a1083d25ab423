"""Phrases that reasons, causes and events have in common: lists of names, numbers and times."""

from collections.abc import Sequence
from datetime import UTC, datetime

from phalanx.core.time_units import SECOND, Micros


def listed(names: Sequence[str], most: int = 6) -> str:
    """The names, or, if there are more than `most`, the first ones and the number of the others."""
    if len(names) <= most:
        return ", ".join(names)
    shown = most - 1
    return f"{', '.join(names[:shown])} and {len(names) - shown} more"


def plural(count: int, noun: str) -> str:
    """`1 task`, `4 tasks`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def dollars(amount: float) -> str:
    return f"${amount:,.2f}"


def utc_time(at: Micros) -> str:
    return datetime.fromtimestamp(at / SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
