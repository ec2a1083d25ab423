"""Records as sentences: the story of a job, a worker or a queue as one would tell it."""

import re
from collections.abc import Callable
from typing import Any

from phalanx.cli.formatting import counted_as
from phalanx.wire.jobs import RecordView

Detail = dict[str, Any]

#: How a record reads, from its task, worker and epoch, and from its detail.
_PLAIN = {
    "AttemptGone": "nothing of an attempt on {worker} is left",
    "CheckpointSaved": "task {task} saved {size_bytes} bytes",
    "CheckpointSetSaved": "the checkpoints of all {tasks} tasks are complete",
    "CronChanged": "cron {cron} was changed",
    "CronDenied": "cron {cron} was due and may not run: {why}",
    "CronFired": "cron {cron} was due",
    "CronPaused": "cron {cron} is paused",
    "CronRemoved": "cron {cron} was removed",
    "CronReplacing": "cron {cron} was due, and replaces the run before",
    "CronRequested": "cron {cron} is to run now",
    "CronResumed": "cron {cron} goes on",
    "CronSet": "cron {cron} was set",
    "CronSkipped": "cron {cron} was due and is skipped: {unfinished} is unfinished",
    "DependenciesMet": "all that it waited for is done",
    "DrainBegan": "all its tasks are told to stop: {why}",
    "Evicted": "evicted: {why}",
    "GangReleased": "all are ready, so {size} may start",
    "GangReserved": "attempt {epoch}: places for {size} on {workers}",
    "HoldsReleased": "it gave up the {size} places that it held: {why}",
    "Nominated": "room for {size} is kept for it until {victims} have stopped",
    "NominationEnded": "the room that was kept for it is free again: {why}",
    "PlacesHeld": "it holds {size} places and waits for the rest",
    "PriorityChanged": "its priority is {after}, and was {before}",
    "QueueRemoved": "queue {queue} was removed",
    "QueuesSet": "{by} set the queues {queues}",
    "QueueSet": "queue {queue} was set",
    "ReservationLost": "it lost its places: {why}",
    "Shrunk": "tasks {tasks} are given up",
    "StopTimedOut": "task {task} did not say in time that it stopped",
    "TaskClaimed": "task {task} runs on {worker}",
    "TaskDone": "task {task} is done",
    "TaskStarted": "task {task} runs on {worker}",
    "TaskStopped": "task {task} has stopped",
    "WorkSafe": "task {task} is safe up to step {step}",
    "WorkerCordoned": "worker {worker} takes nothing new: {why}",
    "WorkerDraining": "worker {worker} is being emptied: {why}",
    "WorkerLeaving": "worker {worker} is leaving",
    "WorkerLost": "worker {worker} is lost",
    "WorkerRegistered": "worker {worker} registered",
    "WorkerRemoved": "worker {worker} was removed",
    "WorkerReturned": "worker {worker} is back",
    "WorkerUncordoned": "worker {worker} is open again",
    "resync": "some events were missed here",
}


def _submitted(detail: Detail) -> str:
    by = f" by {detail['owner']}" if detail.get("owner") else ""
    return f"submitted{by} with {counted_as(detail.get('size', 1), 'task')}"


def _joined(detail: Detail) -> str:
    members, size = _listed(detail.get("members", ["members"])), detail.get("size", 0)
    return f"{members} joined it, which has {counted_as(size, 'task')} now"


def _settled(detail: Detail) -> str:
    outcome = str(detail.get("outcome", ""))
    then = "it waits again" if outcome == "blocked" else f"it is {outcome}"
    return f"all has stopped, after {detail.get('seconds', 0):.1f} s: {then}"


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


def _held(detail: Detail) -> str:
    return "put on hold" if detail.get("on_hold") else "released from its hold"


def _ended(detail: Detail) -> str:
    phase, why = detail.get("phase"), detail.get("why")
    return "done" if phase == "done" else f"{phase}: {why}"


_SPECIAL: dict[str, Callable[[Detail], str]] = {
    "JobSubmitted": _submitted,
    "MembersJoined": _joined,
    "DrainSettled": _settled,
    "CancelRequested": _cancelled,
    "ComputeLost": _lost,
    "HoldChanged": _held,
    "JobEnded": _ended,
    "TaskFailed": _failed,
}

KNOWN = _PLAIN.keys() | _SPECIAL.keys()

_ALARMING = {"TaskFailed", "WorkerLost", "ReservationLost", "StopTimedOut", "WorkerCordoned"}


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
