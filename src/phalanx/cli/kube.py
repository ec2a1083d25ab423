"""`phalanx kube`: Phalanx as a scheduler of Kubernetes."""

import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.help_pages import HelpCommand
from phalanx.cli.log_options import Format, Level
from phalanx.cli.options import decimal
from phalanx.cli.settings import refuse
from phalanx.server.options import LogFormat, LogLevel

app = typer.Typer(no_args_is_help=True, help="Schedule the pods of a Kubernetes cluster.")

Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="Kubeconfig file. [default: the files of KUBECONFIG, ~/.kube/config, or the pod's"
        " service account]",
    ),
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context", metavar="NAME", help="Context of the kubeconfig file. [default: its current]"
    ),
]
Names = Annotated[
    str,
    typer.Option(
        "--scheduler-names",
        envvar="PHALANX_KUBE_SCHEDULER_NAMES",
        metavar="NAME,…",
        help="Schedule pods with these names in spec.schedulerName.",
    ),
]
Nodes = Annotated[
    str,
    typer.Option(
        "--nodes",
        envvar="PHALANX_KUBE_NODES",
        metavar="SELECTOR",
        help="Label selector: place pods only on these nodes. [default: all nodes]",
    ),
]
GangTimeout = Annotated[
    float,
    typer.Option(
        "--gang-timeout",
        envvar="PHALANX_KUBE_GANG_TIMEOUT",
        metavar="SECONDS",
        parser=decimal(least=1),
        help="Evict a gang that is bound in part for longer than this.",
    ),
]
LeaseNamespace = Annotated[
    str | None,
    typer.Option(
        "--lease-namespace",
        envvar="PHALANX_KUBE_LEASE_NAMESPACE",
        metavar="NAMESPACE",
        help="Namespace of the lease by which one of several schedulers leads. [default: the"
        " namespace of the context or of the pod]",
    ),
]
Identity = Annotated[
    str | None,
    typer.Option(
        "--identity",
        envvar="PHALANX_KUBE_IDENTITY",
        metavar="NAME",
        help="Name of this scheduler in the lease. [default: host name and process id]",
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        "--listen",
        envvar="PHALANX_KUBE_LISTEN",
        metavar="HOST:PORT",
        help="Serve /healthz, /readyz and /metrics here. [default: not served]",
    ),
]


@app.command(cls=HelpCommand)
def scheduler(  # noqa: PLR0913
    *,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    scheduler_names: Names = "phalanx",
    nodes: Nodes = "",
    gang_timeout: GangTimeout = 60.0,
    lease_namespace: LeaseNamespace = None,
    identity: Identity = None,
    listen: Listen = None,
    log_format: Format = LogFormat.TEXT,
    log_level: Level = LogLevel.INFO,
) -> None:
    """Bind pods to nodes, gangs as a whole, until SIGTERM or Ctrl-C.

    Several schedulers can run: one leads, the others stand by.
    """
    try:
        from phalanx.kube import process  # noqa: PLC0415
        from phalanx.kube.scheduler import SchedulerSettings  # noqa: PLC0415
    except ModuleNotFoundError as error:
        refuse(f"{error.name} is not installed; install phalanx with the extra kubernetes")
    from phalanx.server import logs  # noqa: PLC0415

    names = tuple(name.strip() for name in scheduler_names.split(",") if name.strip())
    if not names:
        refuse("--scheduler-names: name at least one scheduler")
    settings = process.ProcessSettings(
        SchedulerSettings(names, nodes, gang_timeout),
        kubeconfig,
        context,
        lease_namespace,
        identity or f"{socket.gethostname()}_{os.getpid()}",
        _address(listen),
    )
    logs.set_up(log_format, log_level)
    try:
        status = process.run(settings)
    except process.CannotSchedule as error:
        refuse(str(error))
    raise typer.Exit(status)


def _address(listen: str | None) -> tuple[str, int] | None:
    if listen is None:
        return None
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        refuse(f"--listen: {listen} is not HOST:PORT; write it like 0.0.0.0:8080")
    return host.strip("[]"), int(port)
