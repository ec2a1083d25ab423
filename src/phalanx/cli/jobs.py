"""`phalanx jobs`: the list of jobs, unfinished first."""

import sys
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from phalanx.cli import completion, formatting
from phalanx.cli.connection import with_client
from phalanx.cli.elements import list_elements, refuse_filters
from phalanx.cli.options import one_of, whole_number
from phalanx.cli.output import Json, Narrow, console, note, print_json, print_trimmed, table_of
from phalanx.cli.progress_text import progress_cell
from phalanx.core.model import Phase

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.jobs import JobView

#: Entries that are listed on a terminal.
_SCREEN_LIMIT = 30
_MAX_PAGE = 1000
#: On narrower screens, progress has no bar.
_WIDE = 100
_NARROW = Narrow(cut=("NAME", "QUEUE", "REASON"), drop=("PRIO", "QUEUE", "TASKS"))
#: Where that is not enough.
_NARROWEST = Narrow(cut=("PROGRESS", *_NARROW.cut), drop=(*_NARROW.drop, "REASON"), least=14)

Namespace = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="Only this namespace.")
]
Queue = Annotated[
    str | None,
    typer.Option(
        "--queue", metavar="NAME", help="Only this queue.", autocompletion=completion.queues
    ),
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Only this job name.")]
InPhase = Annotated[
    Phase | None,
    typer.Option(
        "--phase",
        metavar="PHASE",
        parser=one_of(Phase),
        help=f"Only this phase: {', '.join(Phase)}.",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        "-n",
        metavar="NUMBER",
        parser=whole_number(1),
        help="List at most this many. [default: 30 on a terminal, otherwise all]",
    ),
]
All = Annotated[bool, typer.Option("--all", "-a", help="List all of them.")]


ArrayJob = Annotated[
    str | None,
    typer.Argument(
        metavar="ARRAY",
        help="List the elements of this array.",
        autocompletion=completion.jobs,
        show_default=False,
    ),
]


@with_client
def jobs(  # noqa: PLR0913
    client: "Client",
    *,
    array: ArrayJob = None,
    namespace: Namespace = None,
    queue: Queue = None,
    phase: InPhase = None,
    name: Name = None,
    limit: Limit = None,
    show_all: All = False,
    as_json: Json = False,
) -> None:
    """List jobs: unfinished before finished, newest first. An array is one line.

    phalanx jobs
    phalanx jobs --queue lab --phase pending
    phalanx jobs sweep --phase failed
    """
    has_screen = sys.stdout.isatty() and not as_json
    most = None if show_all else limit or (_SCREEN_LIMIT if has_screen else None)
    if array is not None:
        refuse_filters(namespace=namespace, queue=queue, name=name)
        list_elements(client, array, phase, most, as_json=as_json)
        return
    page = _MAX_PAGE if most is None else min(_MAX_PAGE, most + 1)
    fetch = partial(
        client.jobs, namespace=namespace, queue=queue, phase=phase, name=name, page=page
    )
    # One more than is listed, to know whether there are more.
    fetched = {job.id: job for job in islice(fetch(finished=False), most and most + 1)}
    if most is None or len(fetched) <= most:
        fetched |= {job.id: job for job in islice(fetch(finished=True), most and most + 1)}
    listed = list(fetched.values())[:most]
    if queue is not None and not listed:
        client.queue(queue)  # ends the command if there is none of this name
    if as_json:
        print_json(listed)
        return
    if not listed:
        is_filtered = namespace or queue or phase or name
        note("no jobs match" if is_filtered else "no jobs; submit one with `phalanx submit`")
        return
    print_trimmed(jobs_table(listed))
    if len(listed) < len(fetched):
        note(f"more jobs exist; list them with -n {2 * len(listed)} or --all")


def _tasks(job: "JobView") -> str:
    return str(job.size if job.elements is None else job.size * job.elements.total)


def _reason(job: "JobView", names: dict[str, str]) -> str:
    """The reason, unless the counts of an array say the same."""
    is_counted = job.elements is not None and job.phase in (Phase.FAILED, Phase.TIMED_OUT)
    return "" if is_counted else formatting.reason_text(job, names)


def _progress(job: "JobView", *, with_bar: bool, is_short: bool) -> str:
    if job.elements is not None:
        counts = formatting.short_element_counts if is_short else formatting.element_counts
        return counts(job.elements)
    return progress_cell(job.progress if job.finished_at is None else None, with_bar=with_bar)


def jobs_table(listed: "Sequence[JobView]") -> Table:
    """One line per job. On a narrow screen the counts of an array are shorter."""
    table = _table(listed, is_short=False)
    return table if (table.width or 0) <= console().width else _table(listed, is_short=True)


def _table(listed: "Sequence[JobView]", *, is_short: bool) -> Table:
    now, names = formatting.now(), formatting.names_of(listed)
    with_bar = console().width >= _WIDE
    rows = [
        (
            job.id,
            formatting.display_name(job),
            formatting.styled(job.phase),
            _tasks(job),
            job.queue,
            str(job.priority),
            formatting.age(job.created_at, now),
            _progress(job, with_bar=with_bar, is_short=is_short),
            _reason(job, names),
        )
        for job in listed
    ]
    headings = ["JOB", "NAME", "PHASE", "#TASKS", "QUEUE", "#PRIO", "#AGE", "PROGRESS", "REASON"]
    # A column in which every row has the default value is left out.
    defaults = {1: "-", 4: "default", 5: "0", 7: "", 8: ""}
    omitted = {at for at, default in defaults.items() if all(row[at] == default for row in rows)}
    kept = [at for at in range(len(headings)) if at not in omitted]
    narrow = _NARROWEST if is_short else _NARROW
    return table_of(
        [headings[at] for at in kept], [[row[at] for at in kept] for row in rows], narrow
    )
