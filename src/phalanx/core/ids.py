"""Names of jobs and tasks. Time and noise come in as arguments, so that a run can be repeated."""

from phalanx.core.errors import Unknown
from phalanx.core.spec.job import Micros

#: Crockford's base 32 in lower case: sorts as its numbers do, and has no i, l, o or u.
_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME_DIGITS = 10
_NOISE_DIGITS = 10
_INDEX_DIGITS = 9
NOISE_BITS = 5 * _NOISE_DIGITS


def job_id(at: Micros, noise: int) -> str:
    """`j-`, the millisecond, and 50 random bits: later jobs sort after earlier ones."""
    return "j-" + _digits(at // 1000, _TIME_DIGITS) + _digits(noise, _NOISE_DIGITS)


def _digits(number: int, width: int) -> str:
    return "".join(_DIGITS[(number >> shift) & 31] for shift in range(5 * (width - 1), -1, -5))


def task_id(job: str, index: int) -> str:
    return f"{job}.{index}"


def split_task(task: str) -> tuple[str, int]:
    """The job and the index of a task's id."""
    job, _, index = task.rpartition(".")
    if not job or not index.isdecimal() or len(index) > _INDEX_DIGITS:
        raise Unknown(f"{task[:80]!r} is not a task; tasks are named JOB.INDEX")
    return job, int(index)
