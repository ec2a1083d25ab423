"""What a caller may read about jobs of namespaces that it may not see, in answers about its own.

A pending job may be held back for such a job, and a running one may be evicted by it. The answer
says so, without the name or the id of the other job.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from msgspec.structs import replace

from phalanx.core.causes import Cause, without_job
from phalanx.core.ids import split_task
from phalanx.core.model import Job
from phalanx.core.reasons import HeldBack, Reason, WaitingForGroup, WaitingForVictims
from phalanx.core.records import CapacityKept, Record
from phalanx.identity.principal import Principal

HIDDEN_JOB = "a job of another namespace"
HIDDEN_TASK = "a task of another namespace"


class HasJob(Protocol):
    @property
    def job(self) -> Job: ...


Gangs = Mapping[str, HasJob]


def visible_cause(principal: Principal, cause: Cause) -> str:
    """A cause in words, without the name of a job that the caller may not see."""
    return _visible_text(principal, str(cause), cause.job)


def visible_name(principal: Principal, name: str) -> str:
    """The `namespace/name` of a job, unless the caller may not see it."""
    return name if principal.may_see(name.partition("/")[0]) else HIDDEN_JOB


def _visible_text(principal: Principal, text: str, job: str | None) -> str:
    """A text that names no job but this one."""
    if job is None or visible_name(principal, job) == job:
        return text
    return without_job(text, job, HIDDEN_JOB)


def may_see_task(principal: Principal, gangs: Gangs, task: str) -> bool:
    """Whether the caller may see the job of a task. Jobs that have ended are not known here."""
    return _may_see(principal, split_task(task)[0], gangs)


def _may_see(principal: Principal, job: str, gangs: Gangs) -> bool:
    if principal.confined_to is None:
        return True
    gang = gangs.get(job)
    return gang is not None and principal.may_see(gang.job.spec.namespace)


def visible_reason(principal: Principal, reason: Reason | None, gangs: Gangs) -> Reason | None:
    match reason:
        case HeldBack(for_job=job) if not _may_see(principal, job, gangs):
            return replace(reason, for_job=HIDDEN_JOB)
        case WaitingForVictims(tasks=tasks):
            return replace(reason, tasks=_tasks(principal, tasks, gangs))
        case WaitingForGroup(missing=missing):
            return replace(reason, missing=tuple(visible_name(principal, name) for name in missing))
        case _:
            return reason


def visible_record(principal: Principal, record: Record, gangs: Gangs) -> Record:
    if principal.confined_to is None:
        return record
    shown: dict[str, object] = {}
    if isinstance(record, CapacityKept):
        shown["victims"] = _tasks(principal, record.victims, gangs)
    if (job := getattr(record, "other_job", None)) is not None:
        shown["other_job"] = visible_name(principal, job)
        if (why := getattr(record, "why", None)) is not None:
            shown["why"] = _visible_text(principal, why, job)
    return replace(record, **shown) if shown else record


def _tasks(principal: Principal, tasks: Iterable[str], gangs: Gangs) -> tuple[str, ...]:
    return tuple(task if may_see_task(principal, gangs, task) else HIDDEN_TASK for task in tasks)
