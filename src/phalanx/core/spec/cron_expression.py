"""Cron expressions: the five fields as sets of minutes, hours, days, months and weekdays.

`cron_times` computes the next time. Seconds, years and `@daily` are refused, and so is a date that
no year has.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from phalanx.core.errors import Invalid
from phalanx.core.spec.fields import refusal, shown, text

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAYS_IN = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

_PART = re.compile(
    r"(?:(?P<all>\*)|(?P<low>\w{1,9})(?:-(?P<high>\w{1,9}))?)(?:/(?P<step>\d{1,3}))?"
)


class _Column(NamedTuple):
    name: str
    low: int
    high: int
    words: Sequence[str] = ()  #: names of the numbers from `low` on


_COLUMNS = (
    _Column("minute", 0, 59),
    _Column("hour", 0, 23),
    _Column("day of the month", 1, 31),
    _Column("month", 1, 12, _MONTHS),
    _Column("day of the week", 0, 7, _WEEKDAYS),
)


class CronExpression(NamedTuple):
    """The minutes at which a cron is due."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]  #: of the month
    months: frozenset[int]
    weekdays: frozenset[int]  #: 0 is Sunday
    #: A day is due if it is in `days` or in `weekdays`, not in both: neither field begins with `*`.
    either_day: bool


def parse(value: object) -> CronExpression:
    """The meaning of a cron expression. Raises Invalid."""
    written = text(value)
    if len(written) > 500:
        raise refusal(f"has {len(written)} characters; write a cron expression of at most 500")
    parts = written.split()
    if len(parts) != len(_COLUMNS):
        raise refusal(
            f"is {shown(written)}, and the number of its fields is {len(parts)}; write five:"
            ' minute, hour, day of the month, month, day of the week, like "0 2 * * *"'
        )
    minutes, hours, days, months, weekdays = (
        _column(part, column) for part, column in zip(parts, _COLUMNS, strict=True)
    )
    either_day = not parts[2].startswith("*") and not parts[4].startswith("*")
    if not either_day and all(min(days) > _DAYS_IN[month - 1] for month in months):
        raise refusal(
            f"is {shown(written)}, a day that does not exist in its months; choose another day"
        )
    return CronExpression(
        minutes, hours, days, months, frozenset(day % 7 for day in weekdays), either_day
    )


def _column(written: str, column: _Column) -> frozenset[int]:
    times: set[int] = set()
    for part in written.split(","):
        times.update(_times(part, column))
    return frozenset(times)


def _times(part: str, column: _Column) -> range:
    match = _PART.fullmatch(part)
    if match is None:
        raise _misread(part, column)
    # `5/15` means `5-59/15`.
    last = match["low"] if match["step"] is None else str(column.high)
    low = column.low if match["all"] else _number(match["low"], column, part)
    high = column.high if match["all"] else _number(match["high"] or last, column, part)
    step = int(match["step"] or 1)
    if low > high:
        raise refusal(
            f"has {shown(part)} as its {column.name}, and the range ends before it begins;"
            f" write {low}-{column.high},{column.low}-{high}"
        )
    if step == 0:
        raise refusal(f"has {shown(part)} as its {column.name}; write a step of at least 1")
    return range(low, high + 1, step)


def _number(written: str, column: _Column, part: str) -> int:
    word = written.lower()
    if word in column.words:
        return column.low + column.words.index(word)
    if not (
        written.isascii() and written.isdecimal() and column.low <= int(written) <= column.high
    ):
        raise _misread(part, column)
    return int(written)


def _misread(part: str, column: _Column) -> Invalid:
    words = f" or words like {column.words[1]}" if column.words else ""
    return refusal(
        f"has {shown(part)} as its {column.name}; write *, numbers from {column.low} to"
        f" {column.high}{words}, ranges like 1-5, steps like */2, or a list of these"
    )
