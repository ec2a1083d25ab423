"""Reports of plain runners about their tasks, and whether a report is about the current attempt.

A report names its attempt, in the id that its worker claimed or as `epoch`. Without one it is
accepted only if it cannot come from an earlier attempt. A late report changes nothing but the
residue of its attempt: an end frees it, and a heartbeat is answered with the request to stop.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from phalanx.core.causes import TaskEnding
from phalanx.core.errors import Conflict, CoreError, StaleEpoch, Unknown
from phalanx.core.events import Event, Gone, Stopped
from phalanx.core.ids import split_task, task_id
from phalanx.core.model import Residue, Task
from phalanx.core.node import AttemptKey, Node
from phalanx.core.records import Record, TaskFailed, TaskStopped, TaskStopTimedOut
from phalanx.core.states import State
from phalanx.engine.engine import Engine
from phalanx.engine.turn import Turn
from phalanx.store.protocol import Store

T = TypeVar("T")

#: States in which a plain runner can report on a task.
_ALIVE = (State.RUNNING, State.PREEMPTING)
#: Records are read this many at a time.
_PAGE = 1000


#: Raises unless the caller may report on this task, which is on this worker.
CheckPlaced = Callable[[str, str | None, Node | None], None]


class ReportedAttempt(NamedTuple):
    """The attempt that a report is about, as far as the report names it."""

    name: str  #: the id of a task, or of a job with one task, without an attempt
    epoch: int | None = None
    worker: str | None = None
    has_ended: bool = False  #: the report says that the process has ended
    check: CheckPlaced = lambda task, worker, node: None


class _NotLive(Exception):  # noqa: N818
    """The job is not among the unfinished ones."""


class _Ambiguous(Exception):  # noqa: N818
    """A process of an earlier attempt may be alive; the job's records have the answer."""

    def __init__(self, job: str, epoch: int) -> None:
        super().__init__()
        self.job = job
        self.epoch = epoch


class PlainReports:
    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._store = store

    async def apply(self, reported: ReportedAttempt, event: Callable[[Task], Event]) -> None:
        """Apply an event about the reported attempt. Raises as `take` does."""

        def work(turn: Turn, task: Task) -> None:
            turn.apply(event(task))

        await self.take(reported, work)

    async def stop_request(self, reported: ReportedAttempt) -> int | None:
        """Take a heartbeat; the attempt that is to stop, if its task must not run on.

        Raises as `take` does.
        """
        return await self.take(reported, _epoch_to_stop, lambda _, residue: residue.epoch)

    async def acknowledge_stop(self, reported: ReportedAttempt) -> None:
        """Note that a task has stopped as requested. Raises as `take` does."""

        def settled(turn: Turn, residue: Residue) -> None:
            turn.apply(Gone(residue.worker, residue.task, residue.epoch))

        def running(turn: Turn, task: Task) -> None:
            turn.apply(Stopped(task.id, task.epoch))

        await self.take(reported, running, settled)

    async def take(
        self,
        reported: ReportedAttempt,
        work: Callable[[Turn, Task], T],
        leftover: Callable[[Turn, Residue], T] | None = None,
    ) -> T:
        """Run a command on the task of the reported attempt, and renew its deadline.

        `leftover` runs instead if the task has settled, and only its process may be left. Raises
        Unknown, StaleEpoch or Conflict, besides what `work` and the check raise.
        """
        checked_epoch = 0
        while True:
            command = partial(_take, reported, work, leftover, checked_epoch)
            try:
                about, result = await self._engine.do(command)
            except _NotLive:
                raise await self._not_live(reported) from None
            except _Ambiguous as ambiguous:
                checked_epoch = ambiguous.epoch
                await self._check_records(reported, ambiguous)
                continue
            if isinstance(about, Residue):
                self._engine.hear_runner((about.task, about.epoch))
                return result
            self._engine.hear_runner((about.id, about.epoch))
            if about.worker is not None:
                self._engine.hear_worker(about.worker)
            return result

    async def _not_live(self, reported: ReportedAttempt) -> Exception:
        name, index = _split(reported.name)
        row = await self._store.job(name)
        if row is None or (index or 0) >= len(row[1]):
            return Unknown(f"there is no task {reported.name[:80]}")
        job, tasks = row
        reported.check(reported.name[:80], tasks[index or 0].worker, None)
        return Conflict(f"job {job.id} is {job.phase}; it accepts no more reports")

    async def _check_records(self, reported: ReportedAttempt, ambiguous: _Ambiguous) -> None:
        """Raise Conflict if a process of an earlier attempt may be alive."""
        after = 0
        while True:
            records = await self._store.records(job=ambiguous.job, after=after, limit=_PAGE)
            if any(_may_be_alive(record, ambiguous.epoch) for record in records):
                raise _which_attempt(reported.name)
            if len(records) < _PAGE:
                return
            after = records[-1].seq


