"""`phalanx jobs`: what there is, the unfinished first."""

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from phalanx.cli import completion, formatting
from phalanx.cli.connection import with_client
from phalanx.cli.output import Json, note, print_json, print_trimmed, table_of
from phalanx.core.model import Phase

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.jobs import JobView

_SHOWN = 30

Namespace = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="Only of this namespace.")
]
Queue = Annotated[
    str | None,
    typer.Option(
        "--queue", metavar="NAME", help="Only of this queue.", autocompletion=completion.queues
    ),
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Only of this name.")]
InPhase = Annotated[Phase | None, typer.Option("--phase", help="Only in this phase.")]
Limit = Annotated[
    int, typer.Option("--limit", "-n", metavar="NUMBER", min=1, help="At most this many.")
]
All = Annotated[bool, typer.Option("--all", "-a", help="However many they are.")]


@with_client
def jobs(  # noqa: PLR0913
    client: "Client",
    *,
    namespace: Namespace = None,
    queue: Queue = None,
    phase: InPhase = None,
    name: Name = None,
    limit: Limit = _SHOWN,
    show_all: All = False,
    as_json: Json = False,
) -> None:
    """List jobs: the unfinished first, then the finished, each the latest first."""
    most = None if show_all else limit
    page = min(1000, (most or 999) + 1)
    find = partial(client.jobs, namespace=namespace, queue=queue, phase=phase, name=name, page=page)
    found = {job.id: job for job in islice(find(finished=False), most and most + 1)}
    if most is None or len(found) <= most:
        found |= {job.id: job for job in islice(find(finished=True), most and most + 1)}
    listed = list(found.values())
    shown = listed[:most]
    if as_json:
        print_json(shown)
        return
    if not shown:
        note("there are no such jobs" if namespace or queue or phase or name else "no jobs yet")
        return
    print_trimmed(jobs_table(shown))
    if len(shown) < len(listed):
        note(f"… and more; -n {2 * limit} shows some of them, --all all")


def jobs_table(shown: "Sequence[JobView]") -> Table:
    now = formatting.now()
    rows = [
        (
            job.id,
            formatting.title(job),
            formatting.state(job.phase),
            str(job.size),
            job.queue,
            str(job.priority),
            formatting.age(job.created_at, now),
            formatting.explanation(job),
        )
        for job in shown
    ]
    heads = ["JOB", "NAME", "PHASE", "#TASKS", "QUEUE", "#PRIO", "#AGE", "WHY"]
    # What is the same for all says nothing.
    dull = {
        at
        for at, usual in {1: "-", 4: "default", 5: "0", 7: ""}.items()
        if all(row[at] == usual for row in rows)
    }
    kept = [at for at in range(len(heads)) if at not in dull]
    return table_of([heads[at] for at in kept], [[row[at] for at in kept] for row in rows])
