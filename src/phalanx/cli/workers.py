"""The machines: `phalanx workers`, `cordon`, `uncordon`, `drain`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from phalanx.cli import formatting
from phalanx.cli.completion import Worker
from phalanx.cli.connection import with_client
from phalanx.cli.output import Json, note, print_json, print_trimmed, table_of

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.workers import WorkerView

Reason = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="What to tell those who ask.")
]
Deadline = Annotated[
    str | None,
    typer.Option(
        "--deadline", metavar="TIME", help="Let what is there go on for so long, like 2h."
    ),
]

_NAMED = ("gpu", "cpu", "memory")


@with_client
def workers(client: "Client", *, as_json: Json = False) -> None:
    """List the workers: what they have, what is free, and why they take nothing new."""
    found = client.workers()
    if as_json:
        print_json(found)
    elif not found:
        note("no workers yet; start one with `phalanx worker`")
    else:
        print_trimmed(workers_table(found))


def workers_table(found: "Sequence[WorkerView]") -> Table:
    """What is free of what there is; resources that nobody has are left out."""
    names = [name for name in _NAMED if any(name in worker.resources for worker in found)]
    others = sorted({name for worker in found for name in worker.resources} - set(_NAMED))
    names += others
    heads = ["WORKER", "STATUS", "#TASKS", *(f"#FREE {name.upper()}" for name in names), "TAGS"]
    rows: list[list[str | Text]] = [
        [
            worker.id,
            formatting.state(worker.status),
            str(len(worker.tasks)),
            *(_free(worker, name) for name in names),
            _remark(worker),
        ]
        for worker in found
    ]
    return table_of(heads, rows)


def _free(worker: "WorkerView", name: str) -> str:
    if name not in worker.resources:
        return "-"
    free, all_of_it = worker.free.get(name, 0), worker.resources[name]
    return f"{formatting.rounded(name, free)}/{formatting.rounded(name, all_of_it)}"


def _remark(worker: "WorkerView") -> Text:
    """Its tags, and before them whatever keeps it from taking tasks."""
    tags = " ".join(f"{name}={value}" for name, value in sorted(worker.tags.items()))
    if worker.lost_at is not None:
        return Text.assemble(
            (f"silent, lost {formatting.ago(worker.lost_at, formatting.now())}  ", "red"), tags
        )
    if worker.cordoned is not None:
        return Text.assemble((f"{worker.cordoned}  ", "yellow"), tags)
    return Text(tags)


@with_client
def cordon(
    client: "Client", *, worker: Worker, reason: Reason = None, as_json: Json = False
) -> None:
    """Place nothing new on a worker. What runs there goes on."""
    found = client.cordon(worker, reason=reason)
    if as_json:
        print_json(found)
        return
    typer.echo(f"{found.id} takes nothing new; `phalanx uncordon {found.id}` opens it again")


@with_client
def uncordon(client: "Client", *, worker: Worker, as_json: Json = False) -> None:
    """Open a worker again."""
    found = client.uncordon(worker)
    if as_json:
        print_json(found)
        return
    typer.echo(f"{found.id} is open")


@with_client
def drain(
    client: "Client",
    *,
    worker: Worker,
    deadline: Deadline = None,
    reason: Reason = None,
    as_json: Json = False,
) -> None:
    """Empty a worker: nothing new is placed there, and what runs there goes elsewhere."""
    found = client.drain(worker, deadline=deadline, reason=reason)
    if as_json:
        print_json(found)
        return
    if found.evicted:
        typer.echo(f"{worker} is being emptied; these go elsewhere: {', '.join(found.evicted)}")
    elif found.worker.tasks:
        left = formatting.counted_as(len(found.worker.tasks), "task")
        then = f" has {deadline} left" if deadline else " is stopping"
        typer.echo(f"{worker} takes nothing new; what is there ({left}){then}")
    else:
        typer.echo(f"{worker} takes nothing new, and is empty")
