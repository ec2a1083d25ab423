"""A store that fails as real ones do: late, with an error, or without saying what became of it.

It also checks what no leader may do: rewrite what is finished.
"""

import asyncio
from random import Random

from phalanx.core.model import Job, Rows, Task
from phalanx.core.states import TERMINAL
from phalanx.sim.invariants import SimulationInvariant, violated
from phalanx.store.memory import MemoryDatabase, MemoryStore
from phalanx.store.protocol import Batch, CommitFailed, OutcomeUnknown
from phalanx.store.rows import Clock


class Finished:
    """The rows that have come to their end, as they were then."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[tuple[str, int], Task] = {}

    def check(self, batch: Batch) -> None:
        for job in batch.jobs:
            if self._jobs.setdefault(job.id, job) != job:
                raise violated(SimulationInvariant.FINISHED_JOBS_DO_NOT_CHANGE, f"job {job.id}")
            if job.is_live:
                del self._jobs[job.id]
        for task in batch.tasks:
            key = (task.job, task.index)
            if self._tasks.setdefault(key, task) != task:
                raise violated(SimulationInvariant.FINISHED_JOBS_DO_NOT_CHANGE, f"task {task.id}")
            if task.state not in TERMINAL:
                del self._tasks[key]


class Faults:
    """What all servers of one simulation share: the database, the clock, and bad luck."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.database = MemoryDatabase()
        self.finished = Finished()
        self.rate = 0.0


class FaultyStore(MemoryStore):
    """One server's way to the database."""

    def __init__(self, random: Random, faults: Faults) -> None:
        super().__init__(clock=faults.clock, database=faults.database)
        self._random = random
        self._faults = faults
        #: Cleared while the server is frozen: nothing of it gets through, in or out.
        self.awake = asyncio.Event()
        self.awake.set()

    async def commit(self, term: int, batch: Batch) -> None:
        await self._delay()
        fault = self._random.random() < self._faults.rate
        before = self._random.random() < 0.5
        if fault and before:
            if self._random.random() < 0.5:
                raise CommitFailed("a fault before the commit")
            raise OutcomeUnknown("a fault, and the commit did not happen")
        await super().commit(term, batch)
        self._faults.finished.check(batch)
        if fault:
            await self._delay()
            raise OutcomeUnknown("a fault, and the commit did happen")
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
        slow = self._random.random() < self._faults.rate
        await asyncio.sleep(self._random.uniform(0, 3.0 if slow else 0.01))
        await self.awake.wait()
