"""Lines of a progress file: JSON objects with a step, a total, values, and whether work was saved.

A task may write anything, so every line is small, typed and checked. A value that is not a number
can be written as null, as a string like "nan", or without quotes, as many languages print it.
"""

import math
import re
from typing import NamedTuple

import msgspec

from phalanx.core.events import Step

#: A number that JSON does not have, without quotes.
_BARE = re.compile(rb"(?<=[:\s])[+-]?(?:nan|inf(?:inity)?)(?=\s*[,}])", re.IGNORECASE)
_NOT_FINITE = ("nan", "inf", "infinity")


class _Object(msgspec.Struct):
    step: Step | None = None
    total: Step | None = None
    checkpoint: bool = False
    values: dict[str, float | str | None] = {}


class ProgressLine(NamedTuple):
    step: int | None
    total: int | None
    checkpoint: bool  #: the work so far is saved
    values: dict[str, float]


_decode = msgspec.json.Decoder(_Object).decode


def parse(line: bytes) -> ProgressLine | None:
    """None if the line is not progress."""
    try:
        read = _decode(line)
    except (msgspec.MsgspecError, RecursionError):
        try:
            read = _decode(_BARE.sub(rb'"\g<0>"', line))
        except (msgspec.MsgspecError, RecursionError):
            return None
    values = read.values
    numbers = {name: v if isinstance(v, float) else _number(v) for name, v in values.items()}
    if None in numbers.values():
        return None
    return ProgressLine(read.step, read.total, read.checkpoint, numbers)  # type: ignore[arg-type]


def _number(value: str | None) -> float | None:
    """A number that JSON does not have; None if it is another text."""
    if value is None:
        return math.nan
    is_number = value.lower().lstrip("+-") in _NOT_FINITE
    return float(value) if is_number and len(value) < 12 else None
