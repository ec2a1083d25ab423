"""`phalanx wait`: until jobs have ended."""

from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.completion import JOB_HELP, unfinished_jobs
from phalanx.cli.connection import with_client
from phalanx.cli.exits import Status, end
from phalanx.cli.follow import print_end, status_of, wait_for
from phalanx.cli.output import Json, print_json

if TYPE_CHECKING:
    from phalanx.client import Client

Jobs = Annotated[
    list[str],
    typer.Argument(metavar="JOB", help=JOB_HELP, autocompletion=unfinished_jobs),
]


def _seconds(given: str) -> float:
    """The reader of a time like 90m."""
    from phalanx.core.errors import Invalid  # noqa: PLC0415
    from phalanx.core.spec.durations import duration  # noqa: PLC0415
    from phalanx.core.time_units import SECOND  # noqa: PLC0415

    try:
        return duration(given) / SECOND
    except Invalid as error:
        raise typer.BadParameter(error.problems[0].message) from None


Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="TIME",
        parser=_seconds,
        help="Stop waiting after this time, like 90m, with status 6.",
    ),
]


@with_client
def wait(
    client: "Client", *, references: Jobs, timeout: Timeout = None, as_json: Json = False
) -> None:
    """Wait until jobs have ended; exit with status 1 unless all are done.

    phalanx wait train evaluate --timeout 6h
    """
    jobs = [client.find(each) for each in references]
    ended = []
    try:
        for job, reference in zip(jobs, references, strict=True):
            ended.append(wait_for(client, job, timeout_s=timeout))
            print_end(ended[-1], "job" if len(jobs) == 1 else f"job {reference}")
    except TimeoutError as error:
        end(Status.TIMED_OUT, str(error))
    if as_json:
        print_json(ended)
    raise typer.Exit(max(map(status_of, ended)))
