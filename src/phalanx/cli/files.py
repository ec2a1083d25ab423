"""Files that commands are given, and what is said about them."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.exits import Status, end

_MANIFEST = "The file"

IgnoreImage = Annotated[
    bool,
    typer.Option(
        "--ignore-image",
        help="Run its commands on bare workers, without their images.",
        rich_help_panel=_MANIFEST,
    ),
]
IgnoreUnsupported = Annotated[
    bool,
    typer.Option(
        "--ignore-unsupported",
        help="Leave out what cannot be honoured, with a warning.",
        rich_help_panel=_MANIFEST,
    ),
]


def contents(file: str) -> bytes:
    """Ends the command if it cannot be read."""
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        end(Status.USAGE, f"{file}: {error.strerror}")


def about(file: str, wrong: str) -> str:
    """What is wrong with a file, by its name and then by the number of the document."""
    shown = "standard input" if file == "-" else file
    return f"{shown}, {wrong}" if wrong.startswith("document ") else f"{shown}: {wrong}"
