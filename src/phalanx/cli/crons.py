"""Jobs that run by the clock: `phalanx crons`, and `phalanx cron show`, `pause`, `run-now`, …"""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from phalanx.cli import formatting
from phalanx.cli.completion import crons as offered
from phalanx.cli.connection import with_client
from phalanx.cli.output import Json, note, print_facts, print_json, print_table

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.crons import CronView, LastView

app = typer.Typer(help="Show or steer a job that runs by the clock.", no_args_is_help=True)

Namespace = Annotated[str | None, typer.Option("--namespace", help="Only of this namespace.")]
Name = Annotated[
    str,
    typer.Argument(
        metavar="CRON",
        help="Its name, or NAMESPACE/NAME.",
        autocompletion=offered,
        show_default=False,
    ),
]


@with_client
def crons(client: "Client", *, namespace: Namespace = None, as_json: Json = False) -> None:
    """List the jobs that run by the clock."""
    found = client.crons(namespace=namespace)
    if as_json:
        print_json(found)
        return
    if not found:
        note("no crons; submit a job that has a name and a schedule")
        return
    now = formatting.now()
    rows = [
        (
            _title(cron),
            cron.cron,
            cron.timezone,
            Text("paused", style="yellow") if cron.next_at is None else _in(cron.next_at),
            "-" if cron.last is None else formatting.ago(cron.last.due_at, now),
            str(sum(run.phase is None for run in cron.runs)),
            "-" if cron.last is None else cron.last.outcome,
        )
        for cron in found
    ]
    print_table(["CRON", "WHEN", "ZONE", "NEXT", "LAST", "#RUNNING", "OUTCOME"], rows)


@app.command("show")
@with_client
def show(client: "Client", *, called: Name, as_json: Json = False) -> None:
    """Show a cron and its runs: the unfinished, and the last that ended."""
    cron = client.cron(called)
    if as_json:
        print_json(cron)
        return
    print_facts(
        [
            ("cron", _title(cron)),
            ("when", f"{cron.cron}, on the clock of {cron.timezone}"),
            ("overlaps", cron.concurrency),
            ("next", "paused; `phalanx cron resume` ends that" if cron.paused else _next(cron)),
            ("last", _last(cron.last)),
            ("queue", cron.queue),
            ("owner", cron.owner),
        ]
    )
    if cron.runs:
        typer.echo()
        rows = [
            (
                run.job,
                run.name,
                formatting.state(run.phase or "unfinished"),
                formatting.minute(run.due_at),
            )
            for run in cron.runs
        ]
        print_table(["JOB", "NAME", "PHASE", "DUE"], rows)


@app.command("pause")
@with_client
def pause(client: "Client", *, called: Name, as_json: Json = False) -> None:
    """Start no more runs until it is resumed. What runs goes on."""
    _tell(client.pause_cron(called), "is paused", as_json=as_json)


@app.command("resume")
@with_client
def resume(client: "Client", *, called: Name, as_json: Json = False) -> None:
    """Start runs again. What would have been due in the pause is not made up for."""
    _tell(client.resume_cron(called), "goes on", as_json=as_json)


@app.command("run-now")
@with_client
def run_now(client: "Client", *, called: Name, as_json: Json = False) -> None:
    """Start a run at once. When the next one is due does not change."""
    cron = client.run_cron(called)
    if as_json:
        print_json(cron)
    elif cron.replacing_at is None and cron.last is not None and cron.last.job is not None:
        typer.echo(cron.last.job)
    else:
        typer.echo(f"{_title(cron)} runs when the run before it is gone")


@app.command("delete")
@with_client
def delete(client: "Client", *, called: Name) -> None:
    """Remove a cron. What it has started goes on."""
    client.delete_cron(called)
    typer.echo(f"cron {called} is gone")


def _tell(cron: "CronView", what: str, *, as_json: bool) -> None:
    if as_json:
        print_json(cron)
        return
    following = f"; next {_next(cron)}" if cron.next_at else ""
    typer.echo(f"cron {_title(cron)} {what}{following}")


def _title(cron: "CronView") -> str:
    return cron.name if cron.namespace == "default" else f"{cron.namespace}/{cron.name}"


def _in(at: str) -> str:
    return f"in {formatting.lasting((formatting.moment(at) - formatting.now()).total_seconds())}"


def _next(cron: "CronView") -> str:
    return "-" if cron.next_at is None else f"{_in(cron.next_at)}, at {cron.next_at[:16]}Z"


def _last(last: "LastView | None") -> str:
    if last is None:
        return ""
    job = f" as {last.job}" if last.job else ""
    return f"{formatting.ago(last.due_at, formatting.now())}: {last.outcome}{job}"
