"""Workers: `phalanx workers`, `cordon`, `uncordon`, `drain`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from phalanx.cli import formatting
from phalanx.cli.completion import Worker
from phalanx.cli.connection import with_client
from phalanx.cli.output import Json, Narrow, note, print_json, print_trimmed, table_of
from phalanx.cli.visible_text import say

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.workers import DrainReply, WorkerView

Reason = Annotated[
    str | None,
    typer.Option("--reason", metavar="TEXT", help="Reason, shown in `phalanx workers`."),
]
Deadline = Annotated[
    str | None,
    typer.Option(
        "--deadline",
        metavar="TIME",
        help="Let running tasks continue for this long, like 2h, before evicting them.",
    ),
]

_RESOURCES = ("gpu", "cpu", "memory")
_NARROW = Narrow(cut=("LABELS", "REASON"), drop=("LIMITS", "LABELS"))


@with_client
def workers(client: "Client", *, as_json: Json = False) -> None:
    """List workers: status, tasks, free resources, enforced limits and labels."""
    listed = client.workers()
    if as_json:
        print_json(listed)
    elif not listed:
        note("no workers; start one with `phalanx worker`")
    else:
        print_trimmed(workers_table(listed))


def workers_table(listed: "Sequence[WorkerView]") -> Table:
    """Free and total resources of each worker. Columns that are empty for all are left out."""
    names = [name for name in _RESOURCES if any(name in worker.resources for worker in listed)]
    names += sorted({name for worker in listed for name in worker.resources} - set(_RESOURCES))
    free = (f"#FREE {name.upper()}" for name in names)
    headings = ["WORKER", "STATUS", "#TASKS", *free, "LIMITS", "LABELS", "REASON"]
    rows: list[list[str | Text]] = [
        [
            worker.id,
            formatting.styled(worker.status),
            str(worker.task_count),
            *(_free(worker, name) for name in names),
            ",".join(worker.limits),
            " ".join(f"{name}={value}" for name, value in sorted(worker.tags.items())),
            _reason(worker),
        ]
        for worker in listed
    ]
    kept = [at for at in range(len(headings)) if any(str(row[at]) for row in rows)]
    return table_of(
        [headings[at] for at in kept], [[row[at] for at in kept] for row in rows], _NARROW
    )


def _free(worker: "WorkerView", name: str) -> str:
    """`2/8`: free of total."""
    if name not in worker.resources:
        return "-"
    free, total = worker.free.get(name, 0), worker.resources[name]
    return f"{formatting.rounded_amount(name, free)}/{formatting.rounded_amount(name, total)}"


def _reason(worker: "WorkerView") -> Text:
    """Why no tasks are placed on the worker."""
    if worker.lost_at is not None:
        return Text(f"lost {formatting.ago(worker.lost_at, formatting.now())}", style="red")
    return Text(worker.cordoned or "", style="yellow")


@with_client
def cordon(
    client: "Client", *, worker: Worker, reason: Reason = None, as_json: Json = False
) -> None:
    """Place no new tasks on a worker. Running tasks continue."""
    cordoned = client.cordon(worker, reason=reason)
    if as_json:
        print_json(cordoned)
        return
    say(f"worker {cordoned.id} cordoned; undo with `phalanx uncordon {cordoned.id}`")


@with_client
def uncordon(client: "Client", *, worker: Worker, as_json: Json = False) -> None:
    """Place new tasks on a worker again."""
    uncordoned = client.uncordon(worker)
    if as_json:
        print_json(uncordoned)
        return
    say(f"worker {uncordoned.id} uncordoned")


@with_client
def drain(
    client: "Client",
    *,
    worker: Worker,
    deadline: Deadline = None,
    reason: Reason = None,
    as_json: Json = False,
) -> None:
    """Cordon a worker and evict its tasks, which start on other workers."""
    reply = client.drain(worker, deadline=deadline, reason=reason)
    if as_json:
        print_json(reply)
        return
    say(_drained(worker, reply, deadline))


def _drained(worker: str, reply: "DrainReply", deadline: str | None) -> str:
    if reply.evicted:
        return f"worker {worker} draining; evicted {', '.join(reply.evicted)}"
    if not reply.worker.tasks:
        return f"worker {worker} drained; it has no tasks"
    tasks = formatting.plural(len(reply.worker.tasks), "task")
    if deadline:
        return f"worker {worker} draining; {tasks} will be evicted in {deadline}"
    return f"worker {worker} draining; {tasks} stopping"
