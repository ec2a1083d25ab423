"""Crons: jobs that are made again and again, each time once.

A run and the row that says it was made are one change, so no leader makes it twice. What was due
while nobody led is made up for by one run.
"""

from datetime import UTC, tzinfo

from msgspec.structs import replace

from phalanx.core.causes import Cause, Kind
from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict, CoreError, Invalid, Problem, Unknown
from phalanx.core.events import (
    CronDue,
    CronPaused,
    CronRemoved,
    CronRequested,
    CronSet,
    Submitted,
)
from phalanx.core.handlers.stop import drain
from phalanx.core.handlers.submit import submitted, unknown_queue
from phalanx.core.ids import NOISE_BITS, job_id
from phalanx.core.model import Cron, CronOutcome, CronRun, Job, Phase
from phalanx.core.spec import cron_expression as expression
from phalanx.core.spec.cron_times import last_due, next_due, stamp
from phalanx.core.spec.job import Concurrency, JobSpec, Micros, Schedule

#: Spreads the numbers of records over the noise of an id.
_SPREAD = 0x9E3779B97F4A7C15


def cron_set(tx: Changes, event: CronSet) -> None:
    """Make a cron, or put this one in the place of the one that has its name."""
    problems = _problems(tx, event.spec)
    if problems:
        raise Invalid(problems)
    spec = event.spec
    key = cron_key(spec.namespace, spec.name or "")
    known = tx.base.crons.get(key)
    if known is None:
        row = Cron(key, spec, event.owner, tx.now, next_at=_next(tx, spec, tx.now))
        tx.record("CronSet", cron=key, owner=event.owner)
    elif (known.spec, known.owner) == (spec, event.owner):
        return
    else:
        row = replace(known, spec=spec, owner=event.owner)
        if not known.paused and _times(known.spec) != _times(spec):
            row = replace(row, next_at=_next(tx, spec, tx.now))
        tx.record("CronChanged", cron=key, owner=event.owner)
    _put(tx, row)


def cron_key(namespace: str, name: str) -> str:
    return f"{namespace}/{name}"


def _problems(tx: Changes, spec: JobSpec) -> list[Problem]:
    problems = unknown_queue(tx, spec)
    if spec.name is None:
        problems.append(Problem("name", "is missing; a job with a schedule needs one"))
    timezone = schedule_of(spec).timezone
    if tx.base.counsel.zone(timezone) is None:
        problems.append(
            Problem(
                "schedule.timezone",
                f"is {timezone}, which is not a time zone here; write one like Europe/Zurich",
            )
        )
    return problems


def schedule_of(spec: JobSpec) -> Schedule:
    if spec.schedule is None:
        raise AssertionError("bug: a cron without a schedule")
    return spec.schedule


def _times(spec: JobSpec) -> tuple[str, str]:
    schedule = schedule_of(spec)
    return schedule.cron, schedule.timezone


def _zone(tx: Changes, spec: JobSpec) -> tzinfo:
    """A zone that this server does not know any more is read as UTC: late is better than never."""
    return tx.base.counsel.zone(schedule_of(spec).timezone) or UTC


def _next(tx: Changes, spec: JobSpec, after: Micros) -> Micros | None:
    return next_due(expression.parse(schedule_of(spec).cron), _zone(tx, spec), after)


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
    """What it has started goes on."""
    _cron(tx, event.cron)
    tx.crons[event.cron] = None
    tx.record("CronRemoved", cron=event.cron, by=event.by)


def cron_paused(tx: Changes, event: CronPaused) -> None:
    """What would have been due in a pause is not made up for."""
    row = _cron(tx, event.cron)
    if row.paused == event.paused:
        return
    next_at = None if event.paused else _next(tx, row.spec, tx.now)
    _put(tx, replace(row, paused=event.paused, next_at=next_at))
    tx.record("CronPaused" if event.paused else "CronResumed", cron=row.key, by=event.by)


