"""Jobs, tasks, workers, times and amounts in the words that people read. Knows no server."""

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from phalanx.core.model import ENDED, Phase
from phalanx.core.spec.quantities import quantity
from phalanx.wire.jobs import Counts, JobView, TaskView

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
    "lost": "bold red",
}

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))


def now() -> datetime:
    return datetime.now(UTC)


def state(word: str) -> Text:
    """A phase or a state in its colour."""
    return Text(word, style=_STYLES.get(word, ""))


def lasting(seconds: float) -> str:
    """`42s`, `3m`, `2h 5m`, `4d 1h`: two units at most."""
    left = max(0, int(seconds))
    for size, unit in _UNITS:
        if left >= size:
            count, rest = divmod(left, size)
            smaller, name = {"d": (rest // 3600, "h"), "h": (rest // 60, "m"), "m": (rest, "s")}[
                unit
            ]
            return f"{count}{unit} {smaller}{name}" if smaller and count < 10 else f"{count}{unit}"
    return f"{left}s"


def moment(at: str) -> datetime:
    return datetime.fromisoformat(at)


def since(at: str, until: datetime) -> str:
    return lasting((until - moment(at)).total_seconds())


def ago(at: str, until: datetime) -> str:
    return f"{since(at, until)} ago"


def clock(at: str) -> str:
    """The time of the day where the reader is."""
    return moment(at).astimezone().strftime("%H:%M:%S")


def minute(at: str) -> str:
    return moment(at).strftime("%Y-%m-%dT%H:%MZ")


def day(at: str) -> str:
    return moment(at).astimezone().strftime("%Y-%m-%d")


def rounded(resource: str, amount: object) -> str:
    """Memory of machines is seldom a round number."""
    if resource != "memory":
        return str(amount)
    size, unit = float(quantity(amount)), 2**30
    return f"{size / unit:.1f}".removesuffix(".0") + "Gi" if size >= unit else str(amount)


def amounts(resources: Mapping[str, Any]) -> str:
    """`gpu 2, cpu 8, memory 64Gi`: what is scarce first."""
    order = {"gpu": 0, "cpu": 1, "memory": 2}
    named = sorted(resources.items(), key=lambda item: (order.get(item[0], 3), item[0]))
    return ", ".join(f"{name} {amount}" for name, amount in named) or "-"


def title(job: JobView) -> str:
    """What a job is called, if it was given a name."""
    if job.name == job.id:
        return "-"
    return job.name if job.namespace == "default" else f"{job.namespace}/{job.name}"


def explanation(job: JobView) -> str:
    """Why it waits, or why it ended or is being stopped, as far as that says something new."""
    if job.reason is not None:
        return str(job.reason.get("message", job.reason.get("type", "")))
    if job.phase is Phase.PENDING:
        return "for the next plan"
    return "" if job.cause is None or job.phase is Phase.DONE else job.cause


def age(at: str, until: datetime) -> str:
    """How long ago, in the one unit that matters: `42s`, `3m`, `2h`."""
    return since(at, until).partition(" ")[0]


def has_ended(job: JobView) -> bool:
    return job.phase in ENDED


def counted(counts: Counts) -> str:
    """`4 tasks: 3 running, 1 pending`."""
    parts = {
        "running": counts.running,
        "pending": counts.pending,
        "done": counts.succeeded,
        "failed": counts.failed,
    }
    told = ", ".join(f"{count} {word}" for word, count in parts.items() if count)
    return f"{counted_as(counts.total, 'task')}: {told}" if told else "none yet"


def money(amount: float) -> str:
    return f"${amount:,.2f}"


def counted_as(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def outcome(task: TaskView) -> str:
    """How its process ended, if that was not well."""
    return "" if task.exit is None or task.exit.is_success else str(task.exit)


def lived(task: TaskView, until: datetime) -> str:
    """How long its process has lived, or did."""
    if task.started_at is None:
        return "-"
    end = until if task.done_at is None else moment(task.done_at)
    return since(task.started_at, end)


def shell(command: str | Sequence[str]) -> str:
    """A command as it would be typed."""
    return command if isinstance(command, str) else shlex.join(command)
