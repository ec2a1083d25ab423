"""The stream of all events, as server-sent events.

The id of each event is the number of its record, so that a reader can resume where it was. A reader
that is too far behind gets an event `resync`.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import msgspec
from litestar import Request, get
from litestar.params import QueryParameter
from litestar.response import Stream

from phalanx.api.auth import USERS, principal_of, while_authorised
from phalanx.api.errors import wrong
from phalanx.api.services import Services, services_of
from phalanx.api.visibility import visible_record
from phalanx.core.records import Record, kind_of
from phalanx.engine.errors import NoAnswer
from phalanx.engine.event_buffer import Entry
from phalanx.identity.principal import Principal
from phalanx.wire.events import with_iso_times

_encode = msgspec.json.Encoder().encode
_MAX_SEQ = 2**63 - 1

Since = Annotated[
    int | None,
    QueryParameter(
        ge=0, le=_MAX_SEQ, required=False, description="The number of the last event seen."
    ),
]


@get(
    "/events",
    opt={"allowed": USERS},
    media_type="text/event-stream",
    summary="Follow all events",
)
async def events(request: Request[Any, Any, Any], since: Since = None) -> Stream:
    """The events after number `since`, or from now on.

    An event `resync` means that some were missed: load the current state again, and continue.
    """
    services = services_of(request)
    last = await services.engine.do(lambda turn: turn.cluster.last_seq)
    services.event_buffer.catch_up(last)
    return Stream(
        while_authorised(
            request, _follow(services, principal_of(request), _start(request, since, last))
        ),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def _start(request: Request[Any, Any, Any], since: int | None, last: int) -> int:
    if since is not None:
        return since
    resumed = request.headers.get("last-event-id")
    if resumed is None:
        return last
    if not resumed.isdecimal() or len(resumed) > 18:
        raise wrong("Last-Event-ID", "is not the id of an event; leave it out to start from now")
    return int(resumed)


async def _follow(
    services: Services, principal: Principal, since: int
) -> AsyncGenerator[bytes, None]:
    buffer, engine = services.event_buffer, services.engine
    yield b": start of the stream\n\n"
    while engine.is_leading:
        added = buffer.added
        entries = buffer.since(since)
        if entries is None or since > (buffer.last or 0):
            since = buffer.last or 0
            yield _resync(since)
        elif entries:
            since = entries[-1].record.seq
            readable = [entry.record for entry in entries if _may_see(principal, entry)]
            if readable:
                try:
                    gangs = await engine.do(lambda turn: turn.cluster.gangs)
                except NoAnswer:
                    return  # the server no longer leads: the stream ends
                yield b"".join(
                    _event(visible_record(principal, record, gangs)) for record in readable
                )
        else:
            try:
                async with asyncio.timeout(services.info.keepalive_s):
                    await added.wait()
            except TimeoutError:
                yield b": keep-alive\n\n"


def _may_see(principal: Principal, entry: Entry) -> bool:
    confined = principal.confined_to
    return confined is None or (entry.namespace is not None and entry.namespace in confined)


def _resync(last: int) -> bytes:
    return b"id: %d\nevent: resync\ndata: %s\n\n" % (last, _encode({"last": last}))


def _event(record: Record) -> bytes:
    data = _encode(with_iso_times(record))
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (record.seq, kind_of(record).encode(), data)


ROUTES = [events]
