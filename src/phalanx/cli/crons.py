"""Jobs on a schedule: `phalanx crons`, and `phalanx cron show`, `pause`, `resume`, `run-now`, …"""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from phalanx.cli import completion, formatting
from phalanx.cli.connection import with_client
from phalanx.cli.help_pages import HelpCommand
from phalanx.cli.output import Json, Narrow, note, print_fields, print_json, print_table
from phalanx.cli.settings import refuse
from phalanx.cli.visible_text import say
from phalanx.core.spec.durations import short_duration

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.crons import CronView, LastView

app = typer.Typer(help="Show, pause, resume, run or delete a cron.", no_args_is_help=True)

Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Only this namespace.")
]
OfNamespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", metavar="NAME", help="Namespace of the cron."),
]
Cron = Annotated[
    str,
    typer.Argument(
        metavar="CRON",
        help="Cron name, or NAMESPACE/NAME.",
        autocompletion=completion.crons,
        show_default=False,
    ),
]


@with_client
def crons(client: "Client", *, namespace: Namespace = None, as_json: Json = False) -> None:
    """List crons: schedule, next run and last run."""
    listed = client.crons(namespace=namespace)
    if as_json:
        print_json(listed)
        return
    if not listed:
        note("no crons; create one by submitting a job that has a name and a schedule")
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
        for cron in listed
    ]
    headings = ["CRON", "SCHEDULE", "TIME ZONE", "NEXT", "LAST", "#UNFINISHED", "OUTCOME"]
    print_table(headings, rows, Narrow(cut=("OUTCOME",), drop=("UNFINISHED", "TIME ZONE")))


@app.command("show", cls=HelpCommand)
@with_client
def show(
    client: "Client", *, reference: Cron, namespace: OfNamespace = None, as_json: Json = False
) -> None:
    """Show a cron, its unfinished runs and its latest finished runs."""
    cron = client.cron(_full(reference, namespace))
    if as_json:
        print_json(cron)
        return
    paused = f"paused; resume it with `phalanx cron resume {_title(cron)}`"
    print_fields(
        [
            ("cron", _title(cron)),
            ("schedule", f"{cron.cron} ({cron.timezone})"),
            ("overlap", cron.concurrency),
            ("next run", paused if cron.paused else _next(cron)),
            ("last run", _last(cron.last)),
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
                formatting.styled(run.phase or "unfinished"),
                formatting.utc_minute(run.due_at),
            )
            for run in cron.runs
        ]
        print_table(["JOB", "NAME", "PHASE", "DUE"], rows)


@app.command("pause", cls=HelpCommand)
@with_client
def pause(
    client: "Client", *, reference: Cron, namespace: OfNamespace = None, as_json: Json = False
) -> None:
    """Start no more runs until the cron is resumed. Unfinished runs continue."""
    _print_changed(client.pause_cron(_full(reference, namespace)), "paused", as_json=as_json)


@app.command("resume", cls=HelpCommand)
@with_client
def resume(
    client: "Client", *, reference: Cron, namespace: OfNamespace = None, as_json: Json = False
) -> None:
    """Resume a paused cron. Runs that were due during the pause are skipped."""
    _print_changed(client.resume_cron(_full(reference, namespace)), "resumed", as_json=as_json)


@app.command("run-now", cls=HelpCommand)
@with_client
def run_now(
    client: "Client", *, reference: Cron, namespace: OfNamespace = None, as_json: Json = False
) -> None:
    """Start a run now, and print its job id. The schedule does not change."""
    cron = client.run_cron(_full(reference, namespace))
    if as_json:
        print_json(cron)
    elif cron.replacing_at is None and cron.last is not None and cron.last.job is not None:
        say(cron.last.job)
    else:
        say(f"cron {_title(cron)}: the run starts when the previous run has stopped")


@app.command("delete", cls=HelpCommand)
@with_client
def delete(client: "Client", *, reference: Cron, namespace: OfNamespace = None) -> None:
    """Delete a cron. Unfinished runs continue."""
    client.delete_cron(_full(reference, namespace))
    say(f"cron {_full(reference, namespace)} deleted")


def _full(reference: str, namespace: str | None) -> str:
    """The name of a cron, with the namespace if it is given as an option."""
    if namespace is None:
        return reference
    if "/" in reference:
        refuse(f"{reference} has a namespace; leave out --namespace")
    return f"{namespace}/{reference}"


def _print_changed(cron: "CronView", state: str, *, as_json: bool) -> None:
    if as_json:
        print_json(cron)
        return
    following = f"; next run {_next(cron)}" if cron.next_at else ""
    say(f"cron {_title(cron)} {state}{following}")


def _title(cron: "CronView") -> str:
    return cron.name if cron.namespace == "default" else f"{cron.namespace}/{cron.name}"


def _in(at: str) -> str:
    left = formatting.parse_time(at) - formatting.now()
    return f"in {short_duration(int(left.total_seconds()))}"


def _next(cron: "CronView") -> str:
    return "-" if cron.next_at is None else f"{_in(cron.next_at)}, at {cron.next_at[:16]}Z"


def _last(last: "LastView | None") -> str:
    if last is None:
        return ""
    job = f" as {last.job}" if last.job else ""
    return f"{formatting.ago(last.due_at, formatting.now())}: {last.outcome}{job}"
