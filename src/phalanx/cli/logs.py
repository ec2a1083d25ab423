"""`phalanx logs`: what the tasks of a job printed."""

from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.completion import Job
from phalanx.cli.connection import with_client
from phalanx.cli.follow import wait_for_start
from phalanx.cli.output import print_output

if TYPE_CHECKING:
    from phalanx.client import Client

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")]
Task = Annotated[
    int | None, typer.Option("--task", "-t", metavar="INDEX", min=0, help="Only of this task.")
]
Tail = Annotated[
    int | None, typer.Option("--tail", "-n", metavar="LINES", min=0, help="Only the last lines.")
]

Attempt = Annotated[
    int | None,
    typer.Option("--attempt", metavar="EPOCH", min=1, help="Only of this attempt."),
]


@with_client
def logs(  # noqa: PLR0913
    client: "Client",
    *,
    called: Job,
    follow: Follow = False,
    task: Task = None,
    attempt: Attempt = None,
    tail: Tail = None,
) -> None:
    """Print the output of a job's tasks. Of several, each line begins with whose it is."""
    job = client.find(called)
    if follow:
        wait_for_start(client, job)
    print_output(client.logs(job, task=task, attempt=attempt, follow=follow, tail=tail))