def cron_due(tx: Changes, event: CronDue) -> None:
    row = tx.base.crons.get(event.cron)
    if row is None or row.next_at != event.at or tx.now < event.at:
        return
    schedule = expression.parse(schedule_of(row.spec).cron)
    at = last_due(schedule, _zone(tx, row.spec), event.at, tx.now)
    row = replace(row, next_at=_next(tx, row.spec, tx.now))
    _put(tx, row)
    unfinished = _unfinished(row)
    if unfinished and schedule_of(row.spec).concurrency is Concurrency.FORBID:
        tx.crons[row.key] = replace(
            row, last=CronOutcome(at, f"skipped: {unfinished[0].job} is unfinished")
        )
        tx.record("CronSkipped", cron=row.key, due_at=at, unfinished=unfinished[0].job)
        return
    _run(tx, row, at)


def cron_requested(tx: Changes, event: CronRequested) -> None:
    """Somebody wants a run now; when the next one is due does not change."""
    row = _cron(tx, event.cron)
    unfinished = _unfinished(row)
    if unfinished and schedule_of(row.spec).concurrency is Concurrency.FORBID:
        raise Conflict(
            f"cron {row.key} forbids two runs at a time, and {unfinished[0].job} is unfinished;"
            " cancel that, or wait for it"
        )
    tx.record("CronRequested", cron=row.key, by=event.by)
    why = _run(tx, row, tx.now)
    if why is not None:
        raise Conflict(f"cron {row.key} cannot run now: {why}")


def _unfinished(row: Cron) -> list[CronRun]:
    return [run for run in row.runs if run.phase is None]


def _run(tx: Changes, row: Cron, at: Micros) -> str | None:
    """Why it may not run; None if it may."""
    unfinished = _unfinished(row)
    if not unfinished or schedule_of(row.spec).concurrency is Concurrency.ALLOW:
        return _start(tx, row, at)
    # The old one has to be gone before the new one is made; `run_ended` makes it then.
    tx.crons[row.key] = replace(row, replacing_at=at)
    tx.record("CronReplacing", cron=row.key, due_at=at)
    for run in unfinished:
        cause = Cause(Kind.CANCEL, f"the next run of {row.key} took its place", by=row.key)
        drain(tx, tx.gang(run.job), cause)
    return None


def _start(tx: Changes, row: Cron, at: Micros) -> str | None:
    name = f"{row.spec.name}-{stamp(at, _zone(tx, row.spec))}"
    spec = replace(row.spec, name=name, schedule=None)
    job = job_id(tx.now, (tx.seq * _SPREAD) % (1 << NOISE_BITS))
    why = tx.base.counsel.refusal(spec, row.owner)
    if why is None:
        try:
            submitted(tx, Submitted(job, spec, row.owner))
        except CoreError as error:
            why = str(error)
    if why is not None:
        tx.crons[row.key] = replace(row, replacing_at=None, last=CronOutcome(at, f"denied: {why}"))
        tx.record("CronDenied", cron=row.key, due_at=at, owner=row.owner, why=why)
        return why
    tx.set_job(tx.gang(job), cron=row.key, due_at=at)
    tx.crons[row.key] = replace(
        row,
        replacing_at=None,
        last=CronOutcome(at, "started", job),
        runs=(*row.runs, CronRun(job, name, at)),
    )
    tx.record("CronFired", job, cron=row.key, due_at=at)
    return None


def run_ended(tx: Changes, job: Job) -> None:
    """A run is over: older ones are forgotten, and one that waits for its place may start."""
    key = job.cron or ""
    row = tx.crons[key] if key in tx.crons else tx.base.crons.get(key)
    if row is None:
        return
    runs = [replace(run, phase=job.verdict) if run.job == job.id else run for run in row.runs]
    kept = _kept(runs, schedule_of(row.spec))
    tx.forgotten += [run.job for run in runs if run not in kept]
    row = replace(row, runs=tuple(kept))
    tx.crons[key] = row
    if row.replacing_at is not None and not _unfinished(row):
        _start(tx, row, row.replacing_at)


def _kept(runs: list[CronRun], schedule: Schedule) -> list[CronRun]:
    """Those that are unfinished, and the last ones that ended well and that did not."""
    done = [run for run in runs if run.phase is Phase.DONE]
    other = [run for run in runs if run.phase is not None and run.phase is not Phase.DONE]
    gone = done[: max(0, len(done) - schedule.keep_done)]
    gone += other[: max(0, len(other) - schedule.keep_failed)]
    return [run for run in runs if run not in gone]
