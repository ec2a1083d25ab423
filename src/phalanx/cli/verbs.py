"""What is done to jobs: `phalanx cancel`, `hold`, `release`, `requeue`, `priority`, `retry`.

Every name is looked up before anything is done, so a misspelt one changes nothing.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from phalanx.cli.completion import JOB_HELP, Job, jobs
from phalanx.cli.connection import with_client
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
    _tell(_each(client, called, client.cancel), _cancelled, as_json=as_json)


def _cancelled(job: "JobView") -> str:
    return "is cancelled" if job.phase in ENDED else "is being stopped"


@with_client
def hold(client: "Client", *, called: Jobs, as_json: Json = False) -> None:
    """Let jobs not start, or start again, until they are released. What runs goes on."""
    _tell(_each(client, called, client.hold), lambda _: "is on hold", as_json=as_json)


@with_client
def release(client: "Client", *, called: Jobs, as_json: Json = False) -> None:
    """End the hold of jobs."""
    _tell(_each(client, called, client.release), lambda _: "is no longer on hold", as_json=as_json)


@with_client
def requeue(client: "Client", *, called: Jobs, as_json: Json = False) -> None:
    """Stop jobs and let them wait again. No failure is counted."""
    _tell(_each(client, called, client.requeue), _requeued, as_json=as_json)


def _requeued(job: "JobView") -> str:
    return "waits again" if job.phase == "waiting" else "is being stopped, and will wait again"


@with_client
def priority(client: "Client", *, called: Job, number: Number, as_json: Json = False) -> None:
    """Change the priority of a job. Write -- before a negative one."""
    changed = client.set_priority(client.find(called), number)
    _tell([changed], lambda job: f"has priority {job.priority}", as_json=as_json)


@with_client
def retry(client: "Client", *, called: Jobs, as_json: Json = False) -> None:
    """Submit jobs that have ended anew, and print the new ids."""
    made = _each(client, called, client.retry)
    if as_json:
        print_json(made)
        return
    for job in made:
        typer.echo(job.id)


def _each(client: "Client", called: Sequence[str], act: Callable[[str], T]) -> list[T]:
    return [act(job) for job in [client.find(each) for each in called]]


def _tell(changed: "Sequence[JobView]", told: "Callable[[JobView], str]", *, as_json: bool) -> None:
    if as_json:
        print_json(changed)
        return
    for job in changed:
        typer.echo(f"{job.id} {told(job)}")
