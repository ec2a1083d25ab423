"""Writes chunks of output to the store in batches, with pauses that leave the disk to commits."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from phalanx.engine.errors import NotLeading, Unavailable
from phalanx.engine.output.job_output import AttemptOutput, JobOutput
from phalanx.store.protocol import Deposed, OutputChunk, OutputTrim, Store

#: Memory for the bodies of all calls together.
_MEMORY_BYTES = 64 * 1024 * 1024
#: The largest batch: a commit queued behind it is not held up for long.
_BATCH_BYTES = 512 * 1024
#: The longest pause between two batches.
_PAUSE_S = 0.25


class _Pending(NamedTuple):
    chunk: OutputChunk
    trims: tuple[OutputTrim, ...]
    job: JobOutput
    attempt: AttemptOutput
    done: asyncio.Future[None]


class ChunkWriter:
    """`on_kept` is called with the bytes written and the bytes dropped for them."""

    def __init__(self, store: Store, on_kept: Callable[[int, int], None]) -> None:
        self._store = store
        self._on_kept = on_kept
        self._term = 0
        self._pending: deque[_Pending] = deque()
        self._running: asyncio.Task[None] | None = None
        self._held_bytes = 0

    @contextmanager
    def memory(self, size_bytes: int) -> Iterator[None]:
        """Memory for a body of this size. Raises Unavailable if too much is queued."""
        if self._held_bytes + size_bytes > _MEMORY_BYTES:
            raise Unavailable(
                f"{self._held_bytes} bytes of output are queued for it; send this chunk again"
            )
        self._held_bytes += size_bytes
        try:
            yield
        finally:
            self._held_bytes -= size_bytes

    def begin_term(self, term: int) -> None:
        """Write under this term from now on; chunks of an earlier one are refused."""
        self._refuse([], NotLeading())
        self._term = term

    async def write(
        self,
        chunk: OutputChunk,
        trims: tuple[OutputTrim, ...],
        job: JobOutput,
        attempt: AttemptOutput,
    ) -> None:
        """Return when the chunk is durable and the cuts are made."""
        done = attempt.last_write = asyncio.get_running_loop().create_future()
        self._pending.append(_Pending(chunk, trims, job, attempt, done))
        if self._running is None:
            self._running = asyncio.create_task(self._write_all())
        # A caller that is cancelled does not take its chunk back.
        await asyncio.shield(done)

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._pending:
                began_s = loop.time()
                await self._write_batch(self._take_batch())
                if self._pending:
                    # Commits get at least half of the disk's time.
                    await asyncio.sleep(min(_PAUSE_S, loop.time() - began_s))
        finally:
            self._running = None

    def _take_batch(self) -> list[_Pending]:
        batch = [self._pending.popleft()]
        size = len(batch[0].chunk.data)
        while self._pending and size + len(self._pending[0].chunk.data) <= _BATCH_BYTES:
            batch.append(self._pending.popleft())
            size += len(batch[-1].chunk.data)
        return batch

    async def _write_batch(self, batch: list[_Pending]) -> None:
        chunks = [each.chunk for each in batch]
        try:
            trims = [cut for each in batch for cut in each.trims]
            dropped_bytes = await self._store.put_output(self._term, chunks, trims)
        except Deposed:
            self._refuse(batch, NotLeading())
            return
        except Exception as error:  # every caller gets an answer
            self._refuse(batch, error)
            return
        self._on_kept(sum(len(chunk.data) for chunk in chunks), dropped_bytes)
        for each in batch:
            each.attempt.durable = each.chunk.end
            each.job.note_arrival(each.chunk.task)
            each.done.set_result(None)

    def _refuse(self, batch: list[_Pending], error: Exception) -> None:
        """Refuse the batch and everything queued: a chunk after a missing one would leave a gap.
        The senders send their chunks again."""
        for each in (*batch, *self._pending):
            each.attempt.end = each.attempt.durable
            each.done.set_exception(error)
            each.done.exception()  # the caller may have been cancelled
        self._pending.clear()
