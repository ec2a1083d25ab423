"""`phalanx job`: one job and its tasks."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from phalanx.cli import formatting
from phalanx.cli.completion import Job
from phalanx.cli.connection import with_client
from phalanx.cli.dependency_tree import dependency_trees
from phalanx.cli.elements import print_first_failed
from phalanx.cli.output import Json, console, print_fields, print_json, print_trimmed
from phalanx.cli.progress_text import ended_line, progress_line, values_text
from phalanx.cli.tasks import print_tasks
from phalanx.core.model import Phase
from phalanx.core.spec.placeholders import filled

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.jobs import ElementsView, JobDetail

_MOST_PROBLEMS = 3
#: Columns before the values of fields: the longest usual name, and a gap.
_FIELD_WIDTH = 13


@with_client
def job(client: "Client", *, reference: Job, as_json: Json = False) -> None:
    """Show one job: phase, reason, resources, tasks and dependencies."""
    detail = client.get(client.find(reference))
    if as_json:
        print_json(detail)
        return
    print_job(detail)
    for tree in dependency_trees(client, detail):
        typer.echo()
        print_trimmed(tree)


def print_job(job: "JobDetail") -> None:
    print_fields(_fields(job))
    if job.elements is not None:
        print_first_failed(job)
    elif job.tasks:
        typer.echo()
        print_tasks(job.tasks)


def _fields(job: "JobDetail") -> list[tuple[str, str | Text]]:
    now = formatting.now()
    reason = formatting.reason_text(job)
    name = formatting.display_name(job)
    by = f" by {job.owner}" if job.owner else ""
    is_held = job.on_hold and job.finished_at is None
    hold = f"on hold; release it with `phalanx release {job.name}`" if is_held else ""
    ended = "" if job.finished_at is None else formatting.ago(job.finished_at, now)
    roles = job.spec.get("roles", {})
    values = {} if job.index is None else {"index": str(job.index), **(job.params or {})}
    states = Counter(task.state for task in job.tasks)
    return [
        ("job", job.id),
        ("name", "" if name == "-" else name),
        ("phase", _phase(job, reason)),
        ("elements", "" if job.elements is None else _elements(job.elements)),
        ("array", job.array or ""),
        ("parameters", formatting.params_text(job.params)),
        ("hold", hold),
        ("cron", job.cron or ""),
        ("queue", job.queue),
        ("priority", str(job.priority) if job.priority else ""),
        ("submitted", formatting.ago(job.created_at, now) + by),
        ("ended", ended),
        ("failures", str(job.failures) if job.failures else ""),
        ("problems", _problems(job)),
        ("evicted", _last_eviction(job)),
        ("lost work", _lost_work(job)),
        ("progress", _progress(job)),
        ("values", _values(job)),
        ("tasks", ", ".join(f"{count} {state}" for state, count in states.items())),
        *((f"role {role}", _role(fields, values)) for role, fields in roles.items()),
    ]


def _phase(job: "JobDetail", reason: str) -> Text:
    """`failed: task 0 exited with code 1 on w-1`, `cancelled by ada`."""
    phase = formatting.styled(job.phase)
    if reason.startswith(f"{job.phase} "):
        return Text.assemble(phase, reason.removeprefix(job.phase))
    return Text.assemble(phase, f": {reason}" if reason else "")


def _elements(elements: "ElementsView") -> str:
    """`12 of 20 done, 1 failed, 4 running, 3 pending (4 at a time)`."""
    counts = formatting.element_counts(elements)
    return counts if elements.parallel is None else f"{counts} ({elements.parallel} at a time)"


def _progress(job: "JobDetail") -> str:
    if job.progress is None:
        return ""
    if job.phase is not Phase.RUNNING:
        return ended_line(job.progress)
    return progress_line(job.progress, console().width - _FIELD_WIDTH, with_values=False)


def _values(job: "JobDetail") -> str:
    return "" if job.progress is None else ", ".join(values_text(job.progress.values))


def _problems(job: "JobDetail") -> str:
    """`task 3, attempt 1: checkpoint not saved: 20.0 MiB, the limit is 16.0 MiB`."""
    problems = [(task.task, task.problem) for task in job.tasks if task.problem is not None]
    lines = [f"task {task}, attempt {each.attempt}: {each.message}" for task, each in problems]
    more = len(lines) - _MOST_PROBLEMS
    return "\n".join(lines[:_MOST_PROBLEMS] + ([f"and {more} more"] if more > 0 else []))


def _lost_work(job: "JobDetail") -> str:
    """`20.00 GPU-hours ($70.00) in 1 eviction`."""
    lost = job.lost
    stops = [
        formatting.plural(tally.count, noun)
        for tally, noun in ((lost.to_eviction, "eviction"), (lost.to_failure, "failure"))
        if tally.count
    ]
    if not stops:
        return ""
    return f"{formatting.lost_work(lost.gpu_s, lost.cost)} in {' and '.join(stops)}"


def _last_eviction(job: "JobDetail") -> str:
    """`3m ago: task workers preempted by higher-priority job ml/urgent`."""
    if not job.lost.evictions:
        return ""
    last = job.lost.evictions[-1]
    return f"{formatting.ago(last.at, formatting.now())}: {last.why}"


def _role(role: "dict[str, Any]", values: dict[str, str]) -> str:
    """`4 tasks: python train.py (gpu 1 each)`. Of an element, with its index and parameters."""
    resources = role.get("resources")
    each = f" ({formatting.amounts(resources)} each)" if resources else ""
    tasks = formatting.plural(role.get("replicas", 1), "task")
    command = role.get("command")
    if command and values:
        is_text = isinstance(command, str)
        command = filled(command, values) if is_text else [filled(each, values) for each in command]
    runs = formatting.shell_command(command) if command else f"the program of {role['image']}"
    return f"{tasks}: {runs}{each}"
