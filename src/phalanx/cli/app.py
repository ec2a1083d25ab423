"""`app`: the root of all commands."""

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
