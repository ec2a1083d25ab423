"""`phalanx progress`: steps and values of every rank, and a plot of one value."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli import formatting
from phalanx.cli.completion import Job
from phalanx.cli.connection import with_client
from phalanx.cli.elements import refuse_array
from phalanx.cli.exits import Status, end
from phalanx.cli.output import Json, console, note, print_json, print_table
from phalanx.cli.plot import plot
from phalanx.cli.progress_text import number, progress_line, rate_text
from phalanx.cli.visible_text import say
from phalanx.core.spec.durations import short_duration

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.progress import JobProgress, RankProgress

_MOST_RANKS = 20
#: Columns of values in the table.
_MOST_VALUES = 4
#: In a pipe, which has no width.
_PIPE_WIDTH = 80
_WIDEST_PLOT = 100

Value = Annotated[
    str | None,
    typer.Argument(metavar="[VALUE]", help="The value to plot; the loss if it is left out."),
]
All = Annotated[
    bool, typer.Option("--all", "-a", help=f"List all ranks, not only the {_MOST_RANKS} slowest.")
]


@with_client
def progress(
    client: "Client",
    *,
    reference: Job,
    value: Value = None,
    show_all: All = False,
    as_json: Json = False,
) -> None:
    """Show the progress of a job: step and rate of every rank, and a plot of a value."""
    job = client.find(reference)
    reported = client.progress(job)
    if reported.progress is None:
        refuse_array(client, job)
    if as_json:
        print_json(reported)
        return
    if value is not None and value not in reported.history:
        known = ", ".join(reported.history) or "none"
        end(Status.USAGE, f"the job has not reported a value {value}; reported are: {known}")
    if reported.progress is None:
        say("The tasks have not reported any progress.")
        note("report it with phalanx.task.progress, or in the file PHALANX_PROGRESS")
        return
    width = _width()
    say(progress_line(reported.progress, width, with_values=False))
    typer.echo()
    _print_ranks(reported, None if show_all else _MOST_RANKS)
    _print_plot(reported, value, width)


def _width() -> int:
    screen = console()
    return screen.width if screen.is_terminal else min(screen.width, _PIPE_WIDTH)


def _print_ranks(reported: "JobProgress", most: int | None) -> None:
    slowest = sorted(reported.ranks, key=lambda rank: (rank.step or 0, rank.rank))
    listed = sorted(slowest[:most], key=lambda rank: rank.rank)
    names = list(dict.fromkeys(name for rank in listed for name in rank.values))[:_MOST_VALUES]
    headings = ["#RANK", "WORKER", "#STEP", "#RATE", "#REPORTED", *(f"#{name}" for name in names)]
    print_table(headings, [_row(rank, names) for rank in listed])
    if len(listed) < len(slowest):
        note(f"the {len(listed)} slowest of {len(slowest)} ranks; list all with --all")


def _row(rank: "RankProgress", names: Sequence[str]) -> list[str]:
    values = [number(rank.values[name]) if name in rank.values else "-" for name in names]
    step = "-" if rank.step is None else str(rank.step)
    age = "-"
    if rank.at is not None:
        since = formatting.now() - formatting.parse_time(rank.at)
        age = f"{short_duration(max(0, int(since.total_seconds())))} ago"
    return [str(rank.rank), rank.worker or "-", step, rate_text(rank.rate) or "-", age, *values]


def _print_plot(reported: "JobProgress", value: str | None, width: int) -> None:
    history = reported.history
    name = value or ("loss" if "loss" in history else next(iter(history), None))
    if name is None:
        return
    points = [(point.step, point.value) for point in history[name]]
    lines = plot(points, min(width, _WIDEST_PLOT))
    if lines:
        typer.echo()
        rank = next(each.rank for each in reported.ranks if each.values)
        say(f"{name} of rank {rank}, by step")
        for line in lines:
            say(line)
