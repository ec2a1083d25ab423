"""Events: those of one job page by page or until it ends, and the stream of all events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

import httpx
import msgspec

from phalanx.client.transport import ApiRequest, Transport
from phalanx.core.records import JobEnded, job_of
from phalanx.wire.events import Event, Resync, UnknownEvent, event_from
from phalanx.wire.times import now_micros

#: How the server names an event that says that others were missed.
_RESYNC = "resync"
_PAGE = 1000

_decode_event = msgspec.json.Decoder(dict[str, Any]).decode


class _Page(msgspec.Struct, frozen=True):
    events: list[dict[str, Any]]
    next: int | None


_decode_page = msgspec.json.Decoder(_Page).decode


class _ServerSentEvent(NamedTuple):
    kind: str
    seq: int
    data: str


async def past_events(
    transport: Transport, path: str, after: int = 0
) -> AsyncGenerator[Event, None]:
    """The events of a job so far, fetched page by page."""
    cursor: int | None = after
    while cursor is not None:
        params = {"after": cursor, "limit": _PAGE}
        reply = await transport.send(ApiRequest("GET", path, params))
        page = _decode_page(reply.content)
        for event in page.events:
            yield event_from(event)
        cursor = page.next


async def followed_events(transport: Transport, path: str, job: str) -> AsyncGenerator[Event, None]:
    """The events of a job from its submission to its end, as they happen."""
    last, has_ended = 0, False
    while not has_ended:
        async for event in past_events(transport, path, after=last):
            last, has_ended = event.seq, has_ended or isinstance(event, JobEnded)
            yield event
        if has_ended:
            return
        async with aclosing(stream(transport, since=last)) as live:
            async for event in live:
                if isinstance(event, Resync):
                    break  # fetch the missed events page by page
                if _job_of(event) != job:
                    continue
                last, has_ended = event.seq, isinstance(event, JobEnded)
                yield event
                if has_ended:
                    return


def _job_of(event: Event) -> str | None:
    return event.fields.get("job") if isinstance(event, UnknownEvent) else job_of(event)


async def stream(transport: Transport, since: int | None = None) -> AsyncGenerator[Event, None]:
    """All events, without end. A broken connection is opened again after the last event seen."""
    while True:
        request = ApiRequest("GET", "/events", {"since": since}, streamed=True)
        try:
            async with aclosing(_server_sent_events(transport, request)) as sent_events:
                async for sent in sent_events:
                    since = sent.seq
                    if sent.kind == _RESYNC:
                        yield Resync(seq=sent.seq, at=now_micros())
                    else:
                        yield event_from(_decode_event(sent.data))
        except httpx.TransportError:
            pass  # the next leader continues from `since`


async def _server_sent_events(
    transport: Transport, request: ApiRequest
) -> AsyncGenerator[_ServerSentEvent, None]:
    fields: dict[str, str] = {}
    async with aclosing(transport.lines(request)) as lines:
        async for line in lines:
            if line:
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")
            elif "data" in fields:
                yield _ServerSentEvent(fields.get("event", ""), int(fields["id"]), fields["data"])
                fields = {}
            else:
                fields = {}
