"""A line plot of a value in characters, two by four dots each."""

import math
from collections.abc import Sequence

_HEIGHT = 10
#: The dots of a character, by row and column.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BLANK = 0x2800
_COLUMNS, _ROWS = 2, 4
_LEAST_WIDTH = 20

#: Steps and values; None is not a finite number.
Points = Sequence[tuple[int, float | None]]


def plot(points: Points, width: int, height: int = _HEIGHT) -> list[str]:
    """The lines of a plot, at most this wide: with the highest and the lowest value on the left,
    and the first and the last step below. `x` marks steps whose value is not a finite number.

    No lines if there are fewer than two finite values.
    """
    finite = [(step, value) for step, value in points if value is not None]
    if len(finite) < 2:
        return []
    low, high = min(value for _, value in finite), max(value for _, value in finite)
    labels = [f"{high:.4g}", f"{low:.4g}"]
    margin = max(map(len, labels)) + 1
    columns = max(_LEAST_WIDTH, width - margin - 1)
    canvas = _Canvas(columns, height)
    first, last = points[0][0], points[-1][0]
    spots: list[tuple[int, int] | None] = []
    for step, value in points:
        x = _scaled(step, first, last, columns * _COLUMNS)
        if value is None:
            canvas.missing.add(x // _COLUMNS)
            spots.append(None)
        else:
            spots.append((x, _scaled(high - value, 0, high - low, height * _ROWS)))
    canvas.draw(spots)
    rows = canvas.rows()
    left = [labels[0], *[""] * (height - 2), labels[1]]
    lines = [f"{text:>{margin - 1}} ┤{row}" for text, row in zip(left, rows, strict=True)]
    marks = "".join("x" if at in canvas.missing else "─" for at in range(columns))
    lines.append(" " * margin + "└" + marks)
    begin, end = str(first), str(last)
    gap = max(1, columns - len(begin) - len(end))
    lines.append(" " * (margin + 1) + begin + " " * gap + end)
    return [line.rstrip() for line in lines]


def _scaled(value: float, low: float, high: float, size: int) -> int:
    """The dot of a value between two others, of so many."""
    if not math.isfinite(high - low) or high <= low:
        return size // 2
    return min(size - 1, max(0, round((value - low) / (high - low) * (size - 1))))


class _Canvas:
    def __init__(self, columns: int, rows: int) -> None:
        self._cells = [[_BLANK] * columns for _ in range(rows)]
        self.missing: set[int] = set()

    def draw(self, spots: Sequence[tuple[int, int] | None]) -> None:
        """Draw lines between neighbours; None interrupts the line."""
        before: tuple[int, int] | None = None
        for spot in spots:
            if spot is not None:
                x0, y0 = before or spot
                x1, y1 = spot
                count = max(abs(x1 - x0), abs(y1 - y0), 1)
                for n in range(count + 1):
                    self._set(round(x0 + (x1 - x0) * n / count), round(y0 + (y1 - y0) * n / count))
            before = spot

    def _set(self, x: int, y: int) -> None:
        self._cells[y // _ROWS][x // _COLUMNS] |= _DOTS[y % _ROWS][x % _COLUMNS]

    def rows(self) -> list[str]:
        return ["".join(map(chr, row)).replace(chr(_BLANK), " ") for row in self._cells]
