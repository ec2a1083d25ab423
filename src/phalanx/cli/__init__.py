"""The command line: one file per command or noun, put together here.

A command imports what it needs when it runs, so that asking for help is quick.
"""

import errno
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from phalanx.cli import (
    apply,
    config,
    convert,
    cost,
    crons,
    events,
    job,
    job_actions,
    jobs,
    logs,
    plan,
    queues,
    serve,
    simulate,
    submit,
    tasks,
    token,
    top,
    up,
    why,
    worker,
    workers,
)

app = typer.Typer(
    name="phalanx",
    help="A gang scheduler: all of a job's processes start together, or none does.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
#: The commands as help shows them.
_PANELS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Jobs": {
        "submit": submit.submit,
        "convert": convert.convert,
        "jobs": jobs.jobs,
        "job": job.job,
        "tasks": tasks.tasks,
        "why": why.why,
        "plan": plan.plan,
        "logs": logs.logs,
        "events": events.events,
        "cost": cost.cost,
        "crons": crons.crons,
        "cron": crons.app,
        "cancel": job_actions.cancel,
        "retry": job_actions.retry,
        "hold": job_actions.hold,
        "release": job_actions.release,
        "requeue": job_actions.requeue,
        "priority": job_actions.priority,
    },
    "The cluster": {
        "top": top.top,
        "workers": workers.workers,
        "cordon": workers.cordon,
        "uncordon": workers.uncordon,
        "drain": workers.drain,
        "apply": apply.apply,
        "queues": queues.queues,
        "queue": queues.app,
    },
    "Running it": {
        "up": up.up,
        "serve": serve.serve,
        "worker": worker.worker,
        "config": config.config,
        "token": token.app,
        "simulate": simulate.simulate,
    },
}
for _panel, _commands in _PANELS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_command)


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
    try:
        app()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # What could not be printed is not tried again at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit("phalanx: the output cannot be written: no space is left for it")
