"""`phalanx cost`: work lost to evictions and failures."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli import formatting
from phalanx.cli.connection import with_client
from phalanx.cli.options import one_of
from phalanx.cli.output import Json, note, print_json, print_table
from phalanx.cli.visible_text import say
from phalanx.core.text import dollars

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.cost import CostView, TallyView


#: Headings and rows.
Table = tuple[list[str], list[list[str]]]


class Grouping(StrEnum):
    QUEUE = "queue"
    JOB = "job"
    EVICTOR = "evictor"


By = Annotated[
    Grouping,
    typer.Option(
        "--by",
        metavar="GROUPING",
        parser=one_of(Grouping),
        help="Group by queue, job, or evictor (the job that took the place).",
    ),
]


@with_client
def cost(client: "Client", *, by: By = Grouping.QUEUE, as_json: Json = False) -> None:
    """Show the work lost to evictions and failures, in GPU-hours and money."""
    lost = client.cost()
    if as_json:
        print_json(lost)
        return
    if not lost.queues:
        note("no work lost so far")
        return
    headings, rows = _TABLES[by](lost)
    if not lost.price:  # every cost is 0
        kept = [at for at, heading in enumerate(headings) if heading != "#COST"]
        headings, rows = [headings[at] for at in kept], [[row[at] for at in kept] for row in rows]
    print_table(headings, rows)
    typer.echo()
    totals = {"eviction": lost.to_eviction, "failure": lost.to_failure}
    say(f"lost in total: {', '.join(_total(*each) for each in totals.items())}")
    if not lost.price:
        note("no prices set; set them with `phalanx serve --price gpu=3.50`")


def _by_queue(lost: "CostView") -> Table:
    headings = ["QUEUE", "#EVICTIONS", "#GPU-HOURS", "#COST", "#FAILURES", "#GPU-HOURS", "#COST"]
    return headings, [
        [row.queue, *_columns(row.to_eviction), *_columns(row.to_failure)] for row in lost.queues
    ]


def _by_job(lost: "CostView") -> Table:
    headings = ["JOB", "NAME", "QUEUE", "#STOPS", "#GPU-HOURS", "#COST"]
    return headings, [[row.job, row.name, row.queue, *_columns(row.lost)] for row in lost.jobs]


def _by_evictor(lost: "CostView") -> Table:
    headings = ["EVICTOR", "VICTIM QUEUE", "#EVICTIONS", "#GPU-HOURS", "#COST"]
    return headings, [[row.by, row.queue, *_columns(row.lost)] for row in lost.evictors]


_TABLES = {Grouping.QUEUE: _by_queue, Grouping.JOB: _by_job, Grouping.EVICTOR: _by_evictor}


def _columns(tally: "TallyView") -> tuple[str, str, str]:
    """Number of stops, GPU-hours and cost."""
    return str(tally.count), f"{tally.gpu_s / 3600:.2f}", dollars(tally.cost)


def _total(noun: str, tally: "TallyView") -> str:
    """`20.00 GPU-hours ($70.00) in 1 eviction`."""
    stops = formatting.plural(tally.count, noun)
    return f"{formatting.lost_work(tally.gpu_s, tally.cost)} in {stops}"
