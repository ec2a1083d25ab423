"""The output of a job as text for one reader: prefixed lines, attempts, and gaps.

Output is read from the store at the reader's pace. A slow reader delays nothing and holds nothing
in memory; output that was dropped meanwhile is shown as a gap.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import NamedTuple

from phalanx.api.services import Services
from phalanx.core.model import Job, Task, index_in_role
from phalanx.core.states import TERMINAL
from phalanx.core.time_units import SECOND, Micros
from phalanx.engine.errors import NoAnswer
from phalanx.engine.output.job_output import AttemptOutput, JobOutput
from phalanx.engine.output.outputs import KEPT_ATTEMPTS
from phalanx.engine.turn import Turn
from phalanx.store.protocol import OutputChunk, StoreError

#: How much is read from the store at once.
_SPAN_BYTES = 256 * 1024
#: A longer line is broken where the lines of several tasks are interleaved.
_LINE_BYTES = 8 * 1024
#: Output that keeps arriving after a job's end is read for at most this many times the linger.
_PATIENCE = 5
#: How long after a job's end a reader waits for output that a worker has and did not send yet.
_LATE_S = 30.0


class _Ending(NamedTuple):
    at_s: float  #: on the loop's clock
    attempt: int  #: the last one


class _TaskLog:
    """The log of one task, as far as it was sent to the reader."""

    def __init__(self, task: int, prefix: str, attempt: int | None) -> None:
        self.task = task
        self.offsets: dict[int, int] = {}  #: attempt → the next byte to send
        self.attempt = attempt  #: the attempt of the last bytes; its start is not announced
        self._prefix = prefix.encode()
        self._rest = b""  #: a line without its end
        self._is_at_start = True

    def render(self, attempt: int, chunks: Sequence[OutputChunk]) -> bytes:
        """The chunks as text, with notices of new attempts and gaps."""
        text = b""
        if attempt != self.attempt:
            if self.attempt is not None or attempt > 1:
                text += self._notice(f"── attempt {attempt} ──")
            self.attempt = attempt
        at = self.offsets.get(attempt, 0)
        for chunk in chunks:
            if chunk.offset > at:
                text += self._notice(f"… {chunk.offset - at} bytes left out …")
            text += self._prefixed(chunk.data[max(0, at - chunk.offset) :])
            at = max(at, chunk.end)
        self.offsets[attempt] = at
        return text

    def end(self) -> bytes:
        """The last line, if it has no end of its own."""
        rest, self._rest = self._rest, b""
        return b"%s%s\n" % (self._prefix, rest) if rest else b""

    def _prefixed(self, data: bytes) -> bytes:
        if not self._prefix:
            self._is_at_start = data.endswith(b"\n") if data else self._is_at_start
            return data
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return b"".join(b"%s%s\n" % (self._prefix, line) for line in lines)

    def _notice(self, text: str) -> bytes:
        """A line from the server itself."""
        before = self.end()
        if not (self._prefix or self._is_at_start):
            before = b"\n"
        self._is_at_start = True
        return b"%s%s%s\n" % (before, self._prefix, text.encode())


class LogReader:
    """`attempt` limits the log to one attempt."""

    def __init__(
        self, services: Services, job: Job, tasks: Sequence[Task], attempt: int | None
    ) -> None:
        self._services = services
        self._job = job.id
        self._attempt = attempt
        several = len(tasks) > 1
        self._logs = {
            task.index: _TaskLog(task.index, _prefix(job, task) if several else "", attempt)
            for task in tasks
        }

    async def read(self, output: JobOutput, *, follow: bool) -> AsyncGenerator[bytes, None]:
        """The log; with `follow` until the job, or the one attempt, has ended."""
        arrived = output.arrived
        try:
            for log in self._logs.values():
                async for data in self._unsent(log, output):
                    yield data
                if not follow:
                    yield log.end()
            if follow:
                async for data in self._follow(output, arrived):
                    yield data
        except StoreError as error:
            yield f"\n… the rest of the log cannot be read now: {error} …\n".encode()
        yield b"".join(log.end() for log in self._logs.values())

    def _attempts(self, log: _TaskLog, output: JobOutput) -> list[tuple[int, AttemptOutput]]:
        attempts = sorted(output.attempts(log.task).items())
        return [each for each in attempts if self._attempt in (None, each[0])]

    async def _unsent(self, log: _TaskLog, output: JobOutput) -> AsyncIterator[bytes]:
        """The durable output that was not sent yet."""
        for number, attempt in self._attempts(log, output):
            while (at := log.offsets.get(number, 0)) < attempt.durable:
                chunks = await self._chunks(log, number, at)
                if not chunks:
                    log.offsets[number] = attempt.durable
                    break
                yield log.render(number, chunks)

    async def _chunks(self, log: _TaskLog, attempt: int, at: int) -> Sequence[OutputChunk]:
        return await self._services.store.output(
            self._job, log.task, attempt, offset=at, length=_SPAN_BYTES
        )

    # The last lines only

    async def skip_to_tail(self, output: JobOutput, lines: int) -> None:
        """Begin with the last lines of each task, over all attempts that are read."""
        for log in self._logs.values():
            await self._skip(log, output, lines)

    async def _skip(self, log: _TaskLog, output: JobOutput, lines: int) -> None:
        has_begun = False
        for number, attempt in reversed(self._attempts(log, output)):
            if has_begun:
                log.offsets[number] = attempt.durable
                continue
            starts = await self._line_starts(log, number, attempt, lines)
            if len(starts) == lines:
                log.offsets[number] = starts[0] if starts else attempt.durable
                log.attempt = number
                has_begun = True
            lines -= len(starts)

    async def _line_starts(
        self, log: _TaskLog, number: int, attempt: AttemptOutput, lines: int
    ) -> deque[int]:
        """The offsets at which the last lines of an attempt begin."""
        starts: deque[int] = deque(maxlen=lines)
        at, is_at_start = 0, True
        while lines and at < attempt.durable and (chunks := await self._chunks(log, number, at)):
            for chunk in chunks:
                if is_at_start:
                    starts.append(chunk.offset)
                at = chunk.offset
                while after_newline := chunk.data.find(b"\n", at - chunk.offset) + 1:
                    at = chunk.offset + after_newline
                    if at < chunk.end:
                        starts.append(at)
                is_at_start = at == chunk.end
                at = chunk.end
        return starts

    # Following

    async def _follow(self, output: JobOutput, arrived: int) -> AsyncIterator[bytes]:
        loop, info = asyncio.get_running_loop(), self._services.info
        ending: _Ending | None = None
        events, last_output_s = -1, float("-inf")
        while self._services.outputs.is_current(output):
            changed, latest = output.changed, output.arrived
            for task in output.arrived_since(arrived):
                if task in self._logs:
                    last_output_s = loop.time()
                    async for data in self._unsent(self._logs[task], output):
                        yield data
            arrived = latest
            if ending is None and events != output.events:
                events = output.events
                ending = await self._ending()
            wait_s = info.keepalive_s
            if ending is not None:
                wait_s = self._last_at_s(ending, last_output_s) - loop.time()
            if wait_s <= 0:
                return
            try:
                async with asyncio.timeout(wait_s):
                    await changed.wait()
            except TimeoutError:
                events = -1

    def _last_at_s(self, ending: _Ending, last_output_s: float) -> float:
        """Until when more output may arrive after the end, on the loop's clock."""
        is_complete = self._is_complete(self._attempt or ending.attempt)
        if is_complete is not None:
            return float("-inf") if is_complete else ending.at_s + _LATE_S
        linger_s = self._services.info.linger_s
        quiet_s = max(ending.at_s, last_output_s) + linger_s
        return min(quiet_s, ending.at_s + _PATIENCE * linger_s)

    def _is_complete(self, last: int) -> bool | None:
        """Whether the reader has all that the tasks have written; None if a worker has not said how
        much that is."""
        reported = {
            task: self._services.agent_sync.output_sizes.of(f"{self._job}.{task}")
            for task in self._logs
        }
        if not all(last in sizes for sizes in reported.values()):
            return None
        first = last if self._attempt is not None else last - KEPT_ATTEMPTS + 1
        return all(
            size_bytes <= self._logs[task].offsets.get(attempt, 0)
            for task, sizes in reported.items()
            for attempt, size_bytes in sizes.items()
            if first <= attempt <= last
        )

    async def _ending(self) -> _Ending | None:
        """When the job or the attempt ended; None while it has not."""
        now_s = asyncio.get_running_loop().time()
        try:
            now = await self._services.engine.do(self._now_if_ended)
        except NoAnswer:
            return None  # `_follow` ends when this server no longer leads
        if now is None:
            return None
        row = await self._services.store.job(self._job)
        ended_at = None if row is None else row[0].finished_at
        last = 0 if row is None else row[0].epoch
        return _Ending(now_s - (now - (ended_at or now)) / SECOND, last)

    def _now_if_ended(self, turn: Turn) -> Micros | None:
        """The time, if none of the tasks or attempts in this log runs or will run."""
        gang = turn.cluster.gangs.get(self._job)
        if gang is not None and (
            self._attempt is None
            or any(
                task.epoch == self._attempt
                and task.worker is not None
                and task.state not in TERMINAL
                for task in (gang.tasks[number] for number in self._logs)
            )
        ):
            return None
        return turn.now


def _prefix(job: Job, task: Task) -> str:
    return f"{task.role}/{index_in_role(job.spec, task.index)} | "