def _take(
    reported: ReportedAttempt,
    work: Callable[[Turn, Task], T],
    leftover: Callable[[Turn, Residue], T] | None,
    checked_epoch: int,
    turn: Turn,
) -> tuple[Task | Residue, T]:
    if leftover is not None:
        residue = _residue_of(turn, reported)
        if residue is not None:
            return residue, leftover(turn, residue)
    try:
        task = _check_alive(_current_task(turn, reported, checked_epoch))
    except (CoreError, _NotLive, _Ambiguous):
        # The worker of an earlier attempt may report its end, if no more than that.
        if reported.has_ended:
            _free_residue(turn, reported)
        raise
    return task, work(turn, task)


def _epoch_to_stop(turn: Turn, task: Task) -> int | None:
    return task.epoch if task.state is State.PREEMPTING else None


def _residue_of(turn: Turn, reported: ReportedAttempt) -> Residue | None:
    """The residue of the attempt that a report names: its task has settled without it."""
    if reported.epoch is None:
        return None
    job, index = _split(reported.name)
    residue = turn.cluster.residues.get((task_id(job, index or 0), reported.epoch))
    if residue is not None:
        _check_placed(turn, reported, residue.task, residue.worker)
    return residue


def _check_alive(task: Task) -> Task:
    if task.state not in _ALIVE:
        raise Conflict(f"task {task.id} is {task.state}; it has no process to report on")
    return task


def _current_task(turn: Turn, reported: ReportedAttempt, checked_epoch: int) -> Task:
    """The task, if the report is about its current attempt. Raises if it is not, or may not be."""
    job, index = _split(reported.name)
    gang = turn.cluster.gangs.get(job)
    if gang is None:
        raise _NotLive
    if index is None and len(gang.tasks) > 1:
        raise Unknown(f"job {job} has {len(gang.tasks)} tasks; name one of them, like {job}.0")
    if (index or 0) >= len(gang.tasks):
        raise Unknown(f"there is no task {reported.name[:80]}; job {job} has {len(gang.tasks)}")
    task = gang.tasks[index or 0]
    if reported.epoch is not None and reported.epoch != task.epoch:
        raise StaleEpoch(
            f"task {task.id} is at attempt {task.epoch}; a report about attempt"
            f" {reported.epoch} is refused"
        )
    _check_placed(turn, reported, task.id, task.worker)
    if reported.epoch is not None:
        return task
    residues = turn.cluster.residues
    earlier = [residues[a] for e in range(1, task.epoch) if (a := (task.id, e)) in residues]
    if reported.worker is not None:
        if task.worker != reported.worker:
            holder = f"on worker {task.worker}" if task.worker is not None else str(task.state)
            raise Conflict(f"task {task.id} is {holder}, not on worker {reported.worker[:80]}")
        if any(residue.worker == reported.worker for residue in earlier):
            raise _which_attempt(reported.name)
    elif earlier:
        raise _which_attempt(reported.name)
    elif task.worker is None and task.epoch > max(1, checked_epoch):
        raise _Ambiguous(job, task.epoch)
    return task


def _check_placed(turn: Turn, reported: ReportedAttempt, task: str, worker: str | None) -> None:
    reported.check(task, worker, turn.cluster.nodes.get(worker or ""))


def _which_attempt(name: str) -> Conflict:
    return Conflict(
        f"a process of an earlier attempt of {name[:80]} may still be alive; name the attempt of"
        " this report with epoch="
    )


def _may_be_alive(record: Record, epoch: int) -> bool:
    """Whether an attempt before this one ended without a sign of its process."""
    match record:
        case TaskStopTimedOut(attempt=attempt):
            return attempt < epoch
        case TaskFailed(attempt=attempt, worker=None, how=TaskEnding.SILENT):
            return attempt < epoch
        case TaskStopped(attempt=attempt, worker=None, how=TaskEnding.SILENT):
            return attempt < epoch
        case _:
            return False


def _free_residue(turn: Turn, reported: ReportedAttempt) -> None:
    """Free the residue of an attempt whose process has ended after it settled."""
    cluster = turn.cluster
    job, index = _split(reported.name)
    task = task_id(job, index or 0)
    attempts: list[AttemptKey] = []
    if reported.epoch is not None:
        attempts = [(task, reported.epoch)]
    elif reported.worker is not None and reported.worker in cluster.nodes:
        attempts = [a for a in cluster.nodes[reported.worker].charges if a[0] == task]
    for attempt in attempts:
        residue = cluster.residues.get(attempt)
        if residue is not None:
            _check_placed(turn, reported, task, residue.worker)
            turn.apply(Gone(residue.worker, *attempt))


def _split(name: str) -> tuple[str, int | None]:
    """The job, and the number of the task if the name has one."""
    return split_task(name) if "." in name else (name, None)
