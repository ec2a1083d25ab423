"""Shares of the cluster: `phalanx queues`, and `phalanx queue set`, `delete`, `stop`, `start`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from phalanx.cli import completion, formatting
from phalanx.cli.completion import Queue
from phalanx.cli.connection import with_client
from phalanx.cli.exits import Status, end
from phalanx.cli.output import Json, print_json, print_trimmed, table_of

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.workers import QueueView

app = typer.Typer(help="Change a queue.", no_args_is_help=True)

Weight = Annotated[
    int | None, typer.Option("--weight", metavar="NUMBER", help="Its share beside its siblings.")
]
Quota = Annotated[
    str | None, typer.Option("--quota", metavar="gpu=16,…", help="What it is owed; '' for nothing.")
]
Limit = Annotated[
    str | None,
    typer.Option("--limit", metavar="gpu=32,…", help="What it may use at most; '' for all."),
]
Parent = Annotated[
    str | None,
    typer.Option(
        "--parent",
        metavar="QUEUE",
        help="The queue whose share it is part of; '' for none.",
        autocompletion=completion.queues,
    ),
]


@with_client
def queues(client: "Client", *, as_json: Json = False) -> None:
    """List the queues as the tree that they are."""
    found = client.queues()
    if as_json:
        print_json(found)
    else:
        print_trimmed(queues_table(found))


def queues_table(found: "Sequence[QueueView]") -> Table:
    heads = ["QUEUE", "#WEIGHT", "QUOTA", "LIMIT", "STATE"]
    rows = [
        (
            "  " * depth + queue.name,
            str(queue.weight),
            formatting.amounts(queue.quota),
            formatting.amounts(queue.limit),
            Text("stopped", style="yellow") if queue.stopped else Text("open", style="green"),
        )
        for depth, queue in _tree(found)
    ]
    return table_of(heads, rows)


def _tree(found: "Sequence[QueueView]") -> "list[tuple[int, QueueView]]":
    """Each below its parent, with its depth. One whose parent was never set stands at the top."""
    names = {queue.name for queue in found}
    below: dict[str | None, list[QueueView]] = {}
    for queue in sorted(found, key=lambda queue: queue.name):
        below.setdefault(queue.parent if queue.parent in names else None, []).append(queue)
    listed: list[tuple[int, QueueView]] = []

    def walk(parent: str | None, depth: int) -> None:
        for queue in below.get(parent, []):
            listed.append((depth, queue))
            walk(queue.name, depth + 1)

    walk(None, 0)
    return listed


@app.command("set")
@with_client
def set_queue(  # noqa: PLR0913
    client: "Client",
    *,
    queue: Queue,
    weight: Weight = None,
    quota: Quota = None,
    limit: Limit = None,
    parent: Parent = None,
    as_json: Json = False,
) -> None:
    """Make a queue, or change what is given of it."""
    from phalanx.client import NotFoundError  # noqa: PLC0415

    try:
        before = client.queue(queue)
    except NotFoundError:
        fields: dict[str, Any] = {}
    else:
        fields = {
            "weight": before.weight,
            "quota": before.quota,
            "limit": before.limit,
            "parent": before.parent,
            "stopped": before.stopped,
        }
    fields["weight"] = fields.get("weight") if weight is None else weight
    for name, given in {"quota": quota, "limit": limit}.items():
        if given is not None:
            fields[name] = _amounts(name, given)
    if parent is not None:
        fields["parent"] = parent or None
    found = client.set_queue(queue, **fields)
    if as_json:
        print_json(found)
        return
    print_trimmed(queues_table([found]))


def _amounts(flag: str, given: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in given.split(",") if pair]
    for name, equals, amount in pairs:
        if not (name and equals and amount):
            end(Status.USAGE, f"--{flag} is {given!r}; write resources and amounts, like gpu=16")
    return {name.strip(): amount.strip() for name, _, amount in pairs}


@app.command("delete")
@with_client
def delete(client: "Client", *, queue: Queue) -> None:
    """Remove a queue that has no children and no unfinished jobs."""
    client.delete_queue(queue)
    typer.echo(f"queue {queue} is gone")


@app.command("stop")
@with_client
def stop(client: "Client", *, queue: Queue, as_json: Json = False) -> None:
    """Let nothing of a queue start. What runs goes on."""
    found = client.stop_queue(queue)
    if as_json:
        print_json(found)
        return
    typer.echo(f"nothing of queue {queue} starts; `phalanx queue start {queue}` ends that")


@app.command("start")
@with_client
def start(client: "Client", *, queue: Queue, as_json: Json = False) -> None:
    """Let jobs of a queue start again."""
    found = client.start_queue(queue)
    if as_json:
        print_json(found)
        return
    typer.echo(f"jobs of queue {queue} may start")
