"""`phalanx up`: a server and its workers in one terminal, to try things on one machine."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from phalanx.server.config import state_directory
from phalanx.server.options import BY_NAME

_PORT: int = BY_NAME["port"].default  # type: ignore[assignment]

Workers = Annotated[
    int, typer.Option("--workers", "-w", metavar="NUMBER", min=0, max=1000, help="How many.")
]
Gpus = Annotated[
    int,
    typer.Option(
        "--gpus", metavar="NUMBER", min=0, max=64, help="GPUs that each worker pretends to have."
    ),
]
Port = Annotated[
    int,
    typer.Option("--port", metavar="NUMBER", min=1, max=65535, help="Where the server listens."),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Where everything is kept (default: the state directory).",
        show_default=False,
    ),
]


def up(*, workers: Workers = 1, gpus: Gpus = 0, port: Port = _PORT, data: Data = None) -> None:
    """Run a server and workers on this machine until Ctrl-C."""
    from phalanx.cli.local_cluster import LocalCluster  # noqa: PLC0415

    folder = (data or state_directory(os.environ)).absolute()
    raise typer.Exit(asyncio.run(LocalCluster(folder, port, workers, gpus).live()))
