"""Ids of jobs and tasks. Random bits are arguments, so that a run can be repeated from its seed.

An id contains no time: jobs are ordered by (created_at, id). Two random ids can be equal, so a new
id is checked against the unfinished jobs and against the store.
"""

from phalanx.core.errors import Unknown

#: Crockford's base 32 in lower case: no i, l, o or u, which people mistake for other characters.
DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_JOB_DIGITS = 8
_INDEX_DIGITS = 9
_EPOCH_DIGITS = 18
#: How many random bits `job_id` takes.
JOB_ID_BITS = 5 * _JOB_DIGITS

_WORD = (1 << 64) - 1


def job_id(bits: int) -> str:
    """`j-` and the lowest 40 bits in base 32, such as `j-7kq2m4xd`."""
    digits = (DIGITS[(bits >> shift) & 31] for shift in range(JOB_ID_BITS - 5, -1, -5))
    return "j-" + "".join(digits)


def scrambled(*numbers: int) -> int:
    """64 bits that look random and depend on all of the numbers, always in the same way.

    For ids that have to follow from an event alone. It is the finalizer of SplitMix64.
    """
    bits = 0
    for number in numbers:
        bits = (bits + number + 0x9E3779B97F4A7C15) & _WORD
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _WORD
        bits ^= bits >> 31
    return bits


def element_id(array: str, index: int) -> str:
    """The job of an element of an array: `j-7kq2m4xd[7]`."""
    return f"{array}[{index}]"


def split_element(job: str) -> tuple[str, str] | None:
    """The array and the text in brackets of `j-7kq2m4xd[7]` or `j-7kq2m4xd[3-5]`; else None."""
    if not job.endswith("]"):
        return None
    array, bracket, indices = job[:-1].partition("[")
    return (array, indices) if bracket else None


def task_id(job: str, index: int) -> str:
    return f"{job}.{index}"


def claim_id(task: str, epoch: int) -> str:
    """The id under which a task is claimed: `j-7kq2m4xd.0@2` is attempt 2 of `j-7kq2m4xd.0`."""
    return f"{task}@{epoch}"


def split_claim(name: str) -> tuple[str, int | None]:
    """The task and the epoch of a claim's id; the epoch of any other id is None. Raises Unknown."""
    task, at, epoch = name.partition("@")
    if not at:
        return name, None
    if not epoch.isdecimal() or len(epoch) > _EPOCH_DIGITS:
        raise Unknown(f"{name[:80]!r} is not the id of a claim, like j-7kq2m4xd.0@2")
    return task, int(epoch)


def split_task(task: str) -> tuple[str, int]:
    """The job and the index of a task's id. Raises Unknown."""
    job, _, index = task.rpartition(".")
    if not job or not index.isdecimal() or len(index) > _INDEX_DIGITS:
        raise Unknown(f"{task[:80]!r} is not a task id; a task id is JOB.INDEX, like j-7kq2m4xd.0")
    return job, int(index)
