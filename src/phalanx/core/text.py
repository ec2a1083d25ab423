"""Phrases that reasons, causes and events have in common: lists of names, numbers and times."""

import re
from collections.abc import Mapping, Sequence
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


def reworded(sentence: str, words: Mapping[str, str]) -> str:
    """The sentence with other nouns, also in the plural. Names that contain a noun are kept."""
    nouns = "|".join(words)
    pattern = rf"(?<![\w./=-])(?<!queue )({nouns})(?=s?(?![\w/=-]|\.\w))"
    return re.sub(pattern, lambda found: words[found[1]], sentence)


def dollars(amount: float) -> str:
    return f"${amount:,.2f}"


def utc_time(at: Micros) -> str:
    return datetime.fromtimestamp(at / SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
