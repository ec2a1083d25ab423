"""`phalanx job`: one job and its tasks."""

from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from phalanx.cli import formatting
from phalanx.cli.completion import Job
from phalanx.cli.connection import with_client
from phalanx.cli.dependency_tree import trees
from phalanx.cli.output import Json, print_facts, print_json, print_trimmed
from phalanx.cli.tasks import print_tasks

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.jobs import JobDetail


@with_client
def job(client: "Client", *, called: Job, as_json: Json = False) -> None:
    """Show one job: how it stands and why, what it asks for, its tasks, and the jobs around it."""
    found = client.get(client.find(called))
    if as_json:
        print_json(found)
        return
    print_job(found)
    for tree in trees(client, found):
        typer.echo()
        print_trimmed(tree)


def print_job(job: "JobDetail") -> None:
    print_facts(_facts(job))
    typer.echo()
    print_tasks(job.tasks)


def _facts(job: "JobDetail") -> list[tuple[str, str | Text]]:
    now = formatting.now()
    phase = formatting.state(job.phase)
    why = formatting.explanation(job)
    roles = job.spec.get("roles", {})
    submitted = formatting.ago(job.created_at, now) + (f" by {job.owner}" if job.owner else "")
    name = "" if job.name == job.id else job.name
    return [
        ("job", job.id),
        ("name", name if job.namespace == "default" else f"{job.namespace}/{job.name}"),
        ("phase", Text.assemble(phase, f": {why}") if why else phase),
        ("hold", "on hold; `phalanx release` ends it" if job.on_hold else ""),
        ("cron", job.cron or ""),
        ("queue", job.queue),
        ("priority", str(job.priority) if job.priority else ""),
        ("submitted", submitted),
        ("ended", _ended(job)),
        ("failures", str(job.failures) if job.failures else ""),
        ("lost", _lost(job)),
        ("tasks", formatting.counted(job.counts)),
        *((f"{role}", _asked(fields)) for role, fields in roles.items()),
    ]


def _ended(job: "JobDetail") -> str:
    if job.finished_at is None:
        return ""
    return formatting.ago(job.finished_at, formatting.now())


def _lost(job: "JobDetail") -> str:
    """`$70.00 (20 GPU-hours): 1 eviction, the last by ml/urgent 3m ago`."""
    lost = job.lost
    if not lost.to_eviction.count + lost.to_failure.count:
        return ""
    stops = [
        formatting.counted_as(tally.count, noun)
        for tally, noun in ((lost.to_eviction, "eviction"), (lost.to_failure, "failure"))
        if tally.count
    ]
    told = (
        f"{formatting.money(lost.cost)} ({lost.gpu_s / 3600:.2f} GPU-hours): {' and '.join(stops)}"
    )
    if not lost.evictions:
        return told
    last = lost.evictions[-1]
    return f"{told}, the last eviction by {last.by} {formatting.ago(last.at, formatting.now())}"


def _asked(role: "dict[str, Any]") -> str:
    """`4 of: python train.py (gpu 1 each)`."""
    resources = role.get("resources")
    asks = f" ({formatting.amounts(resources)} each)" if resources else ""
    return f"{role.get('replicas', 1)} of: {formatting.shell(role['command'])}{asks}"
