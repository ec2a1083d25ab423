"""`phalanx logs`: the output of a job's tasks."""

from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli import formatting
from phalanx.cli.completion import Job
from phalanx.cli.connection import with_client
from phalanx.cli.follow import wait_for_start
from phalanx.cli.options import whole_number
from phalanx.cli.output import note, print_task_output

if TYPE_CHECKING:
    from phalanx.client import Client

Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Print new output until the job ends.")
]
Task = Annotated[
    str | None,
    typer.Option(
        "--task", "-t", metavar="TASK", help="Only this task: its number, or role and index."
    ),
]
Tail = Annotated[
    int | None,
    typer.Option(
        "--tail", "-n", metavar="LINES", parser=whole_number(0), help="Only the last lines."
    ),
]
Attempt = Annotated[
    int | None,
    typer.Option("--attempt", metavar="NUMBER", parser=whole_number(1), help="Only this attempt."),
]


@with_client
def logs(  # noqa: PLR0913
    client: "Client",
    *,
    reference: Job,
    follow: Follow = False,
    task: Task = None,
    attempt: Attempt = None,
    tail: Tail = None,
) -> None:
    """Print the output of a job's tasks.

    The lines of a gang begin with the name of their task: its role and its index.
    """
    job = client.find(reference)
    if follow:
        wait_for_start(client, job)
    lines = client.logs(job, task=task, attempt=attempt, follow=follow, tail=tail)
    first = next(lines, None)
    if first is not None:
        print_task_output(chain([first], lines))
    elif tail != 0:
        detail = client.get(job)
        reason = formatting.reason_text(detail)
        note(f"no output; the job is {detail.phase}" + (f": {reason}" if reason else ""))
