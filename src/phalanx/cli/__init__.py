"""The command line: one file per command or noun, put together here.

A command imports what it needs when it runs, so that asking for help is quick.
"""

from importlib.metadata import version
from typing import Annotated

import typer

from phalanx.cli import config, cost, job, jobs, serve, submit, tasks, token

app = typer.Typer(
    name="phalanx",
    help="A gang scheduler: all of a job's processes start together, or none does.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_JOBS, _SERVER = "Jobs", "Servers"

for panel, commands in {
    _JOBS: {
        "submit": submit.submit,
        "jobs": jobs.jobs,
        "job": job.job,
        "tasks": tasks.tasks,
        "cost": cost.cost,
    },
    _SERVER: {"serve": serve.serve, "config": config.config},
}.items():
    for name, command in commands.items():
        app.command(name, rich_help_panel=panel)(command)
app.add_typer(token.app, name="token", rich_help_panel=_SERVER)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"phalanx {version('phalanx')}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
]


@app.callback()
def phalanx(*, show_version: Version = False) -> None:
    """A gang scheduler: all of a job's processes start together, or none does."""


def main() -> None:
    app()
