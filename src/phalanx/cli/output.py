"""What commands print: tables for people, JSON for programs, and nothing folded in a pipe."""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any
from zlib import crc32

import msgspec
import typer
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

Json = Annotated[bool, typer.Option("--json", help="For programs.")]

#: A pipe has no width of its own; nothing is cut there.
_ENDLESS = 10_000
#: Where room is short, the last column is left with this at least, and others with that.
_NARROW, _WIDE = 16, 24
_BETWEEN = 2
#: The name of a task before its output.
_OWNER = re.compile(r"[a-z0-9-]+/[0-9]+")
_COLOURS = ("cyan", "green", "magenta", "blue", "yellow", "bright_cyan", "bright_magenta")


def print_json(value: Any) -> None:
    """One value, indented."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_json_line(value: Any) -> None:
    """One of many values, each on its line."""
    typer.echo(msgspec.json.encode(value).decode())


def console(*, on_stderr: bool = False) -> Console:
    stream = sys.stderr if on_stderr else sys.stdout
    has_width = stream.isatty() or "COLUMNS" in os.environ
    return Console(
        file=stream,
        width=None if has_width else _ENDLESS,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
    )


def note(*lines: str | Text) -> None:
    """Something for a person who looks on; a script does not hear it."""
    if sys.stderr.isatty():
        for line in lines:
            console(on_stderr=True).print(line)


def warn(sentence: str) -> None:
    console(on_stderr=True).print(Text.assemble(("warning: ", "yellow"), sentence))


def table_of(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """One line for each row. What does not fit on a screen is cut: of the last column first, then
    of what is very long. A column whose head begins with # has numbers."""
    shown = list(rows)
    heads = [head.removeprefix("#") for head in columns]
    cells = [heads, *([str(cell) for cell in row] for row in shown)]
    widths = _fitting([max(map(cell_len, column)) for column in zip(*cells, strict=True)])
    table = Table(box=None, pad_edge=False, header_style="bold dim", show_edge=False)
    for head, named, width in zip(columns, heads, widths, strict=True):
        side: JustifyMethod = "right" if head.startswith("#") else "left"
        table.add_column(named, justify=side, no_wrap=True, overflow="ellipsis", width=width)
    for row in shown:
        table.add_row(*row)
    return table


def _fitting(widths: list[int]) -> list[int]:
    """The widths of columns, made narrower until they fit."""
    over = sum(widths) + _BETWEEN * (len(widths) - 1) - console().width
    for at in reversed(range(len(widths))):
        least = _NARROW if at == len(widths) - 1 else _WIDE
        given_up = max(0, min(over, widths[at] - least))
        widths[at] -= given_up
        over -= given_up
    return widths


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    print_trimmed(table_of(columns, rows))


def print_facts(facts: Iterable[tuple[str, str | Text]]) -> None:
    """Names and what is to be said of them; nothing is said of what is empty."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, told in facts:
        if told:
            table.add_row(name, told)
    print_trimmed(table)


def print_trimmed(table: Table | Tree) -> None:
    """Without the blanks that would pad its lines."""
    out = console()
    with out.capture() as captured:
        out.print(table)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_output(lines: Iterable[str]) -> None:
    """What tasks printed. Before a line of a gang stands whose it is, in a colour of its own."""
    out = console()
    for line in lines:
        owner, bar, rest = line.partition(" | ")
        if out.is_terminal and bar and _OWNER.fullmatch(owner):
            out.print(owned(owner, rest), soft_wrap=True)
        else:
            typer.echo(line)


def owned(owner: str, line: str) -> Text:
    """A line and whose it is; the same owner has always the same colour."""
    colour = _COLOURS[crc32(owner.encode()) % len(_COLOURS)]
    return Text.assemble((f"{owner} | ", colour), Text.from_ansi(line))
