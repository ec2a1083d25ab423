"""How a command ends: an exit status for scripts and sentences for people."""

from enum import IntEnum
from typing import NoReturn

import typer

from phalanx.cli.visible_text import say


class Status(IntEnum):
    OK = 0
    UNSUCCESSFUL = 1  #: the job that was waited for failed, was cancelled or timed out
    USAGE = 2  #: an argument, option or file is wrong
    NOT_FOUND = 3  #: no such job, worker, queue or cron
    REFUSED = 4  #: not possible in the current state, or not permitted with this token
    UNREACHABLE = 5  #: no server answered, or none of them leads
    TIMED_OUT = 6  #: the time of `phalanx wait --timeout` is over


def end(status: Status, *sentences: str) -> NoReturn:
    """Print the sentences to standard error and exit."""
    for sentence in sentences:
        say(f"phalanx: {sentence}", err=True)
    raise typer.Exit(status)
