"""`phalanx events`: the story of a job, or all that happens."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from phalanx.cli import formatting
from phalanx.cli.completion import JOB_HELP, jobs
from phalanx.cli.connection import PATIENT_S, with_client
from phalanx.cli.event_text import sentence, style
from phalanx.cli.exits import Status, end
from phalanx.cli.output import Json, console, print_json, print_json_line

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.jobs import RecordView

OneJob = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        help=f"{JOB_HELP} With -f it may be left out: everything is told.",
        autocompletion=jobs,
        show_default=False,
    ),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")]


@with_client
def events(
    client: "Client", *, called: OneJob = None, follow: Follow = False, as_json: Json = False
) -> None:
    """Tell the story of a job. With -f, as it happens."""
    if called is None and not follow:
        end(Status.USAGE, "whose? name a job, or follow all that happens with -f")
    job = None if called is None else client.find(called)
    if follow:
        client.patience_s = PATIENT_S
    told = client.stream() if job is None else client.events(job, follow=follow)
    if as_json and not follow:
        print_json(list(told))
    elif as_json:
        for record in told:
            print_json_line(record)
    else:
        _tell(told, is_of_one=job is not None)


def _tell(told: "Iterator[RecordView]", *, is_of_one: bool) -> None:
    out, day = console(), ""
    for record in told:
        if formatting.day(record.at) != day:
            day = formatting.day(record.at)
            out.print(Text(day, style="dim"))
        subject = "" if is_of_one or record.job is None else f"{record.job}  "
        line = Text.assemble((formatting.clock(record.at), "dim"), "  ", (subject, "cyan"))
        line.append(sentence(record), style=style(record))
        out.print(line, soft_wrap=True)
