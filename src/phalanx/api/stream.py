"""All that happens, as a stream of server-sent events. Who falls too far behind is told to resync.

Each event has the record's number as its id, so that a reader who comes back says where it was.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from litestar import Request, get
from litestar.params import QueryParameter
from litestar.response import Stream

from phalanx.api.auth import USERS, Principal, principal_of
from phalanx.api.errors import wrong
from phalanx.api.services import Services, services_of
from phalanx.core.records import kind_of
from phalanx.engine.event_buffer import Entry
from phalanx.wire.events import with_iso_times

_encode = msgspec.json.Encoder().encode
_BIGGEST = 2**63 - 1

Since = Annotated[
    int | None,
    QueryParameter(ge=0, le=_BIGGEST, required=False, description="The last number that was seen."),
]


@get(
    "/events",
    opt={"allowed": USERS},
    media_type="text/event-stream",
    summary="Follow all that happens",
)
async def events(request: Request[Any, Any, Any], since: Since = None) -> Stream:
    """From `since` on, or from now. An event `resync` says that some were missed: load what you
    show anew, and go on reading."""
    services = services_of(request)
    last = await services.engine.do(lambda turn: turn.cluster.last_seq)
    services.event_buffer.catch_up(last)
    return Stream(
        _follow(services, principal_of(request), _start(request, since, last)),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def _start(request: Request[Any, Any, Any], since: int | None, last: int) -> int:
    if since is not None:
        return since
    told = request.headers.get("last-event-id")
    if told is None:
        return last
    if not told.isdecimal() or len(told) > 18:
        raise wrong("Last-Event-ID", "is not the id of an event; leave it out to begin with now")
    return int(told)


async def _follow(services: Services, principal: Principal, since: int) -> AsyncIterator[bytes]:
    buffer, engine = services.event_buffer, services.engine
    yield b": the stream begins\n\n"
    while engine.is_leading:
        added = buffer.added
        entries = buffer.since(since)
        if entries is None or since > (buffer.last or 0):
            since = buffer.last or 0
            yield _resync(since)
        elif entries:
            since = entries[-1].record.seq
            told = b"".join(_event(entry) for entry in entries if _may_see(principal, entry))
            if told:
                yield told
        else:
            try:
                async with asyncio.timeout(services.info.keepalive_s):
                    await added.wait()
            except TimeoutError:
                yield b": nothing new\n\n"


def _may_see(principal: Principal, entry: Entry) -> bool:
    confined = principal.confined_to
    return confined is None or (entry.namespace is not None and entry.namespace in confined)


def _resync(last: int) -> bytes:
    return b"id: %d\nevent: resync\ndata: %s\n\n" % (last, _encode({"last": last}))


def _event(entry: Entry) -> bytes:
    record = entry.record
    data = _encode(with_iso_times(record))
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (record.seq, kind_of(record).encode(), data)


ROUTES = [events]
