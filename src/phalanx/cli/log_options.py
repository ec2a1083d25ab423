"""The options of commands that write a log."""

from typing import Annotated

import typer

from phalanx.cli.options import one_of
from phalanx.server.options import LogFormat, LogLevel

Format = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        envvar="PHALANX_LOG_FORMAT",
        metavar="FORMAT",
        parser=one_of(LogFormat),
        help=f"Log format: {', '.join(LogFormat)}.",
    ),
]
Level = Annotated[
    LogLevel,
    typer.Option(
        "--log-level",
        envvar="PHALANX_LOG_LEVEL",
        metavar="LEVEL",
        parser=one_of(LogLevel),
        help=f"Lowest level that is logged: {', '.join(LogLevel)}.",
    ),
]
