"""Submissions, dependencies, and what users do to jobs: cancel, hold, change the priority."""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from phalanx.core import causes
from phalanx.core.array import Array, new_blocks
from phalanx.core.causes import Cause, CauseKind
from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict, Invalid, Problem
from phalanx.core.events import (
    BackoffEnded,
    CancelRequested,
    HoldChanged,
    PriorityChanged,
    ScheduleTimedOut,
    Submitted,
)
from phalanx.core.gang import Gang, tasks_of
from phalanx.core.handlers.arrays import stop_array
from phalanx.core.handlers.gather import release_gathered
from phalanx.core.handlers.limits import check_namespace_limits
from phalanx.core.handlers.requeue import arm_timeouts
from phalanx.core.handlers.stop import stop_gang
from phalanx.core.interning import shared_spec
from phalanx.core.model import ENDED, Job, PendingState, Phase
from phalanx.core.queues import check_namespace_of_queue, check_priority_in_queue
from phalanx.core.records import (
    ArraySubmitted,
    DependenciesMet,
    JobCancelRequested,
    JobHeld,
    JobPriorityChanged,
    JobReleased,
    JobSubmitted,
)
from phalanx.core.spec.job import DEPENDENCY_FIELDS, JobSpec
from phalanx.core.states import Move, State


def submitted(tx: Changes, event: Submitted) -> None:
    spec = shared_spec(event.spec)
    problems = _problems(tx, event)
    if problems:
        raise Invalid(problems)
    check_namespace_of_queue(tx.base.queues, spec.queue, spec.namespace)
    check_priority_in_queue(tx.base.queues, spec.queue, spec.priority)
    check_namespace_limits(tx, spec, jobs=spec.elements, tasks=spec.elements * spec.size)
    endings = {job: _ending(tx, job, event.ended) for job in spec.dependencies}
    unfinished = tuple([job for job, phase in endings.items() if phase is None])
    job = Job(
        id=event.job,
        name=spec.name or event.job,
        spec=spec,
        phase=Phase.PENDING,
        created_at=tx.now,
        priority=spec.priority,
        owner=event.owner,
        members=event.members,
    )
    add = _add_array if job.is_array else _add_gang
    gang: Gang = add(tx, job, unfinished, event)
    tx.replan = True
    for dependency, phase in endings.items():
        cause = None if phase is None else _unmet(spec, dependency, phase)
        if cause is not None:
            stop_job(tx, gang, cause)
            return


def _add_array(tx: Changes, job: Job, unfinished: tuple[str, ...], event: Submitted) -> Array:
    """Add an array. It has a pending stage only while it has dependencies."""
    spec = job.spec
    pending = PendingState(after=unfinished) if unfinished else None
    array = Array(replace(job, pending=pending), new_blocks(job.id, spec.elements))
    tx.add_array(array)
    tx.record(ArraySubmitted(job.id, spec.elements, spec.size, event.owner, event.policies))
    return array


def _add_gang(tx: Changes, job: Job, unfinished: tuple[str, ...], event: Submitted) -> Gang:
    spec = job.spec
    is_eligible = not unfinished and not job.awaits_members
    pending = PendingState(after=unfinished, since=tx.now if is_eligible else None)
    job = replace(job, pending=pending)
    is_alone = spec.size == 1 and is_eligible
    gang = tx.add_gang(job, tasks_of(job.id, spec, State.PENDING if is_alone else State.BLOCKED))
    tx.record(JobSubmitted(job.id, spec.size, event.owner, event.policies))
    arm_timeouts(tx, gang)
    return gang


def _problems(tx: Changes, event: Submitted) -> list[Problem]:
    spec, base = event.spec, tx.base
    problems: list[Problem] = []
    if spec.schedule is not None:
        raise AssertionError("bug: a job with a schedule was submitted as a run; it makes a cron")
    if event.job in base.gangs:
        raise Conflict(f"job {event.job} already exists")
    problems += unknown_queue(tx, spec)
    problems += taken_name(tx, spec)
    if spec.dependencies:
        problems += missing_dependencies(
            spec, lambda job: job not in event.ended and not base.has_job(job)
        )
    return problems


def missing_dependencies(spec: JobSpec, is_missing: Callable[[str], bool]) -> list[Problem]:
    """A problem for each dependency that does not exist, or that the caller may not see."""
    return [
        Problem(f"{field}[{number}]", f"is {job}, which does not exist")
        for field in DEPENDENCY_FIELDS
        for number, job in enumerate(getattr(spec, field))
        if is_missing(job)
    ]


def taken_name(tx: Changes, spec: JobSpec) -> list[Problem]:
    holder = None if spec.name is None else tx.base.names.get((spec.namespace, spec.name))
    if holder is None:
        return []
    return [
        Problem(
            "name",
            f"is {spec.name}, the name of the unfinished job {holder} in namespace "
            f"{spec.namespace}; choose another name or cancel that job",
        )
    ]


