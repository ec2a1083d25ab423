"""`phalanx kube scheduler`: Phalanx as a scheduler of Kubernetes."""

import os
import socket
from typing import Annotated

import typer

from phalanx.cli.exits import Status, end
from phalanx.cli.kube.cluster import (
    Context,
    Kubeconfig,
    Names,
    Nodes,
    check_installed,
    no_answer,
    split_names,
)
from phalanx.cli.log_options import Format, Level
from phalanx.cli.options import decimal
from phalanx.cli.settings import refuse
from phalanx.host.interpreter import import_structlog
from phalanx.server.options import LogFormat, LogLevel

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
CheckpointWait = Annotated[
    float,
    typer.Option(
        "--checkpoint-wait",
        envvar="PHALANX_KUBE_CHECKPOINT_WAIT",
        metavar="SECONDS",
        parser=decimal(least=0),
        help="Give preempted pods with the annotation phalanx.dev/checkpoint this long to save"
        " their work.",
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


def scheduler(  # noqa: PLR0913
    *,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    scheduler_names: Names = "phalanx",
    nodes: Nodes = "",
    gang_timeout: GangTimeout = 60.0,
    checkpoint_wait: CheckpointWait = 60.0,
    lease_namespace: LeaseNamespace = None,
    identity: Identity = None,
    listen: Listen = None,
    log_format: Format = LogFormat.TEXT,
    log_level: Level = LogLevel.INFO,
) -> None:
    """Bind pods to nodes, gangs as a whole, until SIGTERM or Ctrl-C.

    Several schedulers can run: one leads, the others stand by.
    """
    check_installed()
    import_structlog()
    from phalanx.kube import process  # noqa: PLC0415
    from phalanx.kube.api.errors import ApiUnreachableError  # noqa: PLC0415
    from phalanx.kube.rights import MissingRightsError  # noqa: PLC0415
    from phalanx.kube.scheduler import SchedulerSettings  # noqa: PLC0415
    from phalanx.server import log_output  # noqa: PLC0415

    settings = process.ProcessSettings(
        SchedulerSettings(split_names(scheduler_names), nodes, gang_timeout, checkpoint_wait),
        kubeconfig,
        context,
        lease_namespace,
        identity or f"{socket.gethostname()}_{os.getpid()}",
        _address(listen),
    )
    log_output.set_up(log_format, log_level)
    try:
        status = process.run(settings)
    except process.CannotSchedule as error:
        refuse(str(error))
    except MissingRightsError as error:
        end(Status.REFUSED, str(error))
    except ApiUnreachableError as error:
        end(Status.UNREACHABLE, no_answer(error))
    raise typer.Exit(status)


def _address(listen: str | None) -> tuple[str, int] | None:
    if listen is None:
        return None
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        refuse(f"--listen: {listen} is not HOST:PORT; write it like 0.0.0.0:8080")
    return host.strip("[]"), int(port)
