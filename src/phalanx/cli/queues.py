"""Queues: `phalanx queues`, and `phalanx queue set`, `delete`, `stop`, `start`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer
from msgspec.structs import asdict
from rich.table import Table
from rich.text import Text

from phalanx.cli import completion, formatting
from phalanx.cli.completion import Queue
from phalanx.cli.connection import with_client
from phalanx.cli.exits import Status, end
from phalanx.cli.help_pages import HelpCommand
from phalanx.cli.options import Switch, one_of, whole_number
from phalanx.cli.output import (
    Json,
    Narrow,
    console,
    print_json,
    print_table_with_texts,
    print_trimmed,
    table_of,
    warn,
)
from phalanx.cli.visible_text import say
from phalanx.core.warnings import usual_resource
from phalanx.wire.workers import QueueUsage

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.workers import QueueView


class NamedQueue(Protocol):
    """A queue of a server or of a Kubernetes cluster."""

    @property
    def name(self) -> str: ...
    @property
    def parent(self) -> str | None: ...


Q = TypeVar("Q", bound=NamedQueue)

app = typer.Typer(help="Create, change, stop or delete a queue.", no_args_is_help=True)

Weight = Annotated[
    int | None,
    typer.Option(
        "--weight",
        metavar="NUMBER",
        parser=whole_number(0),
        help="Weight in the fair share among sibling queues.",
    ),
]
Quota = Annotated[
    str | None,
    typer.Option("--quota", metavar="gpu=16,…", help="Guaranteed resources; '' removes the quota."),
]
Limit = Annotated[
    str | None,
    typer.Option("--limit", metavar="gpu=32,…", help="Maximum resources; '' removes the limit."),
]
Parent = Annotated[
    str | None,
    typer.Option(
        "--parent",
        metavar="QUEUE",
        help="Parent queue; '' makes it a top-level queue.",
        autocompletion=completion.queues,
    ),
]
MaxPriority = Annotated[
    str | None,
    typer.Option(
        "--max-priority",
        metavar="NUMBER",
        help="Highest priority that jobs of the queue may have; '' admits all.",
    ),
]
Namespaces = Annotated[
    str | None,
    typer.Option(
        "--namespaces",
        metavar="ml,team-*,…",
        help="Namespaces whose jobs may use the queue; '' admits all.",
    ),
]
Consolidation = Annotated[
    Switch | None,
    typer.Option(
        "--consolidation",
        metavar="on|off",
        parser=one_of(Switch),
        help="Move preemptible jobs that save checkpoints, so that pending jobs fit.",
    ),
]


@with_client
def queues(client: "Client", *, as_json: Json = False) -> None:
    """List queues as a tree: usage, fair share, quota, borrowed, jobs, weight, limit and state.

    The state has a column if a queue is stopped; so have quotas, limits and namespaces if a queue
    has any.

    phalanx queues
    """
    listed = client.queues(usage=True)
    if as_json:
        print_json(listed)
    else:
        print_queues(listed)


def print_queues(listed: "Sequence[QueueView]") -> None:
    """One line per queue. If the terminal is too narrow for that, the amounts of a queue have lines
    of their own."""
    table = queues_table(listed, Narrow())
    if (table.width or 0) <= console().width:
        print_trimmed(table)
        return
    tree = queue_tree(listed)
    columns = {name: cells for name, cells in _columns(listed).items() if name not in _IN_LINES}
    rows = list(zip(*columns.values(), strict=True))
    lines = [_lines_of_amounts(queue) for _, queue in tree]
    print_table_with_texts(list(columns), rows, "RESOURCES", lines)


def queues_table(listed: "Sequence[QueueView]", narrow: Narrow | None = None) -> Table:
    """One line per queue."""
    columns = _columns(listed)
    rows = [[cell or "-" for cell in row] for row in zip(*columns.values(), strict=True)]
    return table_of(list(columns), rows, narrow or _NARROW)


def _columns(listed: "Sequence[QueueView]") -> "dict[str, list[str | Text]]":
    """By heading: the cells of all queues. Settings that no queue has, and the state if no queue is
    stopped, are left out."""
    tree = queue_tree(listed)
    has_stopped = any(queue.stopped for queue in listed)
    columns: dict[str, list[str | Text]] = {
        "QUEUE": ["  " * depth + queue.name for depth, queue in tree]
    }
    if any(queue.usage is not None for queue in listed):
        usages = [queue.usage or _NO_USAGE for _, queue in tree]
        columns |= {
            "#RUNNING": [str(usage.running) for usage in usages],
            "#PENDING": [str(usage.pending) for usage in usages],
            "USED": [_amounts_text(usage.used) or "-" for usage in usages],
            "FAIR SHARE": [_amounts_text(usage.fair_share) or "-" for usage in usages],
            "BORROWED": [_amounts_text(usage.borrowed) or "-" for usage in usages],
        }
    columns |= {
        "QUOTA": [_amounts_text(queue.quota) for _, queue in tree],
        "LIMIT": [_amounts_text(queue.limit) for _, queue in tree],
        "#WEIGHT": [str(queue.weight) for _, queue in tree],
        "STATE": [_state(queue) if has_stopped else "" for _, queue in tree],
        "NAMESPACES": [", ".join(queue.namespaces) for _, queue in tree],
    }
    return {name: cells for name, cells in columns.items() if any(map(str, cells))}


#: What stands in lines of its own on a narrow terminal.
_IN_LINES = ("USED", "FAIR SHARE", "BORROWED", "QUOTA", "LIMIT", "NAMESPACES")
#: What `top`, which has few lines, leaves out of them.
_NARROW = Narrow(cut=_IN_LINES, drop=("NAMESPACES", "WEIGHT", "LIMIT", "QUOTA"), least=12)
_NO_USAGE = QueueUsage(used={}, fair_share={}, borrowed={}, running=0, pending=0)


def _lines_of_amounts(queue: "QueueView") -> list[str]:
    """`gpu: used 4, fair share 6, quota 4, limit 8`, one line for each resource."""
    usage = queue.usage or _NO_USAGE
    kinds = {
        "used": usage.used,
        "fair share": usage.fair_share,
        "borrowed": usage.borrowed,
        "quota": queue.quota,
        "limit": queue.limit,
    }
    lines = []
    for resource in formatting.scarcest_first({name for each in kinds.values() for name in each}):
        amounts = (
            f"{kind} {formatting.rounded_amount(resource, each[resource])}"
            for kind, each in kinds.items()
            if resource in each
        )
        lines.append(f"{resource}: {', '.join(amounts)}")
    return [*lines, *(f"namespaces: {', '.join(names)}" for names in [queue.namespaces] if names)]


def _amounts_text(resources: Mapping[str, Any]) -> str:
    """`gpu 2, cpu 8, memory 64Gi`, in whole units; empty for nothing."""
    rounded = {name: formatting.rounded_amount(name, each) for name, each in resources.items()}
    return formatting.amounts(rounded) if rounded else ""


def _state(queue: "QueueView") -> Text:
    return Text("stopped", style="yellow") if queue.stopped else Text("open", style="green")


def queue_tree(listed: "Sequence[Q]") -> "list[tuple[int, Q]]":
    """Each queue below its parent, with its depth. A queue with an unknown parent is at the top."""
    names = {queue.name for queue in listed}
    children: dict[str | None, list[Q]] = {}
    for queue in sorted(listed, key=lambda queue: queue.name):
        children.setdefault(queue.parent if queue.parent in names else None, []).append(queue)
    ordered: list[tuple[int, Q]] = []

    def walk(parent: str | None, depth: int) -> None:
        for queue in children.get(parent, []):
            ordered.append((depth, queue))
            walk(queue.name, depth + 1)

    walk(None, 0)
    return ordered


@app.command("set", cls=HelpCommand)
@with_client
def set_queue(  # noqa: PLR0913
    client: "Client",
    *,
    queue: Queue,
    weight: Weight = None,
    quota: Quota = None,
    limit: Limit = None,
    parent: Parent = None,
    max_priority: MaxPriority = None,
    namespaces: Namespaces = None,
    consolidation: Consolidation = None,
    as_json: Json = False,
) -> None:
    """Create a queue, or change the given fields of one."""
    from phalanx.client import NotFoundError  # noqa: PLC0415

    if "/" in queue.strip("/"):
        above, name = queue.strip("/").split("/")[-2:]
        cure = f"`phalanx queue set {name} --parent {above}`"
        end(Status.USAGE, f"QUEUE is {queue}; for a queue {name} below {above}, write {cure}")
    try:
        before = client.queue(queue)
    except NotFoundError:
        fields: dict[str, Any] = {}
    else:
        fields = {name: value for name, value in asdict(before).items() if name != "name"}
    if weight is not None:
        fields["weight"] = weight
    for name, given in {"quota": quota, "limit": limit}.items():
        if given is not None:
            fields[name] = _amounts(name, given)
    if parent is not None:
        fields["parent"] = parent or None
    if max_priority is not None:
        fields["max_priority"] = whole_number()(max_priority) if max_priority else None
    if namespaces is not None:
        fields["namespaces"] = [name.strip() for name in namespaces.split(",") if name.strip()]
    if consolidation is not None:
        fields["consolidation"] = consolidation is Switch.ON
    changed = client.set_queue(queue, **fields)
    _warn_of_unlikely(client, {*changed.quota, *changed.limit})
    if as_json:
        print_json(changed)
        return
    print_queues([changed])


def _warn_of_unlikely(client: "Client", resources: set[str]) -> None:
    """Warn of a resource that no worker has and that looks misspelt."""
    offered = {name for worker in client.workers() for name in worker.resources}
    for name in sorted(resources - offered):
        if meant := usual_resource(name):
            warn(f"no worker has {name}; did you mean {meant}?")


def _amounts(flag: str, given: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in given.split(",") if pair]
    for name, equals, amount in pairs:
        if not (name and equals and amount):
            end(Status.USAGE, f"--{flag} is {given!r}; write resources and amounts, like gpu=16")
    return {name.strip(): amount.strip() for name, _, amount in pairs}


@app.command("delete", cls=HelpCommand)
@with_client
def delete(client: "Client", *, queue: Queue) -> None:
    """Delete a queue that has no child queues and no unfinished jobs."""
    client.delete_queue(queue)
    say(f"queue {queue} deleted")


@app.command("stop", cls=HelpCommand)
@with_client
def stop(client: "Client", *, queue: Queue, as_json: Json = False) -> None:
    """Start no more jobs of a queue. Running jobs continue."""
    stopped = client.stop_queue(queue)
    if as_json:
        print_json(stopped)
        return
    say(f"queue {queue} stopped; start it again with `phalanx queue start {queue}`")


@app.command("start", cls=HelpCommand)
@with_client
def start(client: "Client", *, queue: Queue, as_json: Json = False) -> None:
    """Start jobs of a stopped queue again."""
    started = client.start_queue(queue)
    if as_json:
        print_json(started)
        return
    say(f"queue {queue} started")
