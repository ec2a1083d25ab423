"""`phalanx cost`: what evictions and failures have cost."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli import formatting
from phalanx.cli.connection import with_client
from phalanx.cli.output import Json, note, print_json, print_table

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.cost import CostView, TallyView


class By(StrEnum):
    QUEUE = "queue"
    JOB = "job"
    EVICTOR = "evictor"


Whose = Annotated[By, typer.Option("--by", help="Whose losses to list.")]


@with_client
def cost(client: "Client", *, by: Whose = By.QUEUE, as_json: Json = False) -> None:
    """Show what evictions and failures have cost, in GPU-hours and in money."""
    found = client.cost()
    if as_json:
        print_json(found)
        return
    if not found.queues:
        note("nothing has been lost yet")
        return
    _TABLES[by](found)
    typer.echo()
    typer.echo(
        f"lost in all: {_told(found.to_eviction)} to {_times(found.to_eviction, 'eviction')},"
        f" {_told(found.to_failure)} to {_times(found.to_failure, 'failure')}"
    )
    if not found.price:
        note("no price is set; `phalanx serve --price gpu=3.50` puts one on every hour")


def _by_queue(found: "CostView") -> None:
    heads = ["QUEUE", "#EVICTIONS", "#GPU-HOURS", "#COST", "#FAILURES", "#GPU-HOURS", "#COST"]
    rows = [
        (
            line.queue,
            *(str(line.to_eviction.count), *_columns(line.to_eviction)),
            *(str(line.to_failure.count), *_columns(line.to_failure)),
        )
        for line in found.queues
    ]
    print_table(heads, rows)


def _by_job(found: "CostView") -> None:
    rows = [
        (line.job, line.name, line.queue, str(line.lost.count), *_columns(line.lost))
        for line in found.jobs
    ]
    print_table(["JOB", "NAME", "QUEUE", "#STOPS", "#GPU-HOURS", "#COST"], rows)


def _by_evictor(found: "CostView") -> None:
    rows = [
        (line.by, line.queue, str(line.lost.count), *_columns(line.lost)) for line in found.evictors
    ]
    print_table(["BY", "FROM QUEUE", "#EVICTIONS", "#GPU-HOURS", "#COST"], rows)


_TABLES = {By.QUEUE: _by_queue, By.JOB: _by_job, By.EVICTOR: _by_evictor}


def _columns(tally: "TallyView") -> tuple[str, str]:
    return f"{tally.gpu_s / 3600:.2f}", formatting.money(tally.cost)


def _told(tally: "TallyView") -> str:
    return f"{formatting.money(tally.cost)} ({tally.gpu_s / 3600:.2f} GPU-hours)"


def _times(tally: "TallyView", noun: str) -> str:
    return formatting.counted_as(tally.count, noun)
