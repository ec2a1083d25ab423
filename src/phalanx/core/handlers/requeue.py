"""What a job that goes back to waiting is given: its backoff, its timers, whom it avoids."""

from phalanx.core.changes import Changes
from phalanx.core.events import BackoffEnded, ScheduleTimedOut
from phalanx.core.gang import Gang
from phalanx.core.ids import split_task
from phalanx.core.model import Job
from phalanx.core.settings import CoreSettings
from phalanx.core.spec.job import JobSpec, Micros, Mode


def backoff(settings: CoreSettings, spec: JobSpec, setbacks: int) -> Micros:
    """How long to wait after the n-th setback: the first time not at all, then doubling."""
    if setbacks <= 1:
        return 0
    # The cap is reached long before the shift could grow large.
    return min(settings.backoff_cap, spec.backoff << min(setbacks - 2, 32))


def wait_again(tx: Changes, gang: Gang, setbacks: int) -> None:
    """The gang waits from now on, or from the end of its backoff."""
    delay = max(backoff(tx.base.settings, gang.job.spec, setbacks), _fence_delay(tx, gang))
    until = tx.now + delay
    since = gang.job.waiting_since
    # A waiting period that a lost reservation interrupted goes on after the backoff; its time-out
    # must still come.
    tx.set_job(gang, not_before=until, waiting_since=until if since is None else since + delay)
    if delay:
        tx.timer(until, BackoffEnded(gang.job.id))
    arm_schedule_timeout(tx, gang)
    tx.replan = True


def _fence_delay(tx: Changes, gang: Gang) -> Micros:
    """A fenced job whose task was lost with its worker waits until that must have stopped."""
    if not gang.job.spec.fence:
        return 0
    left = (tx.base.residues | tx.residues).values()
    mine = any(each is not None and split_task(each.task)[0] == gang.job.id for each in left)
    return tx.base.settings.fence_slack if mine else 0


def arm_schedule_timeout(tx: Changes, gang: Gang) -> None:
    since = waits_from(gang.job)
    if gang.job.spec.schedule_timeout is not None and since is not None:
        at = max(tx.now, since + gang.job.spec.schedule_timeout)
        tx.timer(at, ScheduleTimedOut(gang.job.id, since))


def waits_from(job: Job) -> Micros | None:
    """From when its patience counts: since it may start, or since it first held anything."""
    return job.held_since if job.spec.mode is Mode.NON_STRICT else job.waiting_since


def forgive(tx: Changes, gang: Gang) -> None:
    """An attempt that ran healthily for long ends here: what failed before it is forgotten."""
    job = gang.job
    healthy = job.healthy_since
    if healthy is not None and tx.now - healthy >= tx.base.settings.healthy_after:
        tx.set_job(gang, failures=0, avoid=())


def avoid(tx: Changes, gang: Gang, workers: list[str]) -> None:
    """These workers are tried last for this gang."""
    known = gang.job.avoid
    fresh = [worker for worker in dict.fromkeys(workers) if worker not in known]
    if fresh:
        tx.set_job(gang, avoid=(*known, *fresh)[-tx.base.settings.avoid_cap :])
