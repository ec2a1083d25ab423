"""`phalanx top`: the cluster at a glance, again and again."""

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
from phalanx.cli.connection import PATIENT_S, with_client
from phalanx.cli.jobs import jobs_table
from phalanx.cli.output import Json, console, print_json, print_trimmed
from phalanx.cli.queues import queues_table
from phalanx.cli.workers import workers_table
from phalanx.core.model import Phase
from phalanx.wire.jobs import JobView
from phalanx.wire.workers import QueueView, WorkerView

if TYPE_CHECKING:
    from phalanx.client import Client

_PHASES = (Phase.RUNNING, Phase.STARTING, Phase.STOPPING, Phase.PENDING)
#: Lines of a frame that are no rows: the heads of three tables, and what is between them.
_FURNITURE = 9
_FEW = 5

Once = Annotated[bool, typer.Option("--once", help="Print it once and leave.")]
Interval = Annotated[
    float,
    typer.Option("--interval", "-i", metavar="SECONDS", min=0.1, help="Seconds between two looks."),
]


class Glance(msgspec.Struct, frozen=True):
    """All that is shown, as it was at one moment."""

    workers: list[WorkerView]
    queues: list[QueueView]
    jobs: list[JobView]  #: the unfinished


@with_client
def top(
    client: "Client", *, once: Once = False, interval: Interval = 1.0, as_json: Json = False
) -> None:
    """Watch workers, queues and unfinished jobs. Ctrl-C leaves."""
    if as_json:
        print_json(_look(client))
        return
    screen = console()
    if once or not screen.is_terminal:
        for part in _parts(_look(client), most=None):
            if isinstance(part, Table):
                print_trimmed(part)
            else:
                screen.print(part)
        return
    first = _look(client)
    client.patience_s = PATIENT_S
    with Live(_frame(first, screen.height), console=screen, screen=True) as live:
        while True:
            time.sleep(interval)
            live.update(_frame(_look(client), screen.height), refresh=True)


def _look(client: "Client") -> Glance:
    unfinished = list(client.jobs(finished=False))
    return Glance(client.workers(), client.queues(), unfinished)


def _frame(glance: Glance, height: int) -> Group:
    return Group(*_parts(glance, most=max(_FEW, height - _FURNITURE)))


def _parts(glance: Glance, *, most: int | None) -> list[RenderableType]:
    """The tables, of which the jobs are given the room that the others leave; None is endless."""
    few = None if most is None else max(_FEW, most // 3)
    workers, queues = glance.workers[:few], glance.queues[:few]
    room = None if most is None else max(_FEW, most - len(workers) - len(queues))
    jobs = sorted(glance.jobs, key=lambda job: _PHASES.index(job.phase))[:room]
    parts: list[RenderableType] = [_summary(glance), Text()]
    if workers:
        parts += [workers_table(workers), _rest(len(glance.workers), len(workers))]
    if queues:
        parts += [queues_table(queues), _rest(len(glance.queues), len(queues))]
    if jobs:
        parts += [jobs_table(jobs), _rest(len(glance.jobs), len(jobs))]
    return parts


def _summary(glance: Glance) -> Text:
    """`12:03:44  3 of 4 workers open   2 running, 1 waiting`."""
    is_open = sum(worker.status == "active" for worker in glance.workers)
    phases = Counter(job.phase for job in glance.jobs)
    told = [
        Text(f"{phases[phase]} ") + formatting.state(phase) for phase in _PHASES if phases[phase]
    ]
    return Text.assemble(
        (formatting.now().astimezone().strftime("%H:%M:%S"), "dim"),
        f"  {is_open} of {formatting.counted_as(len(glance.workers), 'worker')} open  ",
        Text(", ").join(told) if told else "no unfinished jobs",
    )


def _rest(there: int, shown: int) -> Text:
    return Text(f"… and {there - shown} more" if there > shown else "", style="dim")
