"""The output of a job, line by line. A follower goes on where it was when another server leads."""

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import msgspec

from phalanx.client.errors import UnreachableError
from phalanx.client.transport import ApiRequest, Transport, lines_of
from phalanx.wire.jobs import JobView

_MOMENT_S = 0.2
_OWNER = re.compile(r"([a-z0-9-]+/[0-9]+) \| ")


def printed(servers: Transport, path: str, params: Mapping[str, Any]) -> Iterator[str]:
    """As much as there is."""
    try:
        yield from _lines(servers, path, params)
    except httpx.TransportError as error:
        raise UnreachableError(f"the output broke off ({error}); ask for it again") from None


def followed(
    servers: Transport, job: str, params: Mapping[str, Any], *, tail: int | None
) -> Iterator[str]:
    """Until the job has ended.

    A stream that breaks off, or ends before the job does, is followed by another one: the whole
    output less the lines of each task that were seen, or what comes from then on where only the
    end was wanted.
    """
    seen: Counter[str] = Counter()
    skip: Counter[str] = Counter()
    while True:
        detours, is_whole = servers.detours, True
        try:
            for line in _lines(servers, f"{job}/logs", {**params, "follow": True, "tail": tail}):
                owner = name[1] if (name := _OWNER.match(line)) else ""
                if skip[owner]:
                    skip[owner] -= 1
                    continue
                seen[owner] += 1
                yield line
        except httpx.TransportError:
            is_whole = False
        found = msgspec.json.decode(servers.ask(ApiRequest("GET", job)).content, type=JobView)
        # A server that stops ends its streams too, and the job may have ended since.
        if is_whole and servers.detours == detours and found.finished_at is not None:
            return
        tail = None if tail is None else 0
        skip = Counter() if tail == 0 else seen.copy()
        time.sleep(_MOMENT_S)


def _lines(servers: Transport, path: str, params: Mapping[str, Any]) -> Iterator[str]:
    # A task may be silent for as long as it likes.
    answer = servers.ask(ApiRequest("GET", path, params, streamed=True, silence_s=None))
    try:
        yield from lines_of(answer)
    finally:
        answer.close()
