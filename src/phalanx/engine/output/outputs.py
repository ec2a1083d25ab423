"""The output of all jobs: which attempt may append, how far it reaches, and what is dropped.

Output bypasses the command queue; only the first chunk of an attempt asks the cluster which worker
the attempt was on. The leader is the only writer, so it knows how far each attempt reaches.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from weakref import WeakValueDictionary

from phalanx.core.errors import Conflict, Unknown
from phalanx.core.model import Task
from phalanx.core.records import TaskRecord, job_of
from phalanx.engine.engine import Engine
from phalanx.engine.errors import NotLeading
from phalanx.engine.output.chunk_writer import ChunkWriter
from phalanx.engine.output.job_output import AttemptOutput, JobOutput
from phalanx.engine.turn import Turn
from phalanx.store.protocol import OutputChunk, OutputTrim, Store

#: The largest chunk of one call.
CHUNK_BYTES = 256 * 1024
#: The latest attempts of a task whose output is kept.
KEPT_ATTEMPTS = 3
#: The highest offset: a chunk that begins there still ends within 63 bits.
MAX_OFFSET = 2**62

#: Jobs whose output is remembered without a reader.
_REMEMBERED_JOBS = 10_000
#: Records are read this many at a time.
_PAGE = 1000


class Outputs:
    def __init__(self, engine: Engine, store: Store, keep_bytes: int) -> None:
        self._engine = engine
        self._store = store
        self._keep_bytes = keep_bytes
        self._term = 0
        self._writer = ChunkWriter(store, self._note_kept)
        #: The output of every job that a reader holds, and of the latest ones.
        self._known: WeakValueDictionary[str, JobOutput] = WeakValueDictionary()
        self._recent: OrderedDict[str, JobOutput] = OrderedDict()

    async def of(self, job: str) -> JobOutput:
        """The output of a job. Raises NotLeading."""
        term = self._check_leading()
        output = self._known.get(job)
        if output is None:
            ends = await self._store.output_ends(job)
            if self._check_leading() != term:
                raise NotLeading
            # A concurrent call may have loaded the ends first, and more may have arrived since.
            output = self._known.get(job) or JobOutput(job, ends)
        self._known[job] = self._recent[job] = output
        self._recent.move_to_end(job)
        if len(self._recent) > _REMEMBERED_JOBS:
            self._recent.popitem(last=False)
        return output

    def is_current(self, output: JobOutput) -> bool:
        """Whether this server leads and the output is up to date."""
        return self._engine.is_leading and self._known.get(output.job) is output

    def observe(self, turn: Turn) -> None:
        for record in turn.records():
            output = self._known.get(job_of(record) or "")
            if output is not None:
                output.note_event()

    def memory(self, size_bytes: int) -> AbstractContextManager[None]:
        """Memory for a body of this size while it is read and written. Raises Unavailable."""
        return self._writer.memory(size_bytes)

    async def append(self, worker: str, chunk: OutputChunk) -> int:
        """Store the new part of a chunk; the offset of the next byte that the server needs.

        Raises Unknown or Conflict if the attempt did not run on this worker.
        """
        job, attempt = await self._attempt(worker, chunk)
        begins = max(chunk.offset, attempt.end)
        data = chunk.data[begins - chunk.offset :]
        if data:
            attempt.end = begins + len(data)
            own = OutputChunk(chunk.job, chunk.task, chunk.epoch, begins, data)
            await self._writer.write(own, tuple(self._trims(own, job)), job, attempt)
        elif attempt.last_write is not None and attempt.durable < attempt.end:
            # The chunk was sent twice, and the first one is being written.
            await asyncio.shield(attempt.last_write)
        self._check_leading()
        return attempt.durable

    def _check_leading(self) -> int:
        """The term that this server leads under. Raises NotLeading.

        Everything known from an earlier term is discarded: another leader may have written since.
        """
        term = self._engine.check_leading()
        if term != self._term:
            self._writer.begin_term(term)
            self._term = term
            self._known.clear()
            self._recent.clear()
        return term

    async def _attempt(self, worker: str, chunk: OutputChunk) -> tuple[JobOutput, AttemptOutput]:
        self._check_leading()
        job = self._known.get(chunk.job)
        if job is not None:
            attempt = job.attempts(chunk.task).get(chunk.epoch)
            if attempt is not None and attempt.worker == worker:
                return job, attempt
        # Checked before anything is remembered: the chunk may name a job that does not exist.
        await self._check_placed(worker, chunk)
        job = await self.of(chunk.job)
        newer = sum(number > chunk.epoch for number in job.attempts(chunk.task))
        if newer >= KEPT_ATTEMPTS:
            raise Conflict(
                f"task {chunk.job}.{chunk.task} has output of {newer} attempts after attempt"
                f" {chunk.epoch}; only that of the last {KEPT_ATTEMPTS} attempts is kept"
            )
        attempt = job.add(chunk.task, chunk.epoch, AttemptOutput())
        attempt.worker = worker
        return job, attempt

    async def _check_placed(self, worker: str, chunk: OutputChunk) -> None:
        """Raise Unknown or Conflict unless this attempt of the task was on this worker."""
        name = f"{chunk.job}.{chunk.task}"
        task = await self._task(chunk.job, chunk.task)
        if chunk.epoch > task.epoch:
            raise Conflict(
                f"task {name} is at attempt {task.epoch}; there is no attempt {chunk.epoch} yet"
            )
        if (task.epoch, task.worker) == (chunk.epoch, worker):
            return
        # The row of a requeued task no longer names its earlier workers; the records do.
        after = 0
        while True:
            records = await self._store.records(job=chunk.job, after=after, limit=_PAGE)
            for record in records:
                if isinstance(record, TaskRecord) and (
                    (record.task, record.attempt, record.worker)
                    == (chunk.task, chunk.epoch, worker)
                ):
                    return
            if len(records) < _PAGE:
                break
            after = records[-1].seq
        raise Unknown(
            f"attempt {chunk.epoch} of task {name} was not on worker {worker[:80]}; send the output"
            " of tasks that ran there, each with its attempt"
        )

    async def _task(self, job: str, index: int) -> Task:
        def live(turn: Turn) -> tuple[Task, ...] | None:
            gang = turn.cluster.gangs.get(job)
            return None if gang is None else tuple(gang.tasks[index : index + 1])

        tasks = await self._engine.do(live)
        if tasks is None:
            row = await self._store.job(job)
            tasks = () if row is None else row[1][index : index + 1]
        if not tasks:
            raise Unknown(f"there is no task {job[:80]}.{index}")
        return tasks[0]

    def _trims(self, chunk: OutputChunk, job: JobOutput) -> Iterator[OutputTrim]:
        """What is dropped for this chunk: the start of its attempt, and attempts that are old."""
        if chunk.end > self._keep_bytes:
            yield OutputTrim(chunk.job, chunk.task, chunk.epoch, chunk.end - self._keep_bytes)
        for number in sorted(job.attempts(chunk.task))[:-KEPT_ATTEMPTS]:
            job.forget(chunk.task, number)
            yield OutputTrim(chunk.job, chunk.task, number, 2 * MAX_OFFSET - 1)

    def _note_kept(self, size_bytes: int, dropped_bytes: int) -> None:
        self._engine.telemetry.output_kept(size_bytes, dropped_bytes)
