"""Why a gang was stopped or a job ended, and how a task came to its end: typed, and in words.

A cause completes the sentences "stopping all tasks: …" and "job failed: …". All of these texts are
written here, so that events, job views and errors use the same words. A text that names another job
comes with the name as a field of its own, so that it can be shown without the name.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from phalanx.core.text import listed
from phalanx.core.time_units import MINUTE, SECOND, Micros


class CauseKind(StrEnum):
    """What kinds of causes there are, by rank: while a gang is stopping, a higher cause replaces a
    lower one."""

    EVICTION = "eviction"  #: a preemptor needs the capacity, or an operator asked for it
    REGROUP = "regroup"  #: below its minimum for too long; the gang is placed again as a whole
    FAILURE = "failure"  #: a task failed
    OUT_OF_MEMORY = "out-of-memory"  #: a task was killed because memory was short
    ROLLBACK = "rollback"  #: a watched value was abnormal; the gang restarts from before it
    ABNORMAL_VALUE = "abnormal-value"  #: a watched value was abnormal; the job fails
    TIME_LIMIT = "time-limit"  #: the attempt ran longer than its time limit
    DEPENDENCY = "dependency"  #: a job that this job depends on did not succeed
    SCHEDULE_TIMEOUT = "schedule-timeout"  #: the job was pending longer than its schedule timeout
    CANCEL = "cancel"  #: the job was cancelled
    COMPLETE = "complete"  #: the work is done; tasks that still run are not needed


#: How many tasks a cause lists.
_MOST_TASKS = 8

_RANKS = {kind: rank for rank, kind in enumerate(CauseKind)}


class Cause(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    kind: CauseKind
    what: str  #: the text, without a full stop
    task: int | None = None  #: index of the task whose failure it was
    by: str | None = None  #: the user that asked for it; empty if it is not known
    job: str | None = None  #: the other job (namespace/name) that the text names

    def __str__(self) -> str:
        return self.what

    @property
    def is_eviction(self) -> bool:
        """Whether a job or an operator asked for the stop: a worker that stops a task by itself
        evicts nothing."""
        is_requested = self.job is not None or self.by is not None
        return self.kind is CauseKind.EVICTION and is_requested

    def outranks(self, other: "Cause") -> bool:
        return _RANKS[self.kind] > _RANKS[other.kind]


def complete() -> Cause:
    return Cause(CauseKind.COMPLETE, "job complete")


def elements_ended(ended: Mapping[str, int], elements: int) -> Cause:
    """An array has ended, and not all of its elements succeeded; `ended` counts those by how they
    ended: `1 of 20 elements failed, 2 never ran`."""
    (how, count), *others = ended.items()
    parts = [f"{count} of {elements} elements {how}", *(f"{n} {each}" for each, n in others)]
    return Cause(CauseKind.FAILURE, ", ".join(parts))


def cancelled(by: str) -> Cause:
    return Cause(CauseKind.CANCEL, f"cancelled{_by(by)}", by=by or None)


def replaced_by_next_run(cron: str) -> Cause:
    return Cause(CauseKind.CANCEL, f"replaced by the next run of cron {cron}", by=cron)


def evicted(why: str, by: str) -> Cause:
    """An operator evicts the gang."""
    return Cause(CauseKind.EVICTION, why, by=by)


def preempted(roles: Sequence[str], job: str, *, higher_priority: bool) -> Cause:
    """A job of the same queue evicts tasks of these roles."""
    kind = "higher-priority job" if higher_priority else "job"
    return Cause(CauseKind.EVICTION, f"{_tasks(roles)} preempted by {kind} {job}", job=job)


def reclaimed(roles: Sequence[str], job: str, queue: str) -> Cause:
    """A job of another queue evicts tasks of these roles."""
    text = f"{_tasks(roles)} reclaimed by job {job} of queue {queue}"
    return Cause(CauseKind.EVICTION, text, job=job)


def moved(nodes: Sequence[str], job: str, lost: float) -> Cause:
    """The gang is moved to these nodes, so that a job fits."""
    text = f"moved to {listed(nodes, _MOST_TASKS)} so that {job} can start"
    if round(lost):
        unit = "GPU-second" if round(lost) == 1 else "GPU-seconds"
        text += f"; {round(lost)} {unit} since the last checkpoint lost"
    return Cause(CauseKind.EVICTION, text, job=job)


def _tasks(roles: Sequence[str]) -> str:
    return f"task{'s' if len(roles) > 1 else ''} {listed(roles, _MOST_TASKS)}"


def shrunk(job: str) -> Cause:
    return Cause(CauseKind.EVICTION, f"shrunk for job {job}", job=job)


def failed(task: int, ending: str) -> Cause:
    return Cause(CauseKind.FAILURE, f"task {task} {ending}", task=task)


def out_of_memory(task: int, ending: str) -> Cause:
    return Cause(CauseKind.OUT_OF_MEMORY, f"task {task} {ending}", task=task)


def stopped_by_worker(task: int, ending: str) -> Cause:
    return Cause(CauseKind.EVICTION, f"task {task} {ending}", task=task)


def abnormal_value(task: int, what: str, *, is_final: bool) -> Cause:
    kind = CauseKind.ABNORMAL_VALUE if is_final else CauseKind.ROLLBACK
    return Cause(kind, what, task=task)


def partly_complete(cause: Cause, done: Sequence[int]) -> Cause:
    """The gang stopped for this cause when some tasks were done, and must not repeat them."""
    numbers = listed([str(task) for task in done], _MOST_TASKS)
    finished = f"task{'s' if len(done) > 1 else ''} {numbers} had finished"
    what = str(cause) if cause.task is not None else f"the gang was stopped ({cause})"
    text = f"{finished} and {what}: on_partial_completion is fail"
    return replace(cause, what=text)


def not_retried(cause: Cause, refusals: Sequence[tuple[str, int]]) -> Cause:
    """Workers refused to start the job, each in an attempt; see `Job.start_refusals`."""
    attempts = len({attempt for _, attempt in refusals})
    workers = [worker for worker in dict.fromkeys(worker for worker, _ in refusals) if worker]
    where = f" on {listed(workers, _MOST_TASKS)}" if workers else ""
    tries = f"{attempts} attempt{'s' if attempts > 1 else ''}{where}"
    return replace(cause, what=f"{cause}; gave up after {tries}")


def inputs_unavailable(why: str) -> Cause:
    return Cause(CauseKind.FAILURE, why)


def below_minimum(after: Micros) -> Cause:
    return Cause(CauseKind.REGROUP, f"below its minimum for {after / MINUTE:g} minutes")


def unclaimed(tasks: Sequence[int], why: str) -> Cause:
    """Plain workers did not claim these tasks of a gang that has started without them."""
    plural = "s" if len(tasks) > 1 else ""
    numbers = listed([str(task) for task in tasks], _MOST_TASKS)
    return Cause(CauseKind.REGROUP, f"task{plural} {numbers} did not start: {why}")


def time_limit_exceeded(limit: Micros) -> Cause:
    return Cause(CauseKind.TIME_LIMIT, f"exceeded its time limit of {limit / SECOND:g} s")


def schedule_timed_out(timeout: Micros, *, is_gathering: bool) -> Cause:
    since = " of its first gathered place" if is_gathering else ""
    return Cause(CauseKind.SCHEDULE_TIMEOUT, f"not started within {timeout / SECOND:g} s{since}")


def dependency_ended(job: str, phase: str) -> Cause:
    return Cause(CauseKind.DEPENDENCY, f"dependency {job} {_ended(phase)}", by=job)


def not_needed(job: str) -> Cause:
    """The job was to run only if another one was not done, and that one is done."""
    return Cause(CauseKind.CANCEL, f"not needed: job {job} is done")


def group_member_ended(job: str, phase: str) -> Cause:
    """A member of the group ended before the first start, so the others can never start."""
    kind = CauseKind.SCHEDULE_TIMEOUT if phase == "timed-out" else CauseKind.DEPENDENCY
    return Cause(kind, f"group member {job} {_ended(phase)}", job=job)


def _ended(phase: str) -> str:
    return {"cancelled": "was cancelled", "timed-out": "timed out"}.get(phase, phase)


def _by(name: str) -> str:
    return f" by {name}" if name else ""


def without_job(text: str, job: str, instead: str) -> str:
    """The text of a cause that names this job, with other words in place of the name."""
    return text.replace(job, instead)


# Reasons for evictions and lost reservations


def requeued(by: str) -> str:
    return f"requeued{_by(by)}"


def worker_draining(worker: str, why: str) -> str:
    return f"worker {worker} is draining: {why}"


def worker_shutting_down(worker: str) -> str:
    return f"worker {worker} is shutting down"


def stopped_alone(task: int, worker: str) -> str:
    return f"worker {worker} stopped task {task} while no server answered"


def worker_lost(worker: str) -> str:
    return f"worker {worker} was lost"


def not_acknowledged(workers: Sequence[str]) -> str:
    by = f" by {', '.join(workers)}" if workers else ""
    return f"not acknowledged in time{by}"


def not_claimed(workers: Sequence[str]) -> str:
    return f"not claimed in time by {', '.join(workers)}"


# Endings of tasks


class TaskEnding(StrEnum):
    """How the process of a task ended."""

    EXITED = "exited"  #: it exited by itself or was killed by a signal
    OUT_OF_MEMORY = "out-of-memory"  #: the kernel killed it, because memory was short
    STOPPED = "stopped"  #: its worker stopped it
    SPAWN_FAILED = "spawn-failed"  #: its worker could not start it
    START_TIMED_OUT = "start-timed-out"  #: its worker did not report the start in time
    STALLED = "stalled"  #: it reported no progress for longer than `stall_after`
    SILENT = "silent"  #: a runner of the plain protocol sent no heartbeat in time
    VANISHED = "vanished"  #: its worker no longer has it
    WORKER_LOST = "worker-lost"  #: its worker was declared lost


#: By ending: what is said of the task, and the word before its worker.
_ENDINGS = {
    TaskEnding.EXITED: ("exited", "on"),
    TaskEnding.OUT_OF_MEMORY: ("was killed for memory", "on"),
    TaskEnding.STOPPED: ("was stopped", "by"),
    TaskEnding.SPAWN_FAILED: ("could not be started", "on"),
    TaskEnding.START_TIMED_OUT: ("did not start in time", "on"),
    TaskEnding.STALLED: ("made no progress", "on"),
    TaskEnding.SILENT: ("sent no heartbeat in time", "from"),
    TaskEnding.VANISHED: ("vanished", "from"),
    TaskEnding.WORKER_LOST: ("was lost", "with"),
}


def ending_text(
    ending: TaskEnding, worker: str | None, *, exact: str | None = None, message: str = ""
) -> str:
    """The rest of a sentence that begins with a task, like "was killed by SIGKILL on w-1".

    `exact` says more than the ending alone ("exited with code 1"); a message is put after a colon.
    """
    usual, preposition = _ENDINGS[ending]
    text = exact or usual
    if worker is not None:
        text = f"{text} {preposition} {worker}"
    return f"{text}: {message}" if message else text


def memory_use(used: int, asked: int | None) -> str:
    """`used 2.0 GiB, asked for 2 GiB`."""
    return f"used {_size(used)}, asked for {_size(asked) if asked else 'none'}"


def _size(size_bytes: int) -> str:
    for unit, size in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes} bytes"


#: Signals by their number on Linux, where agents run.
_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    16: "SIGSTKFLT",
    24: "SIGXCPU",
    25: "SIGXFSZ",
    26: "SIGVTALRM",
    27: "SIGPROF",
    30: "SIGPWR",
    31: "SIGSYS",
}


def signal_name(number: int) -> str:
    return _SIGNALS.get(number, f"signal {number}")
