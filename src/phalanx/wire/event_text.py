"""Events as sentences, one per kind.

Sentences about a job leave its name out, because `phalanx events JOB` prints only that job's.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import assert_never

from phalanx.core import records
from phalanx.core.causes import TaskEnding, ending_text
from phalanx.core.model import Phase
from phalanx.core.spec.durations import short_duration
from phalanx.core.spec.quantities import size_text
from phalanx.core.text import dollars, listed, plural
from phalanx.core.time_units import SECOND, Micros
from phalanx.wire.events import Event, Resync, UnknownEvent

#: How many names of workers or tasks a sentence lists.
_MOST_NAMES = 8

_ENDED = {
    Phase.PENDING: "requeued",
    Phase.DONE: "done",
    Phase.FAILED: "failed",
    Phase.CANCELLED: "cancelled",
    Phase.TIMED_OUT: "timed out",
}

_ALARMS = (
    *(records.TaskFailed, records.ElementFailed, records.TaskStopTimedOut, records.ReservationLost),
    *(records.WorkerDeclaredLost, records.WorkerCordoned),
    *(records.TaskValueAbnormal, records.WorkerSuspected),
)


def sentence(event: Event) -> str:
    match event:
        case records.TaskRecord():
            return _task(event)
        case records.AttemptRecord():
            return _attempt(event)
        case records.CronRecord() | records.CronFired():
            return _cron(event)
        case records.JobRecord():
            return _job(event)
        case records.WorkerRecord():
            return _worker(event)
        case records.QueueRecord():
            return _queue(event)
        case Resync():
            return "some events were missed here"
        case UnknownEvent(name=name, fields=fields):
            known = ", ".join(f"{key} {value}" for key, value in fields.items())
            return _spaced(name) + (f": {known}" if known else "")
        case _:
            assert_never(event)


def style(event: Event) -> str:
    """The style in which the sentence is printed."""
    match event:
        case records.JobEnded(phase=Phase.FAILED | Phase.TIMED_OUT):
            return "red"
        case records.JobEnded():
            return "bold"
        case _:
            return "red" if isinstance(event, _ALARMS) else ""


def _job(record: records.JobRecords) -> str:
    match record:
        case records.JobSubmitted(size=size, owner=owner, policies=policies):
            permitted = f", permitted by {', '.join(policies)}" if policies else ""
            return f"submitted{_by(owner)}: {plural(size, 'task')}{permitted}"
        case records.ArraySubmitted(elements=elements, size=size, owner=owner, policies=policies):
            permitted = f", permitted by {', '.join(policies)}" if policies else ""
            each = "" if size == 1 else f" of {plural(size, 'task')}"
            return f"submitted{_by(owner)}: {plural(elements, 'element')}{each}{permitted}"
        case records.ElementFailed(index=index, phase=phase, why=why):
            return f"element {index} {_ENDED[phase]}: {why}"
        case records.ElementsCancelRequested(indices=indices, by=by):
            return f"elements {indices} cancelled{_by(by)}"
        case records.ElementsRetryRequested(indices=indices, by=by):
            return f"elements {indices} retried{_by(by)}"
        case records.MembersAdded(members=members, size=size):
            return f"{_in_order(members)} joined: {plural(size, 'task')} so far"
        case records.DependenciesMet():
            return "all dependencies met"
        case records.JobCancelRequested(by=by):
            return f"cancelled{_by(by)}"
        case records.JobHeld(by=by):
            return f"put on hold{_by(by)}"
        case records.JobReleased(by=by):
            return f"released from hold{_by(by)}"
        case records.JobPriorityChanged(before=before, after=after, by=by):
            return f"priority changed from {before} to {after}{_by(by)}"
        case records.JobImagesPinned(images=images):
            return f"images pinned: {', '.join(images)}"
        case records.PlacesGathered(gathered=gathered, needed=needed):
            return f"gathered {gathered} of {plural(needed, 'place')}"
        case records.GatheredPlacesReleased(places=places, why=why):
            return f"released {plural(places, 'gathered place')}: {why}"
        case records.CapacityKept(size=size, victims=victims):
            waiting = f", waiting for {_in_order(victims)} to stop" if victims else ""
            return f"capacity kept for {plural(size, 'task')}{waiting}"
        case records.KeptCapacityReleased():
            return "kept capacity released: the job did not start in time"
        case records.JobEnded(phase=phase, why=why):
            return _ended(phase, why)
        case _:
            assert_never(record)


def _ended(phase: Phase, why: str) -> str:
    if phase is Phase.DONE:
        return "job done"
    if phase is Phase.CANCELLED and why.startswith("cancelled"):
        return f"job {why}"
    return f"job {_ENDED[phase]}: {why}"


def _attempt(record: records.AttemptRecords) -> str:
    match record:
        case records.GangReserved(attempt=attempt, size=size, workers=workers):
            return f"attempt {attempt}: reserved {plural(size, 'task')} on {_in_order(workers)}"
        case records.GangStarting(size=size, workers=workers):
            return _starting(size, workers)
        case records.ReservationLost(attempt=attempt, why=why):
            return f"attempt {attempt}: reservation lost: {why}"
        case records.JobEvicted(why=why, moved=moved):
            return why if moved else f"evicted: {why}"
        case records.JobShrunk(tasks=tasks, other_job=preemptor):
            what = "task" if len(tasks) == 1 else "tasks"
            return f"shrinking for {preemptor}: stopping {what} {_in_order(map(str, tasks))}"
        case records.GangStopping(why=why):
            return f"stopping all tasks: {why}"
        case records.GangStopped(outcome=outcome, seconds=seconds):
            return f"all tasks stopped after {seconds:.1f} s, job {_ENDED[outcome]}"
        case records.DoneTasksRequeued(tasks=tasks):
            what = "task" if len(tasks) == 1 else "tasks"
            had = f"{what} {_in_order(map(str, tasks))} had finished"
            return f"{had}, running again with the whole gang: on_partial_completion is restart"
        case records.RetryDelayed(seconds=seconds, failures=failures):
            after = f" after {failures} failures in a row" if failures > 1 else ""
            return f"next attempt in {seconds:g} s{after}"
        case records.WorkLost(to=to, other_job=preemptor, gpu_s=gpu_s):
            return f"lost {_work(gpu_s)} ({to}{_by(preemptor or '')})"
        case records.CheckpointMissing(seconds=seconds, gpu_s=gpu_s, cost=cost):
            price = f" ({dollars(cost)})" if cost else ""
            ran = short_duration(int(seconds))
            return f"no checkpoint after {ran}: a stop would lose {_work(gpu_s)}{price}"
        case records.GangCheckpointSaved(size=size):
            return f"checkpoints of all {plural(size, 'task')} saved"
        case _:
            assert_never(record)


def _starting(size: int, workers: int) -> str:
    if workers <= 1:
        return f"starting {plural(size, 'task')}"
    tasks = "" if size == workers else f" {plural(size, 'task')}"
    return f"all {workers} workers ready, starting{tasks}"


def _work(gpu_s: float) -> str:
    if gpu_s < 0.5:
        return "unsaved work"
    if gpu_s < 3600:
        return f"{plural(round(gpu_s), 'GPU-second')} of work"
    return f"{gpu_s / 3600:.1f} GPU-hours of work"


def _task(record: records.TaskRecords) -> str:
    task, where = f"task {record.task}", "" if record.worker is None else f" on {record.worker}"
    match record:
        case records.TaskStarted():
            return f"{task} started{where}"
        case records.TaskClaimed(worker=worker):
            return f"{task} claimed{_by(worker or '')}"
        case records.TaskDone():
            return f"{task} done"
        case records.TaskStopped(how=TaskEnding.EXITED | TaskEnding.STOPPED):
            return f"{task} stopped"
        case records.TaskStopped(how=how, worker=worker):
            return f"{task} {ending_text(how, worker)} while stopping"
        case records.TaskFailed(why=why):
            return f"{task} {why}"
        case records.TaskStopTimedOut():
            return f"{task} did not stop in time{where}"
        case records.TaskCheckpointSaved(size_bytes=size_bytes):
            return f"{task} saved a checkpoint of {size_text(size_bytes)}"
        case records.TaskPreparing(message=message):
            return f"{task}: {message}{where}"
        case records.TaskProblemReported(message=message):
            return f"{task}: {message}"
        case records.TaskCheckpointDiscarded(size_bytes=size_bytes):
            size = size_text(size_bytes)
            return f"{task}: checkpoint of {size} discarded, saved after an abnormal value"
        case records.TaskValueAbnormal():
            return record.text
        case records.WorkerSuspected(worker=worker, rank=rank, step=step):
            first = f"rank {rank} was the first with an abnormal value, at step {step}"
            return f"worker {worker} is suspected: {first}"
        case records.WorkSaved(step=step):
            return f"{task} saved its work" + ("" if step is None else f" at step {step}")
        case records.AttemptGone(attempt=attempt, worker=worker):
            return f"{task} of attempt {attempt} is confirmed gone from {worker}"
        case _:
            assert_never(record)


def _worker(record: records.WorkerRecords) -> str:
    worker = f"worker {record.worker}"
    match record:
        case records.WorkerJoined():
            return f"{worker} joined"
        case records.WorkerDeclaredLost():
            return f"{worker} lost"
        case records.WorkerRecovered():
            return f"{worker} recovered"
        case records.WorkerDeleted(by=by):
            return f"{worker} deleted{_by(by)}"
        case records.WorkerCordoned(why=why):
            return f"{worker} cordoned: {why}"
        case records.WorkerUncordoned():
            return f"{worker} uncordoned"
        case records.WorkerDraining(why=why, by=by, until=until):
            who = f", requested by {by}" if by else ""
            deadline = f", deadline {_clock(until)}" if until > record.at else ""
            return f"{worker} draining{who}{deadline}: {why}"
        case records.WorkerShuttingDown():
            return f"{worker} is shutting down"
        case _:
            assert_never(record)


def _queue(record: records.QueueRecords) -> str:
    queue = f"queue {record.queue}"
    match record:
        case records.QueueCreated(by=by):
            return f"{queue} created{_by(by)}"
        case records.QueueChanged(by=by):
            return f"{queue} changed{_by(by)}"
        case records.QueueDeleted():
            return f"{queue} deleted"
        case _:
            assert_never(record)


def _cron(record: records.CronRecords) -> str:
    cron = f"cron {record.cron}"
    match record:
        case records.CronCreated(owner=owner):
            return f"{cron} created{_by(owner)}"
        case records.CronChanged(owner=owner):
            return f"{cron} changed{_by(owner)}"
        case records.CronDeleted(by=by):
            return f"{cron} deleted{_by(by)}"
        case records.CronSchedulePaused(by=by):
            return f"{cron} paused{_by(by)}"
        case records.CronScheduleResumed(by=by):
            return f"{cron} resumed{_by(by)}"
        case records.CronRunRequested(by=by):
            return f"{cron}: run requested{_by(by)}"
        case records.CronSkipped(unfinished=unfinished):
            return f"{cron}: run skipped because {unfinished} is unfinished"
        case records.CronReplacing():
            return f"{cron}: cancelling the unfinished run before the next one"
        case records.CronDenied(why=why):
            return f"{cron}: run refused: {why}"
        case records.CronFired():
            return f"submitted by {cron}"
        case _:
            assert_never(record)


def _by(name: str) -> str:
    return f" by {name}" if name else ""


def _clock(at: Micros) -> str:
    return datetime.fromtimestamp(at / SECOND, UTC).astimezone().strftime("%H:%M:%S")


def _in_order(names: Iterable[str]) -> str:
    """Names in natural order, w-2 before w-10; of many, the first ones."""
    return listed(sorted(names, key=_natural), _MOST_NAMES)


def _natural(name: str) -> list[tuple[int, int, str]]:
    parts = re.findall(r"\d+|\D+", name)
    return [(0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts]


def _spaced(kind: str) -> str:
    """`TaskStarted` as `task started`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", kind).lower()
