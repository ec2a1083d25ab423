"""Back to pending: the count of failures, the backoff, the timers, and the workers that the next
attempt avoids."""

from msgspec.structs import replace

from phalanx.core.changes import Changes
from phalanx.core.events import BackoffEnded, ScheduleTimedOut
from phalanx.core.gang import Gang
from phalanx.core.ids import split_task
from phalanx.core.model import AttemptState, PendingState
from phalanx.core.records import RetryDelayed
from phalanx.core.settings import CoreSettings
from phalanx.core.spec.job import JobSpec
from phalanx.core.time_units import SECOND, Micros

#: How many refusals to start it a job remembers.
_MOST_REFUSALS = 8


def backoff(settings: CoreSettings, spec: JobSpec, setbacks: int) -> Micros:
    """The delay after the n-th setback: none after the first, then doubling up to a cap."""
    if setbacks <= 1:
        return 0
    # The cap is reached long before the shift could grow large.
    return min(settings.backoff_cap, spec.backoff << min(setbacks - 2, 32))


def requeue(tx: Changes, gang: Gang, setbacks: int, waited: Micros = 0) -> None:
    """Make the gang pending from now on, or from the end of its backoff. `waited` is how long it
    was pending before the attempt that has ended."""
    delay = max(backoff(tx.base.settings, gang.job.spec, setbacks), _fence_delay(tx, gang))
    until = tx.now + delay
    pending = gang.job.pending or PendingState(waited=waited)
    # After a lost reservation the time already spent pending counts, but the backoff does not:
    # the schedule timeout must still come.
    since = until if pending.since is None else pending.since + delay
    tx.set_job(gang, pending=replace(pending, not_before=until, since=since))
    if delay:
        tx.timer(until, BackoffEnded(gang.job.id))
        job = gang.job
        tx.record(RetryDelayed(job.id, job.epoch, delay / SECOND, job.failures))
    arm_timeouts(tx, gang)
    tx.replan = True


def _fence_delay(tx: Changes, gang: Gang) -> Micros:
    """The delay after which a task of a fenced job that was lost with its worker is surely dead."""
    if not gang.job.spec.fence:
        return 0
    residues = (tx.base.residues | tx.residues).values()
    has_residue = any(
        residue is not None and split_task(residue.task)[0] == gang.job.id for residue in residues
    )
    return tx.base.settings.fence_slack if has_residue else 0


def arm_timeouts(tx: Changes, gang: Gang) -> None:
    """Set the timers of a pending job's timeouts."""
    for timeout in gang.job.timeouts:
        tx.timer(max(tx.now, timeout.at), ScheduleTimedOut(gang.job.id, timeout.at))


def forgive(tx: Changes, gang: Gang) -> None:
    """Clear the failures of a job whose attempt has been healthy for long enough."""
    attempt = gang.job.attempt
    healthy = None if attempt is None else attempt.healthy_since
    if healthy is not None and tx.now - healthy >= tx.base.settings.healthy_after:
        tx.set_job(gang, failures=0, avoid=(), start_refusals=())


def count_failure(tx: Changes, gang: Gang) -> bool:
    """Count a failure against the job, unless a recent shrink explains it. Whether it counts."""
    forgive(tx, gang)
    job, settings = gang.job, tx.base.settings
    attempt = job.attempt or AttemptState()
    shrunk = attempt.shrunk_at
    counted = shrunk is None or tx.now - shrunk > job.spec.grace + settings.shrink_slack
    attempt = replace(attempt, healthy_since=None)
    tx.set_job(gang, failures=job.failures + counted, attempt=attempt)
    return counted


def note_refusal(tx: Changes, gang: Gang, worker: str) -> None:
    """Note that a worker cannot start a task of the gang, and could not at another try."""
    refusal = (worker, gang.job.epoch)
    earlier = gang.job.start_refusals
    if refusal not in earlier and len(earlier) < _MOST_REFUSALS:
        tx.set_job(gang, start_refusals=(*earlier, refusal))


def avoid(tx: Changes, gang: Gang, workers: list[str]) -> None:
    """Try these workers last for this gang from now on."""
    avoided = gang.job.avoid
    fresh = [worker for worker in dict.fromkeys(workers) if worker not in avoided]
    if fresh:
        tx.set_job(gang, avoid=(*avoided, *fresh)[-tx.base.settings.avoid_cap :])
