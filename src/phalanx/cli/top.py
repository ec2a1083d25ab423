"""`phalanx top`: workers, queues and unfinished jobs, refreshed until the user quits."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from phalanx.cli.connection import TAKEOVER_S, silence_text, with_client
from phalanx.cli.elements import elements_table, latest_elements
from phalanx.cli.options import decimal
from phalanx.cli.output import Json, console, print_json, print_trimmed, table_lines
from phalanx.cli.top_screen import ClusterOverview, TopScreen
from phalanx.cli.visible_text import visible

#: How often the screen is drawn, also while no server answers.
_REFRESH_HZ = 2

if TYPE_CHECKING:
    from phalanx.client import Client

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


@with_client
def top(
    client: "Client", *, once: Once = False, interval: Interval = 1.0, as_json: Json = False
) -> None:
    """Watch workers, queues and unfinished jobs until q or Ctrl-C.

    Keys: s sorts, / filters, the arrows select a job, enter shows its output, q quits or goes back.

    phalanx top
    phalanx top --once
    """
    if as_json:
        print_json(_fetch(client))
        return
    screen = console()
    if once or not screen.is_terminal or not sys.stdin.isatty():
        for part in TopScreen(_fetch(client)).parts(rows=None):
            if isinstance(part, Table):
                print_trimmed(part)
            else:
                screen.print(part)
        return
    _watch(client, interval)


def _watch(client: "Client", interval: float) -> None:
    import time  # noqa: PLC0415

    from rich.live import Live  # noqa: PLC0415

    from phalanx.cli.keyboard import Keyboard  # noqa: PLC0415

    out = console()
    state = TopScreen(_fetch(client))
    client.patience_s = TAKEOVER_S
    with (
        Keyboard().raw() as keyboard,
        Live(
            console=out,
            screen=True,
            refresh_per_second=_REFRESH_HZ,
            get_renderable=lambda: state.frame(out.height, silence_text(client)),
        ) as live,
    ):
        due = time.monotonic() + interval
        while not state.is_over:
            keys = keyboard.keys(max(0.0, due - time.monotonic()))
            for key in keys:
                state.press(key)
            if not keys:
                state.overview = _fetch(client)
                due = time.monotonic() + interval
            if state.logs_of is not None:
                state.lines = [visible(line) for line in _detail(client, state, out.height)]
            live.refresh()


def _detail(client: "Client", state: TopScreen, height: int) -> list[str]:
    """The last output of the selected job, or the elements of an array."""
    from phalanx.client import RefusedError  # noqa: PLC0415

    job = state.logs_of or ""
    try:
        if state.is_array(job):
            return table_lines(elements_table(latest_elements(client, job, height)))
        return list(client.logs(job, tail=height))
    except RefusedError as error:  # the job was removed meanwhile
        return [str(error)]


def _fetch(client: "Client") -> ClusterOverview:
    unfinished = list(client.jobs(finished=False))
    return ClusterOverview(client.workers(), client.queues(usage=True), unfinished)
