"""What tasks write, on its way from workers to the store, and the news of it for those who follow.

It passes the command queue by: chunks that came while the last ones were written are written
together, and only the first chunk of an attempt asks the cluster whose it is. The leader is the
only one who writes, so it knows how far each attempt reaches without looking.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple
from weakref import WeakValueDictionary

from phalanx.core.errors import Conflict, Unknown
from phalanx.core.model import Task
from phalanx.core.records import TaskRecord, job_of
from phalanx.engine.engine import Engine
from phalanx.engine.errors import NotLeading, Unavailable
from phalanx.engine.turn import Turn
from phalanx.store.protocol import Chunk, Cut, Deposed, Span, Store

#: The most that one call may bring.
CHUNK_BYTES = 256 * 1024
#: The last attempts of a task whose output is kept.
KEPT_ATTEMPTS = 3
#: The highest offset: a chunk that begins there still ends within 63 bits.
MAX_OFFSET = 2**62

#: What calls may hold in memory all together.
_ROOM_BYTES = 64 * 1024 * 1024
#: What is written at once at most, so that a commit behind it does not wait for long.
_BATCH_BYTES = 512 * 1024
#: The longest pause between two batches.
_PAUSE_S = 0.25
#: Jobs that are remembered though nobody follows them.
_REMEMBERED = 10_000
#: A story is read this much at a time.
_PAGE = 1000


class Reach:
    """How far the output of one attempt has come."""

    def __init__(self, attempt: int, end: int = 0) -> None:
        self.attempt = attempt
        self.durable = end  #: what readers may ask for
        self.end = end  #: the same with what is being written
        self.worker: str | None = None  #: who may speak for it, once that is known
        self.last: asyncio.Future[None] | None = None  #: the last of what is being written


class JobOutput:
    """The output of one job's tasks as the leader knows it."""

    def __init__(self, job: str, spans: tuple[Span, ...] = ()) -> None:
        self.job = job
        self._tasks: dict[int, dict[int, Reach]] = {}
        #: task → the number of its last arrival, the latest last.
        self._arrivals: dict[int, int] = {}
        self.arrived = 0  #: counts arrivals
        self.events = 0  #: counts what happened to the job itself
        self._news = asyncio.Event()
        for span in spans:
            self.add(span.task, span.epoch, Reach(span.attempt, span.end))

    def of(self, task: int) -> Mapping[int, Reach]:
        """The attempts of a task by epoch."""
        return self._tasks.get(task, {})

    def add(self, task: int, epoch: int, reach: Reach) -> Reach:
        """Whatever is known of this attempt, or else that."""
        return self._tasks.setdefault(task, {}).setdefault(epoch, reach)

    def forget(self, task: int, epoch: int) -> None:
        del self._tasks[task][epoch]

    @property
    def news(self) -> asyncio.Event:
        """Set when there is more. Ask for it before looking, and nothing is missed."""
        return self._news

    def since(self, arrived: int) -> list[int]:
        """The tasks that have brought something since then, in the order in which they did."""
        found = []
        for task, number in reversed(self._arrivals.items()):
            if number <= arrived:
                break
            found.append(task)
        return found[::-1]

    def arrive(self, task: int) -> None:
        self.arrived += 1
        self._arrivals.pop(task, None)
        self._arrivals[task] = self.arrived
        self._tell()

    def happen(self) -> None:
        self.events += 1
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class _Writing(NamedTuple):
    """A chunk that waits to be durable, and who waits for it."""

    chunk: Chunk
    cuts: tuple[Cut, ...]
    output: JobOutput
    reach: Reach
    done: asyncio.Future[None]


