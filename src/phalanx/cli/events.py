"""`phalanx events`: the events of a job, or of the whole cluster."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from phalanx.cli import formatting
from phalanx.cli.completion import JOB_HELP, jobs
from phalanx.cli.connection import TAKEOVER_S, with_client
from phalanx.cli.event_text import sentence, style
from phalanx.cli.exits import Status, end
from phalanx.cli.output import Json, console, print_json, print_json_line

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.jobs import RecordView

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
    records = client.stream() if job is None else client.events(job, follow=follow)
    if as_json and not follow:
        print_json(list(records))
    elif as_json:
        for record in records:
            print_json_line(record)
    else:
        _print(records, is_of_one_job=job is not None)


def _print(records: "Iterator[RecordView]", *, is_of_one_job: bool) -> None:
    out, date = console(), ""
    for record in records:
        if formatting.local_date(record.at) != date:
            date = formatting.local_date(record.at)
            out.print(Text(date, style="dim"))
        job = "" if is_of_one_job or record.job is None else f"{record.job}  "
        line = Text.assemble((formatting.local_clock(record.at), "dim"), "  ", (job, "cyan"))
        line.append(sentence(record), style=style(record))
        out.print(line, soft_wrap=True)
