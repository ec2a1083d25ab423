"""What is done to jobs: `phalanx cancel`, `hold`, `release`, `requeue`, `priority`, `retry`.

Every name is looked up before anything is done, so a misspelt one changes nothing.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from phalanx.cli.completion import JOB_HELP, Job, jobs
from phalanx.cli.connection import with_client
from phalanx.cli.exits import Status, end
from phalanx.cli.output import Json, print_json
from phalanx.core.model import ENDED

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.jobs import JobView

T = TypeVar("T")

Jobs = Annotated[
    list[str],
    typer.Argument(metavar="JOB", help=JOB_HELP, autocompletion=jobs, show_default=False),
]
Number = Annotated[int, typer.Argument(metavar="PRIORITY", help="Higher starts first.")]


@with_client
def cancel(client: "Client", *, called: Jobs, as_json: Json = False) -> None:
    """Cancel jobs. What runs is stopped with its grace."""
    _each(client, called, client.cancel, _cancelled, as_json=as_json)


def _cancelled(job: "JobView") -> str:
    return f"{job.id} is " + ("cancelled" if job.phase in ENDED else "being stopped")


@with_client
def hold(client: "Client", *, called: Jobs, as_json: Json = False) -> None:
    """Let jobs not start, or start again, until they are released. What runs goes on."""
    _each(client, called, client.hold, lambda job: f"{job.id} is on hold", as_json=as_json)


@with_client
def release(client: "Client", *, called: Jobs, as_json: Json = False) -> None:
    """End the hold of jobs."""
    _each(client, called, client.release, _released, as_json=as_json)


def _released(job: "JobView") -> str:
    return f"{job.id} is no longer on hold"


@with_client
def requeue(client: "Client", *, called: Jobs, as_json: Json = False) -> None:
    """Stop jobs and let them wait again. No failure is counted."""
    _each(client, called, client.requeue, _requeued, as_json=as_json)


def _requeued(job: "JobView") -> str:
    then = "waits again" if job.phase == "pending" else "is being stopped, and will wait again"
    return f"{job.id} {then}"


@with_client
def priority(client: "Client", *, called: Job, number: Number, as_json: Json = False) -> None:
    """Change the priority of a job. Write -- before a negative one."""
    changed = client.set_priority(client.find(called), number)
    if as_json:
        print_json([changed])
        return
    typer.echo(f"{changed.id} has priority {changed.priority}")


@with_client
def retry(client: "Client", *, called: Jobs, as_json: Json = False) -> None:
    """Submit jobs that have ended anew, and print the new ids."""
    _each(client, called, client.retry, lambda job: job.id, as_json=as_json)


def _each(
    client: "Client",
    called: Sequence[str],
    act: Callable[[str], T],
    told: Callable[[T], str],
    *,
    as_json: bool,
) -> None:
    """Those that may not be changed do not keep the others from it."""
    from phalanx.client import ConflictError  # noqa: PLC0415

    changed, refused = [], []
    for job in [client.find(each) for each in called]:
        try:
            changed.append(act(job))
        except ConflictError as error:
            refused.append(str(error))
            continue
        if not as_json:
            typer.echo(told(changed[-1]))
    if as_json:
        print_json(changed)
    if refused:
        end(Status.REFUSED, *refused)
