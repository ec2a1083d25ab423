"""Printing: tables for people, JSON for programs, and notes for a person at a terminal.

Tables are cut to the width of a terminal. In a pipe nothing is cut or wrapped.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any
from zlib import crc32

import msgspec
import typer
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from phalanx.cli.visible_text import HIDDEN, visible

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_PIPE_WIDTH = 10_000
#: The least widths to which the last column and the others are cut.
_MIN_LAST_WIDTH, _MIN_WIDTH = 16, 24
_COLUMN_GAP = 2
#: The task's name before a line of its output.
_TASK_NAME = re.compile(r"[a-z0-9-]+/[0-9]+")
#: The control characters that JSON may have unescaped.
_RAW_IN_JSON = re.compile(r"(?![\n\t])" + HIDDEN.pattern)
_COLOUR_SEQUENCE = re.compile(r"(\x1b\[[0-9;]*m)")
_COLOURS = ("cyan", "green", "magenta", "blue", "yellow", "bright_cyan", "bright_magenta")


def print_json(value: Any) -> None:
    """Print one value, indented."""
    typer.echo(_json_text(msgspec.json.format(msgspec.json.encode(value), indent=2)))


def print_json_line(value: Any) -> None:
    """Print one of many values on a line of its own."""
    typer.echo(_json_text(msgspec.json.encode(value)))


def _json_text(encoded: bytes) -> str:
    """The JSON, in which the control characters outside of ASCII are escaped too."""
    return _RAW_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", encoded.decode())


class VisibleConsole(Console):
    """A console on which text that is printed shows its control characters as escapes."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*map(_visible_if_text, objects), **options)


def _visible_if_text(printed: Any) -> Any:
    return visible_text(printed) if isinstance(printed, str | Text) else printed


def visible_text(text: str | Text) -> Text:
    """The text with control characters as escapes, in the same styles."""
    if isinstance(text, str):
        return Text(visible(text))
    shown = Text(style=text.style, end=text.end)
    cuts = [cut for found in HIDDEN.finditer(text.plain) for cut in found.span()]
    for piece in text.divide(cuts):
        piece.plain = visible(piece.plain)
        shown.append_text(piece)
    return shown


def console(*, on_stderr: bool = False) -> Console:
    stream = sys.stderr if on_stderr else sys.stdout
    has_width = stream.isatty() or "COLUMNS" in os.environ
    return VisibleConsole(
        file=stream,
        width=None if has_width else _PIPE_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
    )


def note(*lines: str | Text) -> None:
    """Print to standard error, only if that is a terminal."""
    if sys.stderr.isatty():
        for line in lines:
            console(on_stderr=True).print(line)


def warn(sentence: str) -> None:
    console(on_stderr=True).print(Text.assemble(("warning: ", "yellow"), sentence))


def table_of(headings: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """A table with one line per row. If it is too wide, the last column is cut first, then any
    very wide column. A heading that begins with # aligns its column to the right."""
    listed = [[visible_text(cell) for cell in row] for row in rows]
    names = [heading.removeprefix("#") for heading in headings]
    cells = [names, *([str(cell) for cell in row] for row in listed)]
    widths = _fit([max(map(cell_len, column)) for column in zip(*cells, strict=True)])
    table = Table(box=None, pad_edge=False, header_style="bold dim", show_edge=False)
    for heading, name, width in zip(headings, names, widths, strict=True):
        side: JustifyMethod = "right" if heading.startswith("#") else "left"
        table.add_column(name, justify=side, no_wrap=True, overflow="ellipsis", width=width)
    for row in listed:
        table.add_row(*row)
    return table


def _fit(widths: list[int]) -> list[int]:
    """Column widths that fit the console."""
    excess = sum(widths) + _COLUMN_GAP * (len(widths) - 1) - console().width
    for column in reversed(range(len(widths))):
        least = _MIN_LAST_WIDTH if column == len(widths) - 1 else _MIN_WIDTH
        cut = max(0, min(excess, widths[column] - least))
        widths[column] -= cut
        excess -= cut
    return widths


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    print_trimmed(table_of(headings, rows))


def print_fields(fields: Iterable[tuple[str, str | Text]]) -> None:
    """Print names and values, without the fields that are empty. The lines of a value stay in its
    column."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields:
        if value:
            table.add_row(visible(name), Text("\n").join(_visible_lines(value)))
    print_trimmed(table)


def _visible_lines(value: str | Text) -> Iterator[Text]:
    if isinstance(value, str):
        yield from map(visible_text, value.split("\n"))
    else:
        yield from map(visible_text, value.split("\n", allow_blank=True))


def print_trimmed(table: Table | Tree) -> None:
    """Print without trailing blanks."""
    out = console()
    with out.capture() as captured:
        out.print(table)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_task_output(lines: Iterable[str], out: Console | None = None) -> None:
    """Print the output of tasks. On a terminal, the task's name before a line is coloured, and of
    the control sequences only colours have an effect."""
    out = out or console()
    for line in lines:
        if not out.is_terminal:
            typer.echo(line, file=out.file, color=True)  # with the sequences that the task wrote
            continue
        task, bar, text = line.partition(" | ")
        is_prefixed = bar and _TASK_NAME.fullmatch(task)
        shown = prefixed_line(task, text) if is_prefixed else _coloured(line)
        out.print(shown, soft_wrap=True)


def prefixed_line(name: str, line: str) -> Text:
    """`name | line`. A name has the same colour every time."""
    colour = _COLOURS[crc32(name.encode()) % len(_COLOURS)]
    return Text.assemble((f"{name} | ", colour), _coloured(line))


def _coloured(line: str) -> Text:
    """The line with its colours, and its other control characters as escapes."""
    parts = _COLOUR_SEQUENCE.split(line.rstrip("\r").expandtabs())
    return Text.from_ansi("".join(p if i % 2 else visible(p) for i, p in enumerate(parts)))
