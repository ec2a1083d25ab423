"""`phalanx top`: workers, queues and unfinished jobs, refreshed until Ctrl-C."""

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from phalanx.cli import formatting
from phalanx.cli.connection import TAKEOVER_S, with_client
from phalanx.cli.jobs import jobs_table
from phalanx.cli.options import decimal
from phalanx.cli.output import Json, console, print_json, print_trimmed
from phalanx.cli.queues import queues_table
from phalanx.cli.workers import workers_table
from phalanx.core.model import Phase
from phalanx.wire.jobs import JobView
from phalanx.wire.workers import QueueView, WorkerView

if TYPE_CHECKING:
    from phalanx.client import Client

_PHASES = (Phase.RUNNING, Phase.STARTING, Phase.STOPPING, Phase.PENDING)
#: Lines of a screen that are not rows: headings, the summary, and the gaps between tables.
_FIXED_LINES = 9
_MIN_ROWS = 5

Once = Annotated[bool, typer.Option("--once", help="Print once and exit.")]
Interval = Annotated[
    float,
    typer.Option(
        "--interval",
        "-i",
        metavar="SECONDS",
        parser=decimal(0.1),
        help="Seconds between refreshes.",
    ),
]


class ClusterOverview(msgspec.Struct, frozen=True):
    """The cluster at one moment."""

    workers: list[WorkerView]
    queues: list[QueueView]
    jobs: list[JobView]  #: the unfinished ones


@with_client
def top(
    client: "Client", *, once: Once = False, interval: Interval = 1.0, as_json: Json = False
) -> None:
    """Watch workers, queues and unfinished jobs until Ctrl-C."""
    if as_json:
        print_json(_fetch(client))
        return
    screen = console()
    if once or not screen.is_terminal:
        for part in _parts(_fetch(client), rows=None):
            if isinstance(part, Table):
                print_trimmed(part)
            else:
                screen.print(part)
        return
    first = _fetch(client)
    client.patience_s = TAKEOVER_S
    with Live(_frame(first, screen.height), console=screen, screen=True) as live:
        while True:
            time.sleep(interval)
            live.update(_frame(_fetch(client), screen.height), refresh=True)


def _fetch(client: "Client") -> ClusterOverview:
    unfinished = list(client.jobs(finished=False))
    return ClusterOverview(client.workers(), client.queues(), unfinished)


def _frame(overview: ClusterOverview, height: int) -> Group:
    return Group(*_parts(overview, rows=max(_MIN_ROWS, height - _FIXED_LINES)))


def _parts(overview: ClusterOverview, *, rows: int | None) -> list[RenderableType]:
    """The summary and the three tables, with at most `rows` rows together; None is no limit.

    Workers and queues take a third each at most; jobs take the remaining rows.
    """
    third = None if rows is None else max(_MIN_ROWS, rows // 3)
    workers, queues = overview.workers[:third], overview.queues[:third]
    remaining = None if rows is None else max(_MIN_ROWS, rows - len(workers) - len(queues))
    jobs = sorted(overview.jobs, key=lambda job: _PHASES.index(job.phase))[:remaining]
    parts: list[RenderableType] = [_summary(overview), Text()]
    if workers:
        parts += [workers_table(workers), _omitted(len(overview.workers) - len(workers))]
    if queues:
        parts += [queues_table(queues), _omitted(len(overview.queues) - len(queues))]
    if jobs:
        parts += [jobs_table(jobs), _omitted(len(overview.jobs) - len(jobs))]
    return parts


def _summary(overview: ClusterOverview) -> Text:
    """`12:03:44  3 of 4 workers active  2 running, 1 pending`."""
    active = sum(worker.status == "active" for worker in overview.workers)
    phases = Counter(job.phase for job in overview.jobs)
    counts = [
        Text(f"{phases[phase]} ") + formatting.styled(phase) for phase in _PHASES if phases[phase]
    ]
    return Text.assemble(
        (formatting.now().astimezone().strftime("%H:%M:%S"), "dim"),
        f"  {active} of {formatting.plural(len(overview.workers), 'worker')} active  ",
        Text(", ").join(counts) if counts else "no unfinished jobs",
    )


def _omitted(count: int) -> Text:
    return Text(f"… and {count} more" if count else "", style="dim")
