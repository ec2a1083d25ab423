"""Native views of jobs, tasks and events, built from rows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from phalanx.api.cost_views import lost_view
from phalanx.api.elements import params_of
from phalanx.api.visibility import visible_cause
from phalanx.core.array import Array
from phalanx.core.gang import Gang
from phalanx.core.ledger import JobLosses
from phalanx.core.model import ElementCounts, Job, Phase, Task, index_in_role
from phalanx.core.reasons import AboveMinimum, Reason, members_reason, own_reason
from phalanx.core.spec.native_form import native
from phalanx.core.states import State
from phalanx.core.time_units import Micros
from phalanx.identity.principal import Principal
from phalanx.wire.jobs import (
    Counts,
    ElementsView,
    JobDetail,
    JobView,
    SubmitReply,
    TaskView,
)
from phalanx.wire.times import iso_time, iso_time_or_none

_RUNNING = (State.RUNNING, State.PREEMPTING)
_FAILED = (State.FAILED, State.CANCELLED)


def reason_view(reason: Reason | None) -> dict[str, Any] | None:
    return None if reason is None else _with_message(reason)


def warning_views(warnings: Iterable[msgspec.Struct]) -> tuple[dict[str, Any], ...]:
    return tuple(map(_with_message, warnings))


def _with_message(typed: msgspec.Struct) -> dict[str, Any]:
    """The fields of a reason or a warning, and its text."""
    data: dict[str, Any] = msgspec.to_builtins(typed)
    return {**data, "message": str(typed)}


def reason_of(gang: Gang, reasons: Mapping[str, Reason], now: Micros) -> Reason | None:
    """Why a job, or a part of its tasks, is pending: a reason of its own, else the one from the
    last plan."""
    phase = gang.job.phase
    if isinstance(gang, Array):
        return own_reason(gang.job, now) or reasons.get(gang.first_pending() or "")
    if phase is Phase.PENDING:
        return own_reason(gang.job, now) or reasons.get(gang.job.id)
    if phase in (Phase.STARTING, Phase.RUNNING):
        return _reason_beside_running(gang, reasons, now)
    return None


def _reason_beside_running(gang: Gang, reasons: Mapping[str, Reason], now: Micros) -> Reason | None:
    """Why tasks of a job that runs are pending; None if all have a place."""
    pending = len(gang.unplaced())
    if not pending:
        return None
    if not gang.places_tasks_alone:
        return AboveMinimum(pending, "they start when the gang starts again")
    if not gang.room_to_run:
        return AboveMinimum(pending, f"max_running is {gang.job.spec.max_running}")
    return own_reason(gang.job, now) or reasons.get(gang.job.id)


def job_fields(job: Job, principal: Principal, reason: Reason | None) -> dict[str, Any]:
    """The fields of a JobView."""
    cause = job.cause
    return {
        "id": job.id,
        "name": job.name,
        "namespace": job.spec.namespace,
        "queue": job.spec.queue,
        "phase": job.phase,
        "priority": job.priority,
        "size": job.spec.size,
        "created_at": iso_time(job.created_at),
        "attempt": job.epoch,
        "failures": job.failures,
        "owner": job.owner,
        "on_hold": job.on_hold,
        "finished_at": iso_time_or_none(job.finished_at),
        "reason": reason_view(reason),
        "cause": None if cause is None else visible_cause(principal, cause),
        "elements": _elements(job),
        "array": job.array,
        "index": job.index,
        "params": params_of(job) or None,
    }


def _elements(job: Job) -> ElementsView | None:
    counts, array = job.counts, job.spec.array
    if counts is None or array is None:
        return None
    fields = msgspec.structs.asdict(counts)
    return ElementsView(total=counts.total, **fields, parallel=array.parallel)


def job_view(job: Job, principal: Principal, reason: Reason | None = None) -> JobView:
    return JobView(**job_fields(job, principal, reason))


def job_detail(
    job: Job, tasks: Sequence[Task], principal: Principal, reason: Reason | None = None
) -> JobDetail:
    return JobDetail(
        **job_fields(job, principal, reason),
        counts=_counts(tasks) if job.counts is None else _element_counts(job.counts),
        tasks=tuple(task_view(job, task) for task in tasks),
        spec=native(job.spec),
        lost=lost_view(job.losses or JobLosses(), principal),
        cron=job.cron,
    )


def _counts(tasks: Sequence[Task]) -> Counts:
    states = [task.state for task in tasks]
    succeeded = states.count(State.DONE)
    failed = sum(states.count(state) for state in _FAILED)
    running = sum(states.count(state) for state in _RUNNING)
    total = len(states)
    return Counts(succeeded, failed, running, total - succeeded - failed - running, total)


def _element_counts(counts: ElementCounts) -> Counts:
    failed = counts.failed + counts.cancelled + counts.timed_out + counts.never_ran
    running = counts.running + counts.stopping
    return Counts(counts.done, failed, running, counts.pending + counts.starting, counts.total)


def task_view(job: Job, task: Task) -> TaskView:
    blob = task.checkpoint
    return TaskView(
        id=task.id,
        job=job.id,
        task=task.index,
        role=task.role,
        index=index_in_role(job.spec, task.index),
        state=State.PENDING if task.state is State.BLOCKED else task.state,
        attempt=task.epoch,
        worker=task.worker,
        devices=task.devices,
        reserved_at=iso_time_or_none(task.placed_at),
        started_at=iso_time_or_none(task.started_at),
        finished_at=iso_time_or_none(task.ended_at),
        exit=task.exit,
        checkpoint_bytes=None if blob is None else blob.size_bytes,
        problem=task.problem,
    )


def submitted_view(
    job: Job, principal: Principal, warnings: Iterable[msgspec.Struct] = ()
) -> SubmitReply:
    fields = job_fields(job, principal, members_reason(job))
    return SubmitReply(**fields, warnings=warning_views(warnings))
