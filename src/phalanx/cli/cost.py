"""`phalanx cost`: work lost to evictions and failures."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli import formatting
from phalanx.cli.connection import with_client
from phalanx.cli.options import one_of
from phalanx.cli.output import Json, note, print_json, print_table

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.cost import CostView, TallyView


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
    _TABLES[by](lost)
    typer.echo()
    typer.echo(
        f"lost in total: {_amount(lost.to_eviction, 'eviction')},"
        f" {_amount(lost.to_failure, 'failure')}"
    )
    if not lost.price:
        note("no prices set; set them with `phalanx serve --price gpu=3.50`")


def _by_queue(lost: "CostView") -> None:
    headings = ["QUEUE", "#EVICTIONS", "#GPU-HOURS", "#COST", "#FAILURES", "#GPU-HOURS", "#COST"]
    rows = [
        (
            row.queue,
            *(str(row.to_eviction.count), *_columns(row.to_eviction)),
            *(str(row.to_failure.count), *_columns(row.to_failure)),
        )
        for row in lost.queues
    ]
    print_table(headings, rows)


def _by_job(lost: "CostView") -> None:
    rows = [
        (row.job, row.name, row.queue, str(row.lost.count), *_columns(row.lost))
        for row in lost.jobs
    ]
    print_table(["JOB", "NAME", "QUEUE", "#STOPS", "#GPU-HOURS", "#COST"], rows)


def _by_evictor(lost: "CostView") -> None:
    rows = [(row.by, row.queue, str(row.lost.count), *_columns(row.lost)) for row in lost.evictors]
    print_table(["EVICTOR", "VICTIM QUEUE", "#EVICTIONS", "#GPU-HOURS", "#COST"], rows)


_TABLES = {Grouping.QUEUE: _by_queue, Grouping.JOB: _by_job, Grouping.EVICTOR: _by_evictor}


def _columns(tally: "TallyView") -> tuple[str, str]:
    return f"{tally.gpu_s / 3600:.2f}", formatting.money(tally.cost)


def _amount(tally: "TallyView", noun: str) -> str:
    """`$70.00 (20.00 GPU-hours) in 1 eviction`."""
    hours, cost = _columns(tally)
    return f"{cost} ({hours} GPU-hours) in {formatting.plural(tally.count, noun)}"