def unknown_queue(tx: Changes, spec: JobSpec) -> list[Problem]:
    queues = tx.base.queues
    if spec.queue in queues:
        return []
    names = ", ".join(sorted(queues))
    return [Problem("queue", f"is {spec.queue}, which does not exist; the queues are: {names}")]


def _ending(tx: Changes, job: str, ended: Mapping[str, Phase]) -> Phase | None:
    return tx.base.verdict_of(job) if tx.base.has_job(job) else ended[job]


def dependency_ended(tx: Changes, gang: Gang, dependency: str, phase: Phase) -> None:
    """Note that a dependency has ended: the job becomes eligible, or ends with it."""
    job = gang.job
    if job.end is not None:
        return
    cause = _unmet(job.spec, dependency, phase)
    if cause is not None:
        stop_job(tx, gang, cause)
        return
    pending = job.pending or PendingState()
    unfinished = tuple(other for other in pending.after if other != dependency)
    if isinstance(gang, Array):
        tx.set_job(gang, pending=PendingState(after=unfinished) if unfinished else None)
    else:
        tx.set_pending(gang, after=unfinished, since=pending.since if unfinished else tx.now)
    if unfinished:
        return
    if len(gang.tasks) == 1:
        tx.move(gang, gang.tasks[0], Move.DEPENDENCIES_MET, State.PENDING)
    tx.record(DependenciesMet(job.id))
    tx.replan = True
    arm_timeouts(tx, gang)


def _unmet(spec: JobSpec, dependency: str, phase: Phase) -> Cause | None:
    """Why the job can never run after a dependency that ended in this phase."""
    if phase is not Phase.DONE and dependency in spec.after:
        return causes.dependency_ended(dependency, phase)
    if phase is Phase.DONE and dependency in spec.afternotok:
        return causes.not_needed(dependency)
    return None


def stop_job(tx: Changes, gang: Gang, cause: Cause) -> None:
    """Stop a gang, or all elements of an array."""
    if isinstance(gang, Array):
        stop_array(tx, gang, cause)
    else:
        stop_gang(tx, gang, cause)


def cancel_requested(tx: Changes, event: CancelRequested) -> None:
    gang = _unfinished(tx, event.job, "be cancelled")
    stopping = gang.job.stopping
    if stopping is not None and stopping.cause.kind is CauseKind.CANCEL:
        return
    tx.record(JobCancelRequested(event.job, event.by))
    stop_job(tx, gang, causes.cancelled(event.by))


def hold_changed(tx: Changes, event: HoldChanged) -> None:
    gang = _unfinished(tx, event.job, "be put on hold")
    if gang.job.on_hold == event.on_hold:
        return
    for each in _with_elements(tx, gang):
        release_gathered(tx, each)
        pending = each.job.pending
        if pending is not None:
            pending = replace(pending, nomination=None)
        tx.set_job(each, on_hold=event.on_hold, pending=pending)
    kind = JobHeld if event.on_hold else JobReleased
    tx.record(kind(event.job, event.by))
    tx.replan = True


def priority_changed(tx: Changes, event: PriorityChanged) -> None:
    gang = _unfinished(tx, event.job, "change its priority")
    if gang.job.priority == event.priority:
        return
    check_priority_in_queue(tx.base.queues, gang.job.spec.queue, event.priority)
    tx.record(JobPriorityChanged(event.job, gang.job.priority, event.priority, event.by))
    for each in _with_elements(tx, gang):
        tx.set_job(each, priority=event.priority)
    tx.replan = True


def _with_elements(tx: Changes, gang: Gang) -> list[Gang]:
    """A job, and the jobs of its elements if it is an array."""
    elements = gang.live_elements() if isinstance(gang, Array) else ()
    return [gang, *map(tx.gang, elements)]


def _unfinished(tx: Changes, job: str, what: str) -> Gang:
    gang = tx.gang(job)
    if gang.job.phase in ENDED:
        raise Conflict(f"job {job} is {gang.job.phase}; a {gang.job.phase} job cannot {what}")
    return gang


def backoff_ended(tx: Changes, event: BackoffEnded) -> None:
    gang = tx.base.gangs.get(event.job)
    pending = None if gang is None else gang.job.pending
    if pending is not None and pending.not_before <= tx.now:
        tx.replan = True


def schedule_timed_out(tx: Changes, event: ScheduleTimedOut) -> None:
    gang = tx.base.gangs.get(event.job)
    if gang is None or gang.job.phase is not Phase.PENDING:
        return
    for timeout in gang.job.timeouts:
        if timeout.at == event.at <= tx.now:
            cause = causes.schedule_timed_out(timeout.limit, is_gathering=timeout.is_gathering)
            stop_gang(tx, tx.gang(event.job), cause)
            return
