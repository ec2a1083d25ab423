"""Crons: jobs that are submitted on a schedule, once for each time that is due.

Submitting a run and noting it on the cron are one change, so no leader submits it twice. If runs
were due while there was no leader, one run makes up for all of them. The time zone and the owner's
permission come with the event.
"""

from datetime import UTC, tzinfo
from itertools import count

from msgspec.structs import replace

from phalanx.core import causes, records
from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict, CoreError, Invalid, Problem, Unknown
from phalanx.core.events import (
    CronDue,
    CronPaused,
    CronRemoved,
    CronReplacementDue,
    CronRequested,
    CronSet,
    Submitted,
)
from phalanx.core.handlers.limits import check_namespace_limits
from phalanx.core.handlers.submit import stop_job, submitted, unknown_queue
from phalanx.core.ids import job_id, scrambled
from phalanx.core.model import Cron, CronOutcome, CronRun, Job, Phase, cron_key
from phalanx.core.queues import check_namespace_of_queue, check_priority_in_queue
from phalanx.core.spec import cron_expression as expression
from phalanx.core.spec.cron_times import last_due, next_due, stamp
from phalanx.core.spec.job import Concurrency, Schedule
from phalanx.core.time_units import Micros


def cron_set(tx: Changes, event: CronSet) -> None:
    """Create a cron, or replace the one of the same name."""
    problems = _problems(tx, event)
    if problems:
        raise Invalid(problems)
    spec = event.spec
    check_namespace_of_queue(tx.base.queues, spec.queue, spec.namespace)
    check_priority_in_queue(tx.base.queues, spec.queue, spec.priority)
    key = cron_key(spec.namespace, spec.name or "")
    earlier = tx.base.crons.get(key)
    if earlier is None:
        check_namespace_limits(tx, spec, jobs=1, tasks=0)
        row = Cron(key, spec, event.owner, tx.now)
        row = replace(row, next_at=_next(row, event.zone, tx.now))
        tx.record(records.CronCreated(key, event.owner))
    elif (earlier.spec, earlier.owner) == (spec, event.owner):
        return
    else:
        check_namespace_limits(tx, spec, jobs=0, tasks=0, replaced=earlier.spec)
        row = replace(earlier, spec=spec, owner=event.owner)
        if not earlier.paused and _times(earlier) != _times(row):
            row = replace(row, next_at=_next(row, event.zone, tx.now))
        tx.record(records.CronChanged(key, event.owner))
    _put(tx, row)


def _problems(tx: Changes, event: CronSet) -> list[Problem]:
    spec = event.spec
    problems = unknown_queue(tx, spec)
    if spec.name is None:
        problems.append(Problem("name", "is missing; a job with a schedule needs one"))
    if spec.schedule is None:
        raise AssertionError("bug: a cron without a schedule")
    if event.zone is None:
        timezone = spec.schedule.timezone
        problems.append(
            Problem(
                "schedule.timezone",
                f"is {timezone}, which this server does not know; write one like Europe/Zurich",
            )
        )
    return problems


def _times(row: Cron) -> tuple[str, str]:
    return row.schedule.cron, row.schedule.timezone


def _next(row: Cron, zone: tzinfo | None, after: Micros) -> Micros | None:
    """The next time the cron is due.

    A zone that this server no longer knows is read as UTC: a late run is better than none.
    """
    return next_due(expression.parse(row.schedule.cron), zone or UTC, after)


def _put(tx: Changes, row: Cron) -> None:
    tx.crons[row.key] = row
    if row.next_at is not None:
        tx.timer(row.next_at, CronDue(row.key, row.next_at))


def _cron(tx: Changes, key: str) -> Cron:
    row = tx.base.crons.get(key)
    if row is None:
        raise Unknown(f"there is no cron {key[:200]}")
    return row


def cron_removed(tx: Changes, event: CronRemoved) -> None:
    """Remove a cron. Its runs continue."""
    _cron(tx, event.cron)
    tx.crons[event.cron] = None
    tx.record(records.CronDeleted(event.cron, event.by))


def cron_paused(tx: Changes, event: CronPaused) -> None:
    """Pause or resume a cron. Times that were due during a pause are skipped."""
    row = _cron(tx, event.cron)
    if row.paused == event.paused:
        return
    next_at = None if event.paused else _next(row, event.zone, tx.now)
    _put(tx, replace(row, paused=event.paused, next_at=next_at))
    kind = records.CronSchedulePaused if event.paused else records.CronScheduleResumed
    tx.record(kind(row.key, event.by))


