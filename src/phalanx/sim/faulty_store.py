"""A store that fails like a real one: slowly, with an error, or with an unknown outcome.

It also checks that no leader writes to a finished job again.
"""

import asyncio
from random import Random

from phalanx.core.ids import element_id
from phalanx.core.model import Job, Rows, Task
from phalanx.core.records import ElementsRetryRequested
from phalanx.core.spec.arrays import parsed_indices
from phalanx.core.states import TERMINAL, UNPLACED, State
from phalanx.sim.invariants import SimulationInvariant, violated
from phalanx.store.memory import MemoryDatabase, MemoryStore
from phalanx.store.protocol import Batch, CommitFailed, OutcomeUnknown
from phalanx.store.rows import Clock


class FinishedRows:
    """The rows of finished jobs and tasks, as they were when they finished."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[tuple[str, int], Task] = {}

    def check(self, batch: Batch) -> None:
        """Raise InvariantViolated if the batch changes a finished row."""
        for record in batch.records:
            if isinstance(record, ElementsRetryRequested):
                self._forget(record)
        for task in batch.tasks:
            key = (task.job, task.index)
            kept = self._tasks.get(key)
            if kept is not None and kept != task and not self._is_repeated(kept, task):
                raise violated(SimulationInvariant.FINISHED_JOBS_DO_NOT_CHANGE, f"task {task.id}")
            if task.state in TERMINAL:
                self._tasks[key] = task
            else:
                self._tasks.pop(key, None)
        for job in batch.jobs:
            if self._jobs.setdefault(job.id, job) != job:
                raise violated(SimulationInvariant.FINISHED_JOBS_DO_NOT_CHANGE, f"job {job.id}")
            if job.is_live:
                del self._jobs[job.id]

    def _forget(self, retry: ElementsRetryRequested) -> None:
        """An array that is retried begins again, and so do these elements."""
        elements = {element_id(retry.job, index) for index in parsed_indices(retry.indices)}
        for job in (retry.job, *elements):
            self._jobs.pop(job, None)
        for key in [key for key in self._tasks if key[0] in elements]:
            del self._tasks[key]

    def _is_repeated(self, kept: Task, task: Task) -> bool:
        """Whether a done task was requeued with its gang, before the job ended."""
        is_requeued = kept.state is State.DONE and task.state in UNPLACED
        return is_requeued and task.job not in self._jobs


class SharedDatabase:
    """The database of all servers of a simulation, with its clock and its fault rate."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.content = MemoryDatabase()
        self.finished = FinishedRows()
        self.fault_rate = 0.0


class FaultyStore(MemoryStore):
    """One server's connection to the database."""

    def __init__(self, random: Random, database: SharedDatabase) -> None:
        super().__init__(clock=database.clock, database=database.content)
        self._random = random
        self._database = database
        #: Cleared while the server is frozen: then every call waits.
        self.awake = asyncio.Event()
        self.awake.set()

    async def commit(self, term: int, batch: Batch) -> None:
        await self._delay()
        has_fault = self._random.random() < self._database.fault_rate
        is_before = self._random.random() < 0.5
        if has_fault and is_before:
            if self._random.random() < 0.5:
                raise CommitFailed("simulated: the commit failed")
            raise OutcomeUnknown("simulated: connection lost before the commit")
        await super().commit(term, batch)
        self._database.finished.check(batch)
        if has_fault:
            await self._delay()
            raise OutcomeUnknown("simulated: connection lost after the commit")
        await self._delay()

    async def has_batch(self, batch_id: str) -> bool:
        await self._delay()
        return await super().has_batch(batch_id)

    async def renew(self, term: int, lease: int) -> None:
        await self._delay()
        await super().renew(term, lease)

    async def lead(self, holder: str, url: str, lease: int) -> int | None:
        await self._delay()
        return await super().lead(holder, url, lease)

    async def load(self, term: int) -> Rows:
        await self._delay()
        return await super().load(term)

    async def _delay(self) -> None:
        is_slow = self._random.random() < self._database.fault_rate
        await asyncio.sleep(self._random.uniform(0, 3.0 if is_slow else 0.01))
        await self.awake.wait()
