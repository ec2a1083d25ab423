"""`phalanx up`: a server and workers in one terminal, to try Phalanx on one machine."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.exits import Status, end
from phalanx.cli.options import whole_number
from phalanx.cli.settings import NO_DASHBOARD_HELP
from phalanx.server.config import state_directory
from phalanx.server.options import BY_NAME

_PORT: int = BY_NAME["port"].default  # type: ignore[assignment]

Workers = Annotated[
    int,
    typer.Option(
        "--workers",
        "-w",
        metavar="NUMBER",
        parser=whole_number(0, 1000),
        help="Number of workers.",
    ),
]
Gpus = Annotated[
    int,
    typer.Option(
        "--gpus",
        metavar="NUMBER",
        parser=whole_number(0, 64),
        help="Simulated GPUs per worker. With 0, a single worker detects the machine's GPUs.",
    ),
]
Port = Annotated[
    int,
    typer.Option(
        "--port", metavar="NUMBER", parser=whole_number(1, 65535), help="Port of the server."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Directory for all state. [default: the state directory]",
        show_default=False,
    ),
]

NoDashboard = Annotated[bool, typer.Option("--no-dashboard", help=NO_DASHBOARD_HELP)]


def up(
    *,
    workers: Workers = 1,
    gpus: Gpus = 0,
    port: Port = _PORT,
    data: Data = None,
    no_dashboard: NoDashboard = False,
) -> None:
    """Run a server and workers on this machine until Ctrl-C.

    phalanx up --workers 2 --gpus 2
    """
    from phalanx.cli.local_cluster import LocalCluster  # noqa: PLC0415

    folder = (data or state_directory(os.environ)).absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        end(Status.USAGE, f"--data: {folder} cannot be created: {error.strerror}; choose another")
    cluster = LocalCluster(folder, port, workers, gpus, has_dashboard=not no_dashboard)
    raise typer.Exit(asyncio.run(cluster.run()))
