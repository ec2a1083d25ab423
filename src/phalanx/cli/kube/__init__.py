"""`phalanx kube`: Phalanx as a scheduler of Kubernetes, and what it decides."""

import typer

from phalanx.cli.help_pages import HelpCommand
from phalanx.cli.kube.gangs import gangs
from phalanx.cli.kube.plan import plan
from phalanx.cli.kube.queues import queues
from phalanx.cli.kube.scheduler import scheduler
from phalanx.cli.kube.why import why

app = typer.Typer(no_args_is_help=True, help="Schedule the pods of a Kubernetes cluster.")
for _command in (scheduler, gangs, why, plan, queues):
    app.command(_command.__name__, cls=HelpCommand)(_command)
