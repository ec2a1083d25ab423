"""The output of a job, line by line. A follower continues where it was after a change of leader."""

import re
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import httpx
import msgspec

from phalanx.client.errors import UnreachableError
from phalanx.client.transport import ApiRequest, Transport, describe
from phalanx.wire.jobs import JobView

_RETRY_PAUSE_S = 0.2
_TASK_PREFIX = re.compile(r"([a-z0-9-]+/[0-9]+) \| ")


async def printed_output(
    transport: Transport, path: str, params: Mapping[str, Any]
) -> AsyncGenerator[str, None]:
    """The output so far. Raises UnreachableError if the connection breaks."""
    try:
        async with aclosing(transport.lines(_request(path, params))) as lines:
            async for line in lines:
                yield line
    except httpx.TransportError as error:
        raise UnreachableError(
            f"the connection broke while reading the output ({describe(error)}); read it again"
        ) from None


async def followed_output(
    transport: Transport, job_path: str, params: Mapping[str, Any], *, tail: int | None
) -> AsyncGenerator[str, None]:
    """The output until the job ends.

    A stream that breaks, or ends before the job does, is replaced by a new one. Without `tail`,
    the new stream begins at the start and skips, task by task, the lines that were yielded
    already. With `tail`, it begins at the current end.
    """
    yielded: Counter[str] = Counter()
    to_skip: Counter[str] = Counter()
    while True:
        failovers, is_complete = transport.failovers, True
        try:
            request = _request(f"{job_path}/logs", {**params, "follow": True, "tail": tail})
            async with aclosing(transport.lines(request)) as lines:
                async for line in lines:
                    prefix = _TASK_PREFIX.match(line)
                    task = prefix[1] if prefix else ""
                    if to_skip[task]:
                        to_skip[task] -= 1
                        continue
                    yielded[task] += 1
                    yield line
        except httpx.TransportError:
            is_complete = False
        response = await transport.send(ApiRequest("GET", job_path))
        job = msgspec.json.decode(response.content, type=JobView)
        # A server that stops also ends its streams, and the job may have ended since.
        if is_complete and transport.failovers == failovers and job.finished_at is not None:
            return
        tail = None if tail is None else 0
        to_skip = Counter() if tail == 0 else yielded.copy()
        await transport.pause(_RETRY_PAUSE_S)


def _request(path: str, params: Mapping[str, Any]) -> ApiRequest:
    # A task may print nothing for any length of time, so there is no read timeout.
    return ApiRequest("GET", path, params, streamed=True, read_timeout_s=None)