class Outputs:
    def __init__(self, engine: Engine, store: Store, keep_bytes: int) -> None:
        self._engine = engine
        self._store = store
        self._keep_bytes = keep_bytes
        self._term = 0
        #: Whatever somebody holds stays known; the last ones are held here.
        self._known: WeakValueDictionary[str, JobOutput] = WeakValueDictionary()
        self._recent: OrderedDict[str, JobOutput] = OrderedDict()
        self._queue: deque[_Writing] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._held_bytes = 0

    # Reading

    async def of(self, job: str) -> JobOutput:
        """Raises NotLeading."""
        term = self._lead()
        found = self._known.get(job)
        if found is None:
            spans = await self._store.output_spans(job)
            if self._lead() != term:
                raise NotLeading
            # Somebody else may have been quicker, and knows more by now.
            found = self._known.get(job) or JobOutput(job, spans)
        self._known[job] = self._recent[job] = found
        self._recent.move_to_end(job)
        if len(self._recent) > _REMEMBERED:
            self._recent.popitem(last=False)
        return found

    def is_current(self, output: JobOutput) -> bool:
        """Whether this is still what the leader knows, and we are the leader."""
        return self._engine.is_leading and self._known.get(output.job) is output

    def observe(self, turn: Turn) -> None:
        for record in turn.records():
            output = self._known.get(job_of(record) or "")
            if output is not None:
                output.happen()

    def _lead(self) -> int:
        """The term we lead under; what was known under another is void. Raises NotLeading."""
        term = self._engine.check_leading()
        if term != self._term:
            self._give_up([], NotLeading())
            self._term = term
            self._known.clear()
            self._recent.clear()
        return term

    # Writing

    @contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Room for a body of this size while it is dealt with. Raises Unavailable."""
        if self._held_bytes + size > _ROOM_BYTES:
            raise Unavailable(f"{self._held_bytes} bytes of output wait for it; send this again")
        self._held_bytes += size
        try:
            yield
        finally:
            self._held_bytes -= size

    async def append(self, worker: str, chunk: Chunk) -> int:
        """Keep what is new of a chunk; the next byte that is wanted. The attempt's number in it is
        ours to find. Raises Unknown or Conflict if this worker has not run that attempt."""
        output, reach = await self._reach(worker, chunk)
        begins = max(chunk.offset, reach.end)
        data = chunk.data[begins - chunk.offset :]
        if data:
            reach.end = begins + len(data)
            own = Chunk(chunk.job, chunk.task, chunk.epoch, reach.attempt, begins, data)
            await self._write(own, output, reach)
        elif reach.last is not None and reach.durable < reach.end:
            # It came twice, and the first one is being written.
            await asyncio.shield(reach.last)
        self._lead()
        return reach.durable

    async def _reach(self, worker: str, chunk: Chunk) -> tuple[JobOutput, Reach]:
        self._lead()
        output = self._known.get(chunk.job)
        if output is not None:
            reach = output.of(chunk.task).get(chunk.epoch)
            if reach is not None and reach.worker == worker:
                return output, reach
        # Nothing is remembered of what does not exist.
        number = await self._placed(worker, chunk)
        output = await self.of(chunk.job)
        newer = sum(epoch > chunk.epoch for epoch in output.of(chunk.task))
        if newer >= KEPT_ATTEMPTS:
            raise Conflict(
                f"task {chunk.job}.{chunk.task} has output of {newer} attempts after epoch"
                f" {chunk.epoch}; only that of the last {KEPT_ATTEMPTS} is kept"
            )
        reach = output.add(chunk.task, chunk.epoch, Reach(number))
        reach.worker = worker
        return output, reach

    async def _placed(self, worker: str, chunk: Chunk) -> int:
        """Which attempt of its task this is. Raises Unknown or Conflict if it was not there."""
        name = f"{chunk.job}.{chunk.task}"
        task = await self._task(chunk.job, chunk.task)
        if chunk.epoch > task.epoch:
            raise Conflict(f"task {name} is at epoch {task.epoch}; there is no epoch {chunk.epoch}")
        if (task.epoch, task.worker) == (chunk.epoch, worker):
            return max(1, task.attempts)
        # Once a task waits again its row has forgotten where it was; its story has not.
        epochs: set[int] = set()
        was_there, after = False, 0
        while True:
            records = await self._store.records(job=chunk.job, after=after, limit=_PAGE)
            for record in records:
                if isinstance(record, TaskRecord) and record.task == chunk.task:
                    epochs.add(record.attempt)
                    was_there |= (record.attempt, record.worker) == (chunk.epoch, worker)
            if len(records) < _PAGE:
                break
            after = records[-1].seq
        if not was_there:
            raise Unknown(
                f"task {name} was not on worker {worker[:80]} at epoch {chunk.epoch}; send the"
                " output of tasks that ran there, each with its epoch"
            )
        return sum(epoch <= chunk.epoch for epoch in epochs)

    async def _task(self, job: str, index: int) -> Task:
        def live(turn: Turn) -> tuple[Task, ...] | None:
            gang = turn.cluster.gangs.get(job)
            return None if gang is None else tuple(gang.tasks[index : index + 1])

        found = await self._engine.do(live)
        if found is None:
            row = await self._store.job(job)
            found = () if row is None else row[1][index : index + 1]
        if not found:
            raise Unknown(f"there is no task {job[:80]}.{index}")
        return found[0]

    async def _write(self, chunk: Chunk, output: JobOutput, reach: Reach) -> None:
        done = reach.last = asyncio.get_running_loop().create_future()
        cuts = tuple(self._cuts(chunk, output))
        self._queue.append(_Writing(chunk, cuts, output, reach, done))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())
        # Whoever gives up waiting does not take the chunk back.
        await asyncio.shield(done)

    def _cuts(self, chunk: Chunk, output: JobOutput) -> Iterator[Cut]:
        """What this chunk pushes out: the front of its attempt, and attempts that are too old."""
        if chunk.end > self._keep_bytes:
            yield Cut(chunk.job, chunk.task, chunk.epoch, chunk.end - self._keep_bytes)
        for epoch in sorted(output.of(chunk.task))[:-KEPT_ATTEMPTS]:
            output.forget(chunk.task, epoch)
            yield Cut(chunk.job, chunk.task, epoch, 2 * MAX_OFFSET - 1)

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._queue:
                began_s = loop.time()
                await self._write_some(self._batch())
                if self._queue:
                    # The disk is ours for half of the time at most; the rest is for commits.
                    await asyncio.sleep(min(_PAUSE_S, loop.time() - began_s))
        finally:
            self._writer = None

    def _batch(self) -> list[_Writing]:
        """What is written next."""
        batch = [self._queue.popleft()]
        size = len(batch[0].chunk.data)
        while self._queue and size + len(self._queue[0].chunk.data) <= _BATCH_BYTES:
            batch.append(self._queue.popleft())
            size += len(batch[-1].chunk.data)
        return batch

    async def _write_some(self, batch: list[_Writing]) -> None:
        chunks = [each.chunk for each in batch]
        try:
            cuts = [cut for each in batch for cut in each.cuts]
            removed = await self._store.put_output(self._term, chunks, cuts)
        except Deposed:
            self._give_up(batch, NotLeading())
            return
        except Exception as error:  # whatever it is, nobody waits for ever
            self._give_up(batch, error)
            return
        self._engine.telemetry.output_kept(sum(len(chunk.data) for chunk in chunks), removed)
        for each in batch:
            each.reach.durable = each.chunk.end
            each.output.arrive(each.chunk.task)
            each.done.set_result(None)

    def _give_up(self, batch: list[_Writing], error: Exception) -> None:
        """None of what waits is kept, for what follows a chunk that is missing would leave a gap.
        Whoever sent it sends it again."""
        for each in (*batch, *self._queue):
            each.reach.end = each.reach.durable
            each.done.set_exception(error)
            each.done.exception()  # whoever waited may have left
        self._queue.clear()
