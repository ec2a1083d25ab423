"""Prints measurements as aligned columns, with each goal as met or missed."""

from collections.abc import Sequence
from typing import NamedTuple


class Goal(NamedTuple):
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    def is_met(self, value: float) -> bool:
        enough = self.at_least is None or value >= self.at_least
        return enough and (self.at_most is None or value <= self.at_most)

    def verdict(self, value: float) -> str:
        """`met: at least 50,000 events/s`."""
        outcome = "met" if self.is_met(value) else "missed"
        bounds = (("at least", self.at_least), ("at most", self.at_most))
        goal = " and ".join(f"{words} {bound:,g}" for words, bound in bounds if bound is not None)
        return f"{outcome}: {goal} {self.unit}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows with the first and the last column left-aligned, the numbers right-aligned."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(head))]
    for line in lines:
        first, *numbers, last = line
        cells = [first.ljust(widths[0])]
        cells += [text.rjust(width) for text, width in zip(numbers, widths[1:-1], strict=True)]
        print(("  " + "  ".join([*cells, last])).rstrip())
