"""`phalanx events`: the events of a job, or of the whole cluster."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from phalanx.cli.completion import JOB_HELP, jobs
from phalanx.cli.connection import TAKEOVER_S, with_client
from phalanx.cli.exits import Status, end
from phalanx.cli.output import Json, console, print_beside, print_json, print_json_line
from phalanx.core.records import job_of
from phalanx.wire.event_text import sentence, style
from phalanx.wire.events import with_iso_times

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.events import Event

OneJob = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB",
        help=f"{JOB_HELP} Optional with -f: without it, all events are printed.",
        autocompletion=jobs,
        show_default=False,
    ),
]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Print new events until the job ends.")
]


@with_client
def events(
    client: "Client", *, reference: OneJob = None, follow: Follow = False, as_json: Json = False
) -> None:
    """Print the events of a job, or follow all events with -f."""
    if reference is None and not follow:
        end(Status.USAGE, "no job given; name one, or follow all events with -f")
    job = None if reference is None else client.find(reference)
    if follow:
        client.patience_s = TAKEOVER_S
    stream = client.stream() if job is None else client.events(job, follow=follow)
    if as_json and not follow:
        print_json([with_iso_times(event) for event in stream])
    elif as_json:
        for event in stream:
            print_json_line(with_iso_times(event))
    else:
        _print(stream, is_of_one_job=job is not None)


def _print(stream: "Iterator[Event]", *, is_of_one_job: bool) -> None:
    out, date = console(), ""
    for event in stream:
        time = event.time.astimezone()
        if f"{time:%Y-%m-%d}" != date:
            date = f"{time:%Y-%m-%d}"
            out.print(Text(date, style="dim"))
        job = None if is_of_one_job else job_of(event)
        line = Text.assemble((f"{time:%H:%M:%S}", "dim"), (f"  {job}" if job else "", "cyan"))
        print_beside(line, Text(sentence(event), style=style(event)))