def cron_due(tx: Changes, event: CronDue) -> None:
    row = tx.base.crons.get(event.cron)
    if row is None or row.next_at != event.at or tx.now < event.at:
        return
    schedule = expression.parse(row.schedule.cron)
    at = last_due(schedule, event.zone or UTC, event.at, tx.now)
    row = replace(row, next_at=_next(row, event.zone, tx.now))
    _put(tx, row)
    unfinished = row.unfinished
    if unfinished and row.schedule.concurrency is Concurrency.FORBID:
        tx.crons[row.key] = replace(
            row, last=CronOutcome(at, f"skipped: {unfinished[0].job} is unfinished")
        )
        tx.record(records.CronSkipped(row.key, at, unfinished[0].job))
        return
    _run(tx, row, at, event)


def cron_requested(tx: Changes, event: CronRequested) -> None:
    """Submit a run now. The next scheduled time does not change."""
    row = _cron(tx, event.cron)
    unfinished = row.unfinished
    if unfinished and row.schedule.concurrency is Concurrency.FORBID:
        raise Conflict(
            f"cron {row.key} forbids concurrent runs, and {unfinished[0].job} is unfinished;"
            " cancel that job or wait until it has ended"
        )
    tx.record(records.CronRunRequested(row.key, event.by))
    why = _run(tx, row, tx.now, event)
    if why is not None:
        raise Conflict(f"cron {row.key} cannot run now: {why}")


def _run(tx: Changes, row: Cron, at: Micros, event: CronDue | CronRequested) -> str | None:
    """Submit a run, or stop the runs it replaces first. The reason if the run is denied."""
    unfinished = row.unfinished
    if not unfinished or row.schedule.concurrency is Concurrency.ALLOW:
        return _submit(tx, row, at, event)
    # The new run is submitted when the old one has ended; see `run_ended`.
    tx.crons[row.key] = replace(row, replacing_at=at)
    tx.record(records.CronReplacing(row.key, at))
    for run in unfinished:
        stop_job(tx, tx.gang(run.job), causes.replaced_by_next_run(row.key))
    return None


def cron_replacement_due(tx: Changes, event: CronReplacementDue) -> None:
    row = tx.base.crons.get(event.cron)
    if row is not None and row.replacing_at == event.at and not row.unfinished:
        _submit(tx, row, event.at, event)


def _submit(
    tx: Changes, row: Cron, at: Micros, event: CronDue | CronRequested | CronReplacementDue
) -> str | None:
    """Submit the run that was due at that time. The reason if it is denied."""
    name = f"{row.spec.name}-{stamp(at, event.zone or UTC)}"
    spec = replace(row.spec, name=name, schedule=None)
    job = _new_job_id(tx)
    why = event.refusal
    if why is None:
        try:
            submitted(tx, Submitted(job, spec, row.owner, policies=event.policies))
        except CoreError as error:
            why = str(error)
    if why is not None:
        tx.crons[row.key] = replace(row, replacing_at=None, last=CronOutcome(at, f"denied: {why}"))
        policies = () if event.refusal is None else event.policies
        tx.record(records.CronDenied(row.key, at, row.owner, why, policies))
        return why
    tx.set_job(tx.gang(job), cron=row.key, due_at=at)
    tx.crons[row.key] = replace(
        row,
        replacing_at=None,
        last=CronOutcome(at, "started", job),
        runs=(*row.runs, CronRun(job, name, at)),
    )
    tx.record(records.CronFired(job, row.key, at))
    return None


def _new_job_id(tx: Changes) -> str:
    """An id that follows from the event and its time, and that no unfinished job has.

    If a finished job in the store has it, the commit fails and the run is started again, later and
    so with another id.
    """
    draws = (job_id(scrambled(tx.now, tx.seq, n)) for n in count())
    return next(job for job in draws if job not in tx.gangs and job not in tx.base.gangs)


def run_ended(tx: Changes, job: Job) -> None:
    """Note how a run ended, forget the oldest runs, and call for the run that replaces it."""
    key = job.cron or ""
    row = tx.crons[key] if key in tx.crons else tx.base.crons.get(key)
    if row is None:
        return
    runs = [replace(run, phase=job.verdict) if run.job == job.id else run for run in row.runs]
    kept = _kept(runs, row.schedule)
    tx.forgotten += [run.job for run in runs if run not in kept]
    row = replace(row, runs=tuple(kept))
    tx.crons[key] = row
    if row.replacing_at is not None and not row.unfinished:
        tx.timer(tx.now, CronReplacementDue(row.key, row.replacing_at))


def _kept(runs: list[CronRun], schedule: Schedule) -> list[CronRun]:
    """The unfinished runs, and the most recent ones that succeeded and that did not."""
    done = [run for run in runs if run.phase is Phase.DONE]
    other = [run for run in runs if run.phase is not None and run.phase is not Phase.DONE]
    gone = done[: max(0, len(done) - schedule.keep_done)]
    gone += other[: max(0, len(other) - schedule.keep_failed)]
    return [run for run in runs if run not in gone]
