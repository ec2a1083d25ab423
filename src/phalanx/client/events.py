"""Events: those of one job page by page or until it ends, and the stream of all events."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import msgspec

from phalanx.client.transport import ApiRequest, Transport, lines_of
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


def past_events(transport: Transport, path: str, after: int = 0) -> Iterator[Event]:
    """The events of a job so far, fetched page by page."""
    cursor: int | None = after
    while cursor is not None:
        params = {"after": cursor, "limit": _PAGE}
        page = _decode_page(transport.send(ApiRequest("GET", path, params)).content)
        yield from map(event_from, page.events)
        cursor = page.next


def followed_events(transport: Transport, path: str, job: str) -> Iterator[Event]:
    """The events of a job from its submission to its end, as they happen."""
    last, has_ended = 0, False
    while not has_ended:
        for event in past_events(transport, path, after=last):
            last, has_ended = event.seq, has_ended or isinstance(event, JobEnded)
            yield event
        if has_ended:
            return
        for event in stream(transport, since=last):
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


def stream(transport: Transport, since: int | None = None) -> Iterator[Event]:
    """All events, without end. A broken connection is opened again after the last event seen."""
    while True:
        response = transport.send(ApiRequest("GET", "/events", {"since": since}, streamed=True))
        try:
            for sent in _server_sent_events(response):
                since = sent.seq
                if sent.kind == _RESYNC:
                    yield Resync(seq=sent.seq, at=now_micros())
                else:
                    yield event_from(_decode_event(sent.data))
        except httpx.TransportError:
            pass  # the next leader continues from `since`
        finally:
            response.close()


def _server_sent_events(response: httpx.Response) -> Iterator[_ServerSentEvent]:
    fields: dict[str, str] = {}
    for line in lines_of(response):
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif "data" in fields:
            yield _ServerSentEvent(fields.get("event", ""), int(fields["id"]), fields["data"])
            fields = {}
        else:
            fields = {}
