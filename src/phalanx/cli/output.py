"""Printing: tables for people, JSON for programs, and notes for a person at a terminal.

Tables are cut to the width of a terminal. In a pipe nothing is cut or wrapped.
"""

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, NamedTuple
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
#: The least width to which a column is cut.
_MIN_WIDTH = 16
_COLUMN_GAP = 2
#: Where free text has room beside other columns, and the least room that it needs.
_WIDE, _TEXT_WIDTH = 120, 40
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


class _Quiet:
    """Whether `--quiet` was given."""

    is_set = False


def be_quiet(is_set: bool) -> None:
    """Print notes, warnings and progress no more, or again."""
    _Quiet.is_set = is_set


def is_quiet() -> bool:
    return _Quiet.is_set


def note(*lines: str | Text) -> None:
    """Print to standard error, only if that is a terminal."""
    if sys.stderr.isatty() and not is_quiet():
        for line in lines:
            _print_trimmed_to_stderr(line)


def warn(sentence: str) -> None:
    if not is_quiet():
        _print_trimmed_to_stderr(Text.assemble(("warning: ", "yellow"), sentence))


def _print_trimmed_to_stderr(sentence: str | Text) -> None:
    """Print in lines of whole words, without trailing blanks."""
    out = console(on_stderr=True)
    with out.capture() as captured:
        out.print(sentence)
    for line in captured.get().splitlines():
        sys.stderr.write(line.rstrip() + "\n")


class Narrow(NamedTuple):
    """What a table gives up on a narrow terminal. Other columns are never cut."""

    cut: Sequence[str] = ()  #: columns of free text, which may be cut; the last of them first
    drop: Sequence[str] = ()  #: columns that may be left out, the first of them first
    least: int = _MIN_WIDTH  #: no column is cut to less; columns are left out before


def table_of(
    headings: Sequence[str], rows: Iterable[Sequence[str | Text]], narrow: Narrow | None = None
) -> Table:
    """A table with one line per row. A heading that begins with # aligns its column to the right.

    If it is too wide, free text is cut and columns are left out as `narrow` says; without it the
    last column is cut.
    """
    listed = [[visible_text(cell) for cell in row] for row in rows]
    names = [heading.removeprefix("#") for heading in headings]
    cells = [names, *([str(cell) for cell in row] for row in listed)]
    natural = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    widths = _fit(names, natural, narrow or Narrow(cut=names[-1:]))
    table = Table(box=None, pad_edge=False, header_style="bold dim", show_edge=False)
    table.width = _total(widths.values())
    for at, width in widths.items():
        side: JustifyMethod = "right" if headings[at].startswith("#") else "left"
        table.add_column(names[at], justify=side, no_wrap=True, overflow="ellipsis", width=width)
    for row in listed:
        table.add_row(*(row[at] for at in widths))
    return table


def _fit(names: Sequence[str], natural: Sequence[int], narrow: Narrow) -> dict[int, int]:
    """The columns that are shown, by their position, and their widths."""
    available = console().width
    least = {
        at: min(width, narrow.least) if names[at] in narrow.cut else width
        for at, width in enumerate(natural)
    }
    shown = dict(enumerate(natural))
    for name in narrow.drop:
        if name in names and _total(least[at] for at in shown) > available:
            del shown[names.index(name)]
    excess = _total(shown.values()) - available
    for at in (names.index(name) for name in reversed(narrow.cut) if name in names):
        if at not in shown:
            continue
        cut = max(0, min(excess, shown[at] - narrow.least))
        shown[at] -= cut
        excess -= cut
    return shown


def _total(widths: Iterable[int]) -> int:
    each = list(widths)
    return sum(each) + _COLUMN_GAP * (len(each) - 1)


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str | Text]], narrow: Narrow | None = None
) -> None:
    print_trimmed(table_of(headings, rows, narrow))


def is_wide() -> bool:
    """Whether free text has room beside other columns: on a wide terminal, and in a pipe."""
    return console().width >= _WIDE


def print_table_with_texts(
    headings: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    text_heading: str,
    texts: Sequence[Sequence[str]],
    drop: Sequence[str] = (),
) -> None:
    """Print a table and lines of free text for each row. Where there is room, the texts are the
    last column, in whole words; else each stands below its row, a little further to the right. No
    column is cut. If the table is still too wide, the columns of `drop` are left out, the first of
    them first, and then long names in the first column go on in the next line."""
    width = console().width
    table = table_of(headings, rows, Narrow())
    room = width - (table.width or 0) - _COLUMN_GAP
    if is_wide() and room >= _TEXT_WIDTH:
        with_text: list[list[str | Text]] = []
        for row, text in zip(rows, texts, strict=True):
            first, *more = text or ("",)
            with_text.append([*row, first])
            with_text += ([*[""] * len(row), line] for line in more)
        table = table_of([*headings, text_heading], with_text, Narrow())
        column = table.columns[-1]
        column.no_wrap, column.overflow = False, "fold"
        column.width = min(column.width or 0, room)
        table.width = width - room + column.width
        print_trimmed(table)
        return
    table = table_of(headings, rows, Narrow(drop=drop))
    name_width = _fold_names(table, width)
    heading, *lines = _rendered(table)
    typer.echo(heading)
    rest = iter(lines)
    for row, text in zip(rows, texts, strict=True):
        height = max(1, -(-cell_len(str(visible_text(row[0]))) // name_width))
        first, *more = islice(rest, height)
        indent = len(first) - len(first.lstrip()) + _COLUMN_GAP
        below = [part for line in text for part in textwrap.wrap(visible(line), width - indent)]
        for line in (first, *more, *(" " * indent + part for part in below)):
            typer.echo(line)


def _fold_names(table: Table, width: int) -> int:
    """Let the first column take several lines if the table is too wide; the width of the column."""
    names = table.columns[0]
    excess = (table.width or 0) - width
    if excess > 0:
        names.no_wrap, names.overflow = False, "fold"
        names.width = max(_MIN_WIDTH, (names.width or 0) - excess)
        table.width = width
    return names.width or 1


def print_wrapped(sentence: str) -> None:
    """Print a sentence, on a terminal with whole words on each line."""
    out = console()
    for line in sentence.split("\n"):
        with out.capture() as captured:
            out.print(line)
        typer.echo("\n".join(part.rstrip() for part in captured.get().splitlines()))


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


def print_beside(left: Text, right: Text) -> None:
    """Print two texts on one line. On a narrow terminal the right one continues below itself."""
    table = Table.grid(padding=(0, _COLUMN_GAP, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(visible_text(left), visible_text(right))
    print_trimmed(table)


def _visible_lines(value: str | Text) -> Iterator[Text]:
    if isinstance(value, str):
        yield from map(visible_text, value.split("\n"))
    else:
        yield from map(visible_text, value.split("\n", allow_blank=True))


def print_trimmed(table: Table | Tree) -> None:
    """Print without trailing blanks."""
    typer.echo("\n".join(_rendered(table)))


def table_lines(table: Table) -> list[str]:
    """The lines without colours."""
    return [Text.from_ansi(line).plain for line in _rendered(table)]


def _rendered(table: Table | Tree) -> list[str]:
    """The lines, without trailing blanks."""
    out = console()
    with out.capture() as captured:
        out.print(table, crop=False)
    return [line.rstrip() for line in captured.get().splitlines()]


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
