"""Waiting for a job in front of a person: what it waits for, as it changes, and how it ended."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.text import Text

from phalanx.cli import formatting
from phalanx.cli.connection import PATIENT_S
from phalanx.cli.exits import Status
from phalanx.cli.output import console, note
from phalanx.core.model import Phase

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.jobs import JobDetail


def wait_for(client: "Client", job: str) -> "JobDetail":
    """The job when it has ended. Only on a terminal is anything shown meanwhile."""
    client.patience_s = PATIENT_S
    return _watched(client, job, lambda _: False)


def wait_for_start(client: "Client", job: str) -> None:
    """Until there may be output. Whoever does not look on need not wait for it here."""
    client.patience_s = PATIENT_S
    if console(on_stderr=True).is_terminal:
        _watched(client, job, lambda found: found.epoch > 0)


def _watched(client: "Client", job: str, is_enough: "Callable[[JobDetail], bool]") -> "JobDetail":
    screen = console(on_stderr=True)
    if not screen.is_terminal:
        return client.wait(job)
    with screen.status("") as status:
        for found in client.watch(job):
            status.update(_standing(found))
            if is_enough(found):
                break
    return found


def _standing(job: "JobDetail") -> Text:
    why = formatting.explanation(job)
    told = formatting.counted(job.counts) if job.phase is Phase.RUNNING else why
    return Text.assemble(formatting.state(job.phase), f": {told}" if told else "")


def status_of(job: "JobDetail") -> Status:
    """What a script is told of a job that has ended."""
    return Status.OK if job.phase is Phase.DONE else Status.UNSUCCESSFUL


def tell_end(job: "JobDetail") -> None:
    took = (
        formatting.since(job.created_at, formatting.moment(job.finished_at))
        if job.finished_at
        else ""
    )
    why = formatting.explanation(job)
    told = Text.assemble(formatting.state(job.phase), f" after {took}", f": {why}" if why else "")
    note(told)
