"""Jobs, tasks, workers, times and amounts as text for people. Makes no requests."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from phalanx.core import text
from phalanx.core.model import Phase
from phalanx.core.spec.durations import short_duration
from phalanx.core.spec.quantities import quantity
from phalanx.wire.jobs import Counts, ElementsView, JobDetail, JobView, RelatedJob, TaskView

_JOB_ID = re.compile(r"j-[0-9a-z]{8}(?![0-9a-z-])")
_STYLES = {
    "blocked": "yellow",
    "pending": "yellow",
    "starting": "cyan",
    "reserved": "cyan",
    "running": "green",
    "stopping": "magenta",
    "preempting": "magenta",
    "preempted": "magenta",
    "done": "blue",
    "failed": "bold red",
    "timed-out": "bold red",
    "cancelled": "dim",
    "active": "green",
    "cordoned": "yellow",
    "draining": "yellow",
    "leaving": "yellow",
    "lost": "bold red",
}


#: Less lost work is written in seconds.
_HOURS_FROM_S = 360


def styled(state: str) -> Text:
    """A phase, task state or worker status in its colour."""
    return Text(state, style=_STYLES.get(state, ""))


plural = text.plural


# Times


def now() -> datetime:
    return datetime.now(UTC)


def parse_time(at: str) -> datetime:
    return datetime.fromisoformat(at)


def elapsed(at: str, until: datetime) -> str:
    """`42s`, `3m 5s`, `2h 5m`, in whole seconds."""
    return short_duration(int((until - parse_time(at)).total_seconds()))


def ago(at: str, until: datetime) -> str:
    return f"{elapsed(at, until)} ago"


def age(at: str, until: datetime) -> str:
    """The time since `at` in its largest unit: `42s`, `3m`, `2h`."""
    return elapsed(at, until).partition(" ")[0]


def local_clock(at: str) -> str:
    """The time of day in the reader's time zone."""
    return parse_time(at).astimezone().strftime("%H:%M:%S")


def utc_minute(at: str) -> str:
    return parse_time(at).strftime("%Y-%m-%dT%H:%MZ")


# Amounts


def rounded_amount(resource: str, amount: object) -> str:
    """Memory in GiB with one decimal; every other resource unchanged."""
    if resource != "memory":
        return str(amount)
    size, unit = float(quantity(amount)), 2**30
    return f"{size / unit:.1f}".removesuffix(".0") + "Gi" if size >= unit else str(amount)


def scarcest_first(resources: Iterable[str]) -> list[str]:
    order = {"gpu": 0, "cpu": 1, "memory": 2}
    return sorted(resources, key=lambda name: (order.get(name, 3), name))


def amounts(resources: Mapping[str, Any]) -> str:
    """`gpu 2, cpu 8, memory 64Gi`: the scarcest resource first."""
    return ", ".join(f"{name} {resources[name]}" for name in scarcest_first(resources)) or "-"


def lost_work(gpu_s: float, cost: float) -> str:
    """`20.00 GPU-hours ($70.00)`, `88 GPU-seconds`; without a price only the time."""
    if cost:
        return f"{gpu_s / 3600:.2f} GPU-hours ({text.dollars(cost)})"
    if gpu_s >= _HOURS_FROM_S:
        return f"{gpu_s / 3600:.2f} GPU-hours"
    return plural(round(gpu_s), "GPU-second") if round(gpu_s) else "none"


# Jobs and tasks


def display_name(job: JobView) -> str:
    """The job's name, with its namespace unless that is the default; `-` without a name."""
    if job.name == job.id:
        return "-"
    return job.name if job.namespace == "default" else f"{job.namespace}/{job.name}"


def reason_text(job: JobView, names: Mapping[str, str] | None = None) -> str:
    """Why the job or tasks of it are pending, or why it is stopping or ended without being done.

    Jobs are named by `names`, which has names by id, and by the job itself if it lists those that
    it runs after.
    """
    if names is None:
        names = names_of(job.after) if isinstance(job, JobDetail) else {}
    if job.reason is not None:
        return named(str(job.reason.get("message", job.reason.get("type", ""))), names)
    if job.phase is Phase.PENDING:
        return "queued"
    return "" if job.cause is None or job.phase is Phase.DONE else named(job.cause, names)


def names_of(jobs: Iterable[JobView | RelatedJob]) -> dict[str, str]:
    """The names of jobs by their ids."""
    return {job.id: job.name for job in jobs if job.name}


def named(sentence: str, names: Mapping[str, str]) -> str:
    """The sentence with the names of jobs in place of their ids."""
    return _JOB_ID.sub(lambda found: names.get(found[0], found[0]), sentence) if names else sentence


def task_counts(counts: Counts) -> str:
    """`4 tasks: 3 running, 1 pending`."""
    by_state = {
        "running": counts.running,
        "pending": counts.pending,
        "done": counts.succeeded,
        "failed": counts.failed,
    }
    states = ", ".join(f"{count} {state}" for state, count in by_state.items() if count)
    return f"{plural(counts.total, 'task')}: {states}" if states else "none yet"


def element_counts(elements: ElementsView) -> str:
    """`12 of 20 done, 1 failed, 4 running, 3 pending`."""
    by_state = {
        "failed": elements.failed,
        "timed out": elements.timed_out,
        "cancelled": elements.cancelled,
        "never ran": elements.never_ran,
        "running": elements.running,
        "starting": elements.starting,
        "stopping": elements.stopping,
        "pending": elements.pending,
    }
    others = [f"{count} {state}" for state, count in by_state.items() if count]
    return ", ".join([f"{elements.done} of {elements.total} done", *others])


def short_element_counts(elements: ElementsView) -> str:
    """`12/20 done, 1 failed`."""
    failed = elements.failed + elements.timed_out
    done = f"{elements.done}/{elements.total} done"
    return f"{done}, {failed} failed" if failed else done


def params_text(params: Mapping[str, str] | None) -> str:
    """`lr=1e-3, seed=0`."""
    return ", ".join(f"{name}={value}" for name, value in (params or {}).items())


def exit_text(task: TaskView) -> str:
    """How the task's process ended, unless it succeeded."""
    return "" if task.exit is None or task.exit.is_success else str(task.exit)


def runtime(task: TaskView, until: datetime) -> str:
    """How long the task's process has been running, or ran."""
    if task.started_at is None:  # also of a process that ended before its start was reported
        return "-" if task.exit is None else "0s"
    end = until if task.finished_at is None else parse_time(task.finished_at)
    return elapsed(task.started_at, end)


def shell_command(command: str | Sequence[str]) -> str:
    """The command quoted for a shell, without the text of a script."""
    if isinstance(command, str):
        return command
    return " ".join("(script)" if "\n" in word else shlex.quote(word) for word in command)
