"""What plain runners report about their tasks, and whether they may: which attempt do they mean?

A report names its epoch. Without one it counts only if it cannot come from an earlier attempt: the
caller holds the task and left no other behind, or nothing of any earlier attempt can be alive.
A late report changes nothing, but it tells that nothing is left where its attempt was.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from phalanx.core.causes import TaskEnding
from phalanx.core.errors import Conflict, StaleEpoch, Unknown
from phalanx.core.events import Event, Gone
from phalanx.core.ids import split_task, task_id
from phalanx.core.model import Task
from phalanx.core.node import AttemptKey
from phalanx.core.records import Record, TaskFailed, TaskStopped, TaskStopTimedOut
from phalanx.core.states import State
from phalanx.engine.engine import Engine
from phalanx.engine.turn import Turn
from phalanx.store.protocol import Store

T = TypeVar("T")

#: States in which a plain runner has something to say.
_ALIVE = (State.RUNNING, State.PREEMPTING)
#: A story is read this much at a time.
_PAGE = 1000


class Speaker(NamedTuple):
    """Who says something about what."""

    name: str  #: a task, or a job of one task
    epoch: int | None = None
    worker: str | None = None
    is_over: bool = False  #: it says that its process is no more


class _NotLive(Exception):  # noqa: N818
    """The job is not among the unfinished."""


class _Unclear(Exception):  # noqa: N818
    """An earlier attempt without a worker may be alive; only the job's story tells."""

    def __init__(self, job: str, epoch: int) -> None:
        super().__init__()
        self.job = job
        self.epoch = epoch


class PlainReports:
    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._store = store

    async def apply(self, speaker: Speaker, event: Callable[[Task], Event]) -> None:
        def work(turn: Turn, task: Task) -> None:
            turn.apply(event(task))

        await self.take(speaker, work)

    async def take(self, speaker: Speaker, work: Callable[[Turn, Task], T]) -> T:
        """Do this in a turn, with the attempt that the speaker means; it is heard by that.

        Raises Unknown, StaleEpoch or Conflict besides what `work` raises.
        """
        cleared = 0
        while True:
            try:
                task, result = await self._engine.do(partial(_take, speaker, work, cleared))
            except _NotLive:
                raise await self._ended(speaker) from None
            except _Unclear as unclear:
                cleared = unclear.epoch
                await self._check_story(speaker, unclear)
                continue
            self._engine.hear_runner((task.id, task.epoch))
            if task.worker is not None:
                self._engine.hear_worker(task.worker)
            return result

    async def _ended(self, speaker: Speaker) -> Exception:
        found = await self._store.job(_named(speaker.name)[0])
        if found is None:
            return Unknown(f"there is no task {speaker.name[:80]}")
        job = found[0]
        return Conflict(f"job {job.id} is {job.phase}; nothing more is to be said about it")

    async def _check_story(self, speaker: Speaker, unclear: _Unclear) -> None:
        after = 0
        while True:
            records = await self._store.records(job=unclear.job, after=after, limit=_PAGE)
            if any(_left_alive(record, unclear.epoch) for record in records):
                raise _unclear(speaker.name)
            if len(records) < _PAGE:
                return
            after = records[-1].seq


def _take(
    speaker: Speaker, work: Callable[[Turn, Task], T], cleared: int, turn: Turn
) -> tuple[Task, T]:
    try:
        task = _alive(_meant(turn, speaker, cleared))
    except (Conflict, _NotLive):
        if speaker.is_over:
            _free_residue(turn, speaker)
        raise
    return task, work(turn, task)


def _alive(task: Task) -> Task:
    if task.state not in _ALIVE:
        raise Conflict(f"task {task.id} is {task.state}; it has no process to speak of")
    return task


def _meant(turn: Turn, speaker: Speaker, cleared: int) -> Task:
    """The present attempt, if that is the one that is spoken of."""
    job, index = _named(speaker.name)
    gang = turn.cluster.gangs.get(job)
    if gang is None:
        raise _NotLive
    if index is None and len(gang.tasks) > 1:
        raise Unknown(f"job {job} has {len(gang.tasks)} tasks; name one of them, like {job}.0")
    if (index or 0) >= len(gang.tasks):
        raise Unknown(f"job {job} has {len(gang.tasks)} tasks, so there is no {speaker.name}")
    task = gang.tasks[index or 0]
    if speaker.epoch is not None:
        if speaker.epoch != task.epoch:
            raise StaleEpoch(
                f"task {task.id} is at epoch {task.epoch}; a message for epoch {speaker.epoch}"
                " is too late"
            )
        return task
    residues = turn.cluster.residues
    earlier = [residues[a] for e in range(1, task.epoch) if (a := (task.id, e)) in residues]
    if speaker.worker is not None:
        if task.worker != speaker.worker:
            holder = f"held by {task.worker}" if task.worker is not None else str(task.state)
            raise Conflict(f"task {task.id} is {holder}, not held by {speaker.worker}")
        if any(residue.worker == speaker.worker for residue in earlier):
            raise _unclear(speaker.name)
    elif earlier:
        raise _unclear(speaker.name)
    elif task.worker is None and task.epoch > max(1, cleared):
        raise _Unclear(job, task.epoch)
    return task


def _unclear(name: str) -> Conflict:
    return Conflict(f"an earlier attempt of {name} may still be alive; say which one with epoch=")


def _left_alive(record: Record, epoch: int) -> bool:
    """Whether this tells of an attempt, before that epoch, whose end nobody has seen."""
    match record:
        case TaskStopTimedOut(attempt=attempt):
            return attempt < epoch
        case TaskFailed(attempt=attempt, worker=None, how=TaskEnding.SILENT):
            return attempt < epoch
        case TaskStopped(attempt=attempt, worker=None, how=TaskEnding.SILENT):
            return attempt < epoch
        case _:
            return False


def _free_residue(turn: Turn, speaker: Speaker) -> None:
    """Nothing is left of an attempt that has settled without its worker."""
    cluster = turn.cluster
    job, index = _named(speaker.name)
    task = task_id(job, index or 0)
    attempts: list[AttemptKey] = []
    if speaker.epoch is not None:
        attempts = [(task, speaker.epoch)]
    elif speaker.worker is not None and speaker.worker in cluster.nodes:
        attempts = [a for a in cluster.nodes[speaker.worker].charges if a[0] == task]
    for attempt in attempts:
        residue = cluster.residues.get(attempt)
        if residue is not None:
            turn.apply(Gone(residue.worker, *attempt))


def _named(name: str) -> tuple[str, int | None]:
    """The job, and the index of the task if there is one."""
    return split_task(name) if "." in name else (name, None)
