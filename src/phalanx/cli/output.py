"""What commands print: tables for people, JSON for programs, and nothing folded in a pipe."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

Json = Annotated[bool, typer.Option("--json", help="For programs.")]

#: A pipe has no width of its own; nothing is cut there.
_ENDLESS = 10_000


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
    """One line for each row; what does not fit on a screen is cut. The last column gives way
    first. A column whose head begins with # has numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold dim", show_edge=False)
    for number, head in enumerate(columns, 1):
        is_last = number == len(columns)
        table.add_column(
            head.removeprefix("#"),
            justify="right" if head.startswith("#") else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if is_last else None,
        )
    for row in rows:
        table.add_row(*row)
    return table


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


def print_trimmed(table: Table) -> None:
    """Without the blanks that would pad its lines."""
    out = console()
    with out.capture() as captured:
        out.print(table)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
