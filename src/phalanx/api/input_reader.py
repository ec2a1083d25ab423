"""Reads request bodies without holding up the event loop.

Small bodies are read at once, because a message to another process costs more. Every other body is
read in a process with limited memory and time: one process for bodies of medium size, one for large
ones, so that a large body does not hold up the others. Each starts with the first body it reads.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from phalanx.core.errors import Invalid
from phalanx.core.spec.fields import refusal
from phalanx.core.spec.job import JobSpec
from phalanx.engine.admission import CallLimit
from phalanx.engine.errors import Overloaded
from phalanx.manifest import reader
from phalanx.manifest.bundle import Bundle
from phalanx.manifest.read_options import ReadOptions
from phalanx.manifest.reader import (
    InputKind,
    ReadBatch,
    ReadDocuments,
    ReadFile,
    ReadRefusal,
    ReadRequest,
)
from phalanx.manifest.reader_process import GOES_ON, framed, too_costly

#: Of the worst body of this size, 15 ms are spent on reading it; a message costs 1 ms.
SMALL_BYTES = 4 * 1024
_MEDIUM_BYTES = 64 * 1024
#: How long a process may take to start, and to read one body.
_START_S = 30.0
_READ_S = 10.0
#: Bodies that wait for a process, of all callers together and of one caller.
_MOST_READS = 64
_MOST_OF_ONE = 8
#: What a process needs before it reads anything, and for each byte of the largest body.
_BASE_BYTES = 256 * 1024 * 1024
_PER_BYTE = 256
#: Decoding pauses after this time, so that other requests get a turn.
_SLICE_S = 0.002

_log = structlog.get_logger("phalanx.api")


class InputReader:
    def __init__(self, body_limit_bytes: int) -> None:
        self._limit_bytes = body_limit_bytes
        memory_bytes = _BASE_BYTES + _PER_BYTE * body_limit_bytes
        self._medium = ReaderProcess(memory_bytes)
        self._large = ReaderProcess(memory_bytes)

    async def file(self, data: bytes, options: ReadOptions, caller: str) -> Bundle:
        """The jobs and queues of a file. Raises Invalid."""
        request = self._request(InputKind.FILE, data, options)
        if _is_small(data):
            return reader.read_file(request)
        return await _file(await self._ask(request, caller))

    async def batch(self, data: bytes, options: ReadOptions, caller: str) -> list[Bundle | Invalid]:
        """Of each document in a list of jobs: its job, or why it is refused. Raises Invalid."""
        request = self._request(InputKind.BATCH, data, options)
        if _is_small(data):
            return reader.read_batch(request)
        reply: ReadBatch = await self._ask(request, caller)
        return [
            Invalid(each.problems) if isinstance(each, ReadRefusal) else await _file(each)
            for each in reply.files
        ]

    async def documents(self, data: bytes, caller: str) -> list[object]:
        """The documents as plain data. Raises Invalid."""
        request = self._request(InputKind.DOCUMENTS, data)
        if _is_small(data):
            return reader.read_documents(request)
        reply: ReadDocuments = await self._ask(request, caller)
        return reply.documents

    def close(self) -> None:
        """End the processes."""
        self._medium.stop()
        self._large.stop()

    def _request(
        self, kind: InputKind, data: bytes, options: ReadOptions | None = None
    ) -> ReadRequest:
        return ReadRequest(kind, data, self._limit_bytes, options or ReadOptions())

    async def _ask(self, request: ReadRequest, caller: str) -> Any:
        process = self._medium if len(request.data) <= _MEDIUM_BYTES else self._large
        reply = reader.reply_from(await process.ask(reader.encode(request), caller))
        if isinstance(reply, ReadRefusal):
            raise Invalid(reply.problems)
        return reply


def _is_small(data: bytes) -> bool:
    """Whether reading takes a few milliseconds. Aliases make a small input large."""
    return len(data) <= SMALL_BYTES and not (b"&" in data and b"*" in data)


async def _file(content: ReadFile) -> Bundle:
    jobs = await _specs(content.jobs)
    return Bundle(jobs, content.queues, content.warnings, content.parts, content.is_short)


async def _specs(encoded: Iterable[msgspec.Raw]) -> list[JobSpec]:
    loop = asyncio.get_running_loop()
    jobs, until = [], loop.time() + _SLICE_S
    for each in encoded:
        jobs.append(reader.spec_from(each))
        if loop.time() > until:
            await asyncio.sleep(0)
            until = loop.time() + _SLICE_S
    return jobs


class ReaderProcess:
    """A process that reads one body at a time. It is replaced when it fails or takes too long."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._turn = asyncio.Lock()
        self._calls = CallLimit("large requests", _MOST_READS, _MOST_OF_ONE)
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, question: bytes, caller: str) -> bytes:
        """The answer to a message. Raises Invalid if it takes too long, TooManyRequests or
        Overloaded if too many others wait."""
        with self._calls.call(caller):
            async with self._turn:
                return await self._alone(question)

    async def _alone(self, question: bytes) -> bytes:
        try:
            answer = await self._ask(question)
        except BaseException:
            self.stop()  # its answer would be taken for that of the next message
            raise
        if not answer.startswith(GOES_ON):
            self.stop()
        return answer[len(GOES_ON) :]

    async def _ask(self, question: bytes) -> bytes:
        try:
            answers, questions = await self._started()
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            _log.error("no process to read requests", why=str(error) or type(error).__name__)
            raise Overloaded(
                "the server could not start a process to read this request; try again"
            ) from error
        try:
            async with asyncio.timeout(_READ_S):
                questions.write(framed(question))
                await questions.drain()
                return await _received(answers)
        except TimeoutError:
            raise refusal(too_costly(f"time (more than {_READ_S:.0f} s)")) from None
        except (OSError, asyncio.IncompleteReadError):
            if await asyncio.to_thread(self._exit_status) > 0:
                raise RuntimeError("bug: the process that reads requests failed") from None
            raise refusal(too_costly("memory")) from None  # killed by the system

    async def _started(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._process is not None and self._process.poll() is not None:
            self.stop()
        if self._streams is None:
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603
                    [
                        *(sys.executable, "-m", "phalanx.manifest.reader_process"),
                        str(self._memory_bytes),
                    ],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    env={"PYTHONPATH": os.pathsep.join(sys.path), "MALLOC_ARENA_MAX": "2"},
                    start_new_session=True,
                )
            async with asyncio.timeout(_START_S):
                self._streams = await asyncio.open_connection(sock=ours)
                await _received(self._streams[0])
        return self._streams

    def _exit_status(self) -> int:
        """Of a process that has closed its output; negative for a signal."""
        if self._process is None:
            return 0
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(_READ_S)
        return 0

    def stop(self) -> None:
        """Kill the process, if there is one."""
        process, streams = self._process, self._streams
        self._process = self._streams = None
        if streams is not None:
            streams[1].transport.abort()
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()


async def _received(stream: asyncio.StreamReader) -> bytes:
    return await stream.readexactly(int.from_bytes(await stream.readexactly(4), "big"))
