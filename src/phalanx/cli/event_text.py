"""Records as sentences: the story of a job, a worker or a queue as one would tell it."""

import re
from collections.abc import Callable
from typing import Any

from phalanx.cli.formatting import plural
from phalanx.wire.jobs import RecordView

Detail = dict[str, Any]

#: How a record reads, from its task, worker and epoch, and from its detail.
_PLAIN = {
    "AttemptGone": "attempt {epoch} of task {task} has ended on {worker}",
    "CapacityKept": "capacity for {size} tasks kept while {victims} stop",
    "CronChanged": "cron {cron} changed",
    "CronCreated": "cron {cron} created",
    "CronDeleted": "cron {cron} deleted",
    "CronDenied": "cron {cron}: run refused: {why}",
    "CronFired": "submitted by cron {cron}",
    "CronSchedulePaused": "cron {cron} paused",
    "CronReplacing": "cron {cron}: replacing the unfinished run",
    "CronScheduleResumed": "cron {cron} resumed",
    "CronRunRequested": "cron {cron}: run requested",
    "CronSkipped": "cron {cron}: run skipped, {unfinished} is unfinished",
    "DependenciesMet": "all dependencies are done",
    "GangCheckpointSaved": "checkpoints of all {size} tasks saved",
    "GangReserved": "attempt {epoch}: reserved {size} tasks on {workers}",
    "GangStarting": "all workers ready, starting {size} tasks",
    "GangStopping": "stopping all tasks: {why}",
    "GatheredPlacesReleased": "released {places} gathered places: {why}",
    "JobEvicted": "evicted: {why}",
    "JobHeld": "put on hold",
    "JobPriorityChanged": "priority changed from {before} to {after}",
    "JobReleased": "released from hold",
    "JobShrunk": "gave up tasks {tasks}",
    "KeptCapacityReleased": "kept capacity released: the job did not start in time",
    "PlacesGathered": "gathered {gathered} of {needed} places",
    "QueueChanged": "queue {queue} changed",
    "QueueCreated": "queue {queue} created",
    "QueueDeleted": "queue {queue} deleted",
    "ReservationLost": "reservation lost: {why}",
    "TaskCheckpointSaved": "task {task} saved a checkpoint of {size_bytes} bytes",
    "TaskClaimed": "task {task} claimed",
    "TaskDone": "task {task} done",
    "TaskStarted": "task {task} started on {worker}",
    "TaskStopTimedOut": "task {task} did not stop in time",
    "TaskStopped": "task {task} stopped",
    "WorkSaved": "task {task} saved its work",
    "WorkerCordoned": "worker {worker} cordoned: {why}",
    "WorkerDeclaredLost": "worker {worker} lost",
    "WorkerDeleted": "worker {worker} deleted",
    "WorkerDraining": "worker {worker} draining: {why}",
    "WorkerJoined": "worker {worker} joined",
    "WorkerRecovered": "worker {worker} recovered",
    "WorkerShuttingDown": "worker {worker} is shutting down",
    "WorkerUncordoned": "worker {worker} uncordoned",
    "resync": "some events were missed here",
}


def _submitted(detail: Detail) -> str:
    by = f" by {detail['owner']}" if detail.get("owner") else ""
    return f"submitted{by} with {plural(detail.get('size', 1), 'task')}"


def _joined(detail: Detail) -> str:
    members, size = _listed(detail.get("members", ["members"])), detail.get("size", 0)
    return f"{members} joined it, which has {plural(size, 'task')} now"


def _settled(detail: Detail) -> str:
    outcome = str(detail.get("outcome", ""))
    then = "job requeued" if outcome == "pending" else f"job {outcome}"
    return f"all tasks stopped after {detail.get('seconds', 0):.1f} s, {then}"


def _cancelled(detail: Detail) -> str:
    return "somebody cancels it" if not detail.get("by") else f"{detail['by']} cancels it"


def _lost(detail: Detail) -> str:
    seconds = detail.get("gpu_s", 0)
    if seconds < 0.5:
        return f"its work is lost to {detail.get('to', 'a stop')}"
    amount = f"{seconds / 3600:.1f} GPU-hours" if seconds >= 3600 else f"{seconds:.0f} GPU-seconds"
    return f"{amount} of work are lost to {detail.get('to', 'a stop')}"


def _failed(detail: Detail) -> str:
    task, worker, why = detail["task"], detail["worker"], detail.get("why")
    if why is None:
        return f"task {task} failed"
    if f" {worker}," in why:
        return f"task {task} {why}"
    return f"task {task}, on {worker}, {why}" if ":" in why else f"task {task} {why} on {worker}"


def _ended(detail: Detail) -> str:
    phase, why = detail.get("phase"), detail.get("why")
    return "done" if phase == "done" else f"{phase}: {why}"


_SPECIAL: dict[str, Callable[[Detail], str]] = {
    "JobSubmitted": _submitted,
    "MembersAdded": _joined,
    "GangStopped": _settled,
    "JobCancelRequested": _cancelled,
    "WorkLost": _lost,
    "JobEnded": _ended,
    "TaskFailed": _failed,
}

KNOWN = _PLAIN.keys() | _SPECIAL.keys()

_ALARMING = {
    *("TaskFailed", "WorkerDeclaredLost", "ReservationLost", "TaskStopTimedOut"),
    "WorkerCordoned",
}


def sentence(record: RecordView) -> str:
    """A kind that has no sentence of its own is told by its name and what it carries."""
    where = {"task": record.task, "worker": record.worker, "epoch": record.epoch}
    if record.kind in _SPECIAL:
        return _SPECIAL[record.kind](record.detail | where)
    fields: Detail = {key: _listed(value) for key, value in record.detail.items()} | where
    try:
        return _PLAIN[record.kind].format(**fields)
    except KeyError:
        told = ", ".join(f"{key} {value}" for key, value in fields.items() if value is not None)
        return re.sub(r"(?<!^)(?=[A-Z])", " ", record.kind).lower() + (f": {told}" if told else "")


def style(record: RecordView) -> str:
    if record.kind in _ALARMING or record.detail.get("phase") in ("failed", "timed-out"):
        return "red"
    return "bold" if record.kind == "JobEnded" else ""


def _listed(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, list) else value
