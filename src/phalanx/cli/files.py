"""Files given to commands: reading them, and naming them in error messages."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.exits import Status, end

_PANEL = "File"

IgnoreImage = Annotated[
    bool,
    typer.Option(
        "--ignore-image",
        help="Run the commands directly on the worker, without their container images.",
        rich_help_panel=_PANEL,
    ),
]
IgnoreUnsupported = Annotated[
    bool,
    typer.Option(
        "--ignore-unsupported",
        help="Skip unsupported fields with a warning, instead of refusing the file.",
        rich_help_panel=_PANEL,
    ),
]


def contents(file: str) -> bytes:
    """The contents of a file, or of standard input for `-`. Ends the command on an error."""
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        end(Status.USAGE, f"{file}: {error.strerror}")
    if not content.strip():
        end(Status.USAGE, about(file, "the file is empty"))
    return content


def about(file: str, problem: str) -> str:
    """A problem with the name of its file, then the number of its document."""
    name = "standard input" if file == "-" else file
    return f"{name}, {problem}" if problem.startswith("document ") else f"{name}: {problem}"
