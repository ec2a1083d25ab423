"""The command line: one module per command or noun, registered here.

Commands import what they need when they run, so that `--help` and completion are quick.
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
    audit,
    ca,
    config,
    convert,
    cost,
    crons,
    events,
    job,
    job_actions,
    jobs,
    kube,
    login,
    logs,
    plan,
    progress,
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
from phalanx.cli.help_pages import HelpCommand, HelpGroup
from phalanx.cli.usage_errors import CommandLine

app = typer.Typer(
    name="phalanx",
    cls=CommandLine,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
#: The commands by topic, in the order in which `--help` lists them.
_PANELS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Run a cluster": {
        "up": up.up,
        "serve": serve.serve,
        "worker": worker.worker,
        "kube": kube.app,
    },
    "Submit and follow jobs": {
        "login": login.login,
        "submit": submit.submit,
        "jobs": jobs.jobs,
        "job": job.job,
        "tasks": tasks.tasks,
        "progress": progress.progress,
        "logs": logs.logs,
        "events": events.events,
        "why": why.why,
        "top": top.top,
    },
    "Change jobs": {
        "cancel": job_actions.cancel,
        "retry": job_actions.retry,
        "requeue": job_actions.requeue,
        "hold": job_actions.hold,
        "release": job_actions.release,
        "priority": job_actions.priority,
    },
    "Run jobs on a schedule": {
        "crons": crons.crons,
        "cron": crons.app,
    },
    "Manage workers and queues": {
        "workers": workers.workers,
        "cordon": workers.cordon,
        "uncordon": workers.uncordon,
        "drain": workers.drain,
        "queues": queues.queues,
        "queue": queues.app,
        "apply": apply.apply,
    },
    "Plan and measure": {
        "plan": plan.plan,
        "simulate": simulate.simulate,
        "cost": cost.cost,
        "convert": convert.convert,
    },
    "Administer a server": {
        "config": config.config,
        "token": token.app,
        "audit": audit.audit,
        "ca": ca.app,
    },
}
for _panel, _commands in _PANELS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel, cls=HelpGroup)
        else:
            app.command(_name, rich_help_panel=_panel, cls=HelpCommand)(_command)


def _print_version(is_given: bool) -> None:
    if is_given:
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
