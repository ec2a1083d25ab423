"""Durations as users write them (`90s`, `15m`, `1h30m`, a number of seconds), in microseconds.

A duration is exact: at least 0, at most a hundred years, and a whole number of microseconds.
"""

import re
from fractions import Fraction
from itertools import pairwise

from phalanx.core.spec.fields import refusal, shown
from phalanx.core.time_units import HOUR, MINUTE, SECOND, Micros

#: The units in the order in which they are written, the longest first.
_UNITS: dict[str, Micros] = {
    "d": 24 * HOUR,
    "h": HOUR,
    "m": MINUTE,
    "s": SECOND,
    "ms": 1_000,
    "us": 1,
}

_NUMBER = r"[0-9]{1,30}(?:\.[0-9]{1,30})?"
_SECONDS = re.compile(rf"(?P<number>{_NUMBER})(?:[eE](?P<exponent>[+-]?[0-9]{{1,3}}))?")
_PARTS = re.compile("".join(rf"(?:(?P<{unit}>{_NUMBER}){unit})?" for unit in _UNITS))

_SHORT_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))

LONGEST: Micros = 36_525 * 24 * HOUR

_FORM = "write one like 90s, 15m, 6h, 1d, 500ms or 1h30m, or a number of seconds"


def duration(value: object) -> Micros:
    """A duration of 0 or more."""
    micros = _exact(value)
    if micros > LONGEST:
        raise refusal(f"is {shown(value)}; it must be at most {printed(LONGEST)}")
    if micros.denominator != 1:
        raise refusal(f"is {shown(value)}, which is not a whole number of microseconds; round it")
    return micros.numerator


def _exact(value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise refusal(f"is {shown(value)}, not a duration; {_FORM}")
    if isinstance(value, int):
        if value < 0:
            raise refusal(f"is {shown(value)}; it cannot be negative")
        return Fraction(value * SECOND)
    # The shortest decimal of a float is what the user wrote.
    written = value if isinstance(value, str) else repr(value)
    if written.startswith("-") and (_PARTS.fullmatch(written, 1) or _SECONDS.fullmatch(written, 1)):
        raise refusal(f"is {shown(value)}; it cannot be negative")
    if seconds := _SECONDS.fullmatch(written):
        exponent = int(seconds["exponent"] or 0)
        return Fraction(seconds["number"]) * Fraction(10) ** exponent * SECOND
    parts = _PARTS.fullmatch(written)
    if not written or parts is None:
        raise refusal(f"is {shown(value)}, not a duration; {_FORM}")
    given = parts.groupdict()
    return sum((Fraction(given[u]) * size for u, size in _UNITS.items() if given[u]), Fraction())


def printed(micros: Micros) -> str:
    """The shortest text that means exactly this duration."""
    if micros == 0:
        return "0s"
    one_unit = next(f"{micros // size}{u}" for u, size in _UNITS.items() if micros % size == 0)
    parts = []
    for unit, size in _UNITS.items():
        count, micros = divmod(micros, size)
        if count:
            parts.append(f"{count}{unit}")
    return min(one_unit, "".join(parts), key=len)


def short_duration(seconds: float) -> str:
    """A rounded duration for people, in at most two units: `0.4s`, `42s`, `3m 5s`, `2h 5m`, `12d`.

    Only fractions below ten seconds are shown. A count of ten or more drops the smaller unit.
    """
    left = max(0.0, seconds)
    if left < 10 and left != int(left):
        return f"{left:.1f}s"
    for (unit, size), (smaller, part) in pairwise(_SHORT_UNITS):
        if left >= size:
            count, rest = divmod(int(left), size)
            below = rest // part
            return f"{count}{unit} {below}{smaller}" if below and count < 10 else f"{count}{unit}"
    return f"{int(left)}s"
