"""How a command ends: the status for scripts, and sentences for people."""

from enum import IntEnum
from typing import NoReturn

import typer


class Status(IntEnum):
    OK = 0
    UNSUCCESSFUL = 1  #: the job that was waited for failed, was cancelled or timed out
    USAGE = 2  #: what was given is wrong
    NOT_FOUND = 3  #: there is no such job, worker or queue
    REFUSED = 4  #: not in this state, or not with this token
    UNREACHABLE = 5  #: no server answers, or none that leads


def end(status: Status, *sentences: str) -> NoReturn:
    """Say it on standard error and leave."""
    for sentence in sentences:
        typer.echo(f"phalanx: {sentence}", err=True)
    raise typer.Exit(status)
