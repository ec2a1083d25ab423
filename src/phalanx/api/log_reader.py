"""The output of a job as one reader is told it: lines, attempts, and what is missing.

It is read from the store at the reader's pace. A reader who is slow holds nothing up and nothing
in memory: what was dropped meanwhile is told as a gap.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

from phalanx.api.services import Services
from phalanx.core.model import Job, Task
from phalanx.core.spec.job import SECOND, Micros
from phalanx.core.states import TERMINAL
from phalanx.engine.errors import NotLeading, Unavailable
from phalanx.engine.output import JobOutput, Reach
from phalanx.engine.turn import Turn
from phalanx.store.protocol import Chunk, StoreError

#: How much is read at once.
_SPAN_BYTES = 256 * 1024
#: A longer line is broken where several tasks are told side by side.
_LINE_BYTES = 8 * 1024
#: Output that keeps coming after a job's end is waited for at most so many times the linger.
_PATIENCE = 5


class _Voice:
    """One task as it is told."""

    def __init__(self, task: int, prefix: str) -> None:
        self.task = task
        self.offsets: dict[int, int] = {}  #: by epoch: the next byte to tell
        self.epoch: int | None = None  #: of what was told last
        self._prefix = prefix.encode()
        self._rest = b""  #: a line that has no end yet
        self._is_at_start = True

    def say(self, epoch: int, attempt: int, chunks: Sequence[Chunk]) -> bytes:
        told = b""
        if epoch != self.epoch:
            if self.epoch is not None or attempt > 1:
                told += self.remark(f"── attempt {attempt} (epoch {epoch}) ──")
            self.epoch = epoch
        at = self.offsets.get(epoch, 0)
        for chunk in chunks:
            if chunk.offset > at:
                told += self.remark(f"… {chunk.offset - at} bytes left out …")
            told += self._quote(chunk.data[max(0, at - chunk.offset) :])
            at = max(at, chunk.end)
        self.offsets[epoch] = at
        return told

    def _quote(self, data: bytes) -> bytes:
        if not self._prefix:
            self._is_at_start = data.endswith(b"\n") if data else self._is_at_start
            return data
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return b"".join(b"%s%s\n" % (self._prefix, line) for line in lines)

    def remark(self, text: str) -> bytes:
        """A line of ours."""
        before = self.end()
        if not (self._prefix or self._is_at_start):
            before = b"\n"
        self._is_at_start = True
        return b"%s%s%s\n" % (before, self._prefix, text.encode())

    def end(self) -> bytes:
        """The line that was begun, if it is still with us."""
        rest, self._rest = self._rest, b""
        return b"%s%s\n" % (self._prefix, rest) if rest else b""


class LogReader:
    def __init__(
        self, services: Services, job: Job, tasks: Sequence[Task], attempt: int | None
    ) -> None:
        self._services = services
        self._job = job.id
        self._attempt = attempt
        together = len(tasks) > 1
        self._voices = {
            task.index: _Voice(task.index, f"{task.role}/{task.index} | " if together else "")
            for task in tasks
        }
        for voice in self._voices.values():
            voice.epoch = attempt  # who asks for one attempt need not be told which it is

    async def told(self, output: JobOutput, *, follow: bool) -> AsyncIterator[bytes]:
        arrived = output.arrived
        try:
            for voice in self._voices.values():
                async for data in self._rest(voice, output):
                    yield data
                if not follow:
                    yield voice.end()
            if follow:
                async for data in self._follow(output, arrived):
                    yield data
        except StoreError as error:
            yield f"\n… the rest cannot be read now: {error} …\n".encode()
        yield b"".join(voice.end() for voice in self._voices.values())

    def _attempts(self, voice: _Voice, output: JobOutput) -> list[tuple[int, Reach]]:
        found = sorted(output.of(voice.task).items())
        return [each for each in found if self._attempt in (None, each[0])]

    async def _rest(self, voice: _Voice, output: JobOutput) -> AsyncIterator[bytes]:
        """What is durable and was not told yet."""
        for epoch, reach in self._attempts(voice, output):
            while (at := voice.offsets.get(epoch, 0)) < reach.durable:
                chunks = await self._read(voice, epoch, at)
                if not chunks:
                    voice.offsets[epoch] = reach.durable
                    break
                yield voice.say(epoch, reach.attempt, chunks)

    async def _read(self, voice: _Voice, epoch: int, at: int) -> Sequence[Chunk]:
        return await self._services.store.output(
            self._job, voice.task, epoch, offset=at, span=_SPAN_BYTES
        )

    # The tail

    async def skip(self, output: JobOutput, lines: int) -> None:
        """Go to where the last lines of each task begin."""
        for voice in self._voices.values():
            await self._skip(voice, output, lines)

    async def _skip(self, voice: _Voice, output: JobOutput, lines: int) -> None:
        """Over all attempts that are to be told."""
        has_begun = False
        for epoch, reach in reversed(self._attempts(voice, output)):
            if has_begun:
                voice.offsets[epoch] = reach.durable
                continue
            starts = await self._starts(voice, epoch, reach, lines)
            if len(starts) == lines:
                voice.offsets[epoch] = starts[0] if starts else reach.durable
                voice.epoch = epoch
                has_begun = True
            lines -= len(starts)

    async def _starts(self, voice: _Voice, epoch: int, reach: Reach, lines: int) -> deque[int]:
        """Where the last lines of an attempt begin."""
        starts: deque[int] = deque(maxlen=lines)
        at, is_at_start = 0, True
        while lines and at < reach.durable and (chunks := await self._read(voice, epoch, at)):
            for chunk in chunks:
                if is_at_start:
                    starts.append(chunk.offset)
                at = chunk.offset
                while found := chunk.data.find(b"\n", at - chunk.offset) + 1:
                    at = chunk.offset + found
                    if at < chunk.end:
                        starts.append(at)
                is_at_start = at == chunk.end
                at = chunk.end
        return starts

    # Following

    async def _follow(self, output: JobOutput, arrived: int) -> AsyncIterator[bytes]:
        loop, info = asyncio.get_running_loop(), self._services.info
        events, ended_s, came_s = -1, None, float("-inf")
        while self._services.outputs.is_current(output):
            news, latest = output.news, output.arrived
            for task in output.since(arrived):
                if task in self._voices:
                    came_s = loop.time()
                    async for data in self._rest(self._voices[task], output):
                        yield data
            arrived = latest
            if ended_s is None and events != output.events:
                events = output.events
                ended_s = await self._ended_s()
            wait_s = info.keepalive_s
            if ended_s is not None:
                quiet_s = max(ended_s, came_s) + info.linger_s
                wait_s = min(quiet_s, ended_s + _PATIENCE * info.linger_s) - loop.time()
            if wait_s <= 0:
                return
            try:
                async with asyncio.timeout(wait_s):
                    await news.wait()
            except TimeoutError:
                events = -1

    async def _ended_s(self) -> float | None:
        """When it ended, on the loop's clock; None while there is more to come."""
        now_s = asyncio.get_running_loop().time()
        try:
            seen_at = await self._services.engine.do(self._ended)
        except (NotLeading, Unavailable):
            return None  # whoever asked will see that we lead no longer
        if seen_at is None:
            return None
        row = await self._services.store.job(self._job)
        ended_at = None if row is None else row[0].finished_at
        return now_s - (seen_at - (ended_at or seen_at)) / SECOND

    def _ended(self, turn: Turn) -> Micros | None:
        """The time, if nothing of what is told here runs or will run."""
        gang = turn.cluster.gangs.get(self._job)
        if gang is not None and (
            self._attempt is None
            or any(
                task.epoch == self._attempt
                and task.worker is not None
                and task.state not in TERMINAL
                for task in (gang.tasks[index] for index in self._voices)
            )
        ):
            return None
        return turn.now
