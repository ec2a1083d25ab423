"""The command line: one module per command or noun, listed in `command_table`.

A command starts fast: only its own module is imported, and that imports what the command needs when
the command runs, so that `--help` and completion are quick too.
"""

import errno
import os
import sys
from typing import Annotated

import typer

from phalanx.cli.usage_errors import CommandLine

app = typer.Typer(
    name="phalanx",
    cls=CommandLine,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_given: bool) -> None:
    if is_given:
        from importlib.metadata import version  # noqa: PLC0415

        typer.echo(f"phalanx {version('phalanx')}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
]


@app.callback()
def phalanx(*, show_version: Version = False) -> None:
    """Phalanx, a gang scheduler: all processes of a job start together, or none does."""


def main() -> None:
    """Run the command line and exit with its status."""
    try:
        app(prog_name="phalanx")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # Otherwise Python would try to write the rest again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit("phalanx: cannot write the output: no space left on the device")
