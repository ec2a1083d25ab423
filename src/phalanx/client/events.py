"""Events: those of one job page by page or until it ends, and the stream of all events."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import httpx
import msgspec

from phalanx.client.transport import ApiRequest, Transport, lines_of
from phalanx.wire.jobs import EventPage, RecordView

#: The kind that a stream yields where it missed events; the server uses the same name.
RESYNC = "resync"
#: The last event of a job.
JOB_ENDED = "JobEnded"

_PAGE = 1000
_decode_record = msgspec.json.Decoder(RecordView).decode
_decode_page = msgspec.json.Decoder(EventPage).decode


class _ServerSentEvent(NamedTuple):
    kind: str
    seq: int
    data: str


def past_events(transport: Transport, path: str, after: int = 0) -> Iterator[RecordView]:
    """The events of a job so far, fetched page by page."""
    cursor: int | None = after
    while cursor is not None:
        params = {"after": cursor, "limit": _PAGE}
        page = _decode_page(transport.send(ApiRequest("GET", path, params)).content)
        yield from page.events
        cursor = page.next


def followed_events(transport: Transport, path: str, job: str) -> Iterator[RecordView]:
    """The events of a job from its submission to its end, as they happen."""
    last, has_ended = 0, False
    while not has_ended:
        for record in past_events(transport, path, after=last):
            last, has_ended = record.seq, has_ended or record.kind == JOB_ENDED
            yield record
        if has_ended:
            return
        for record in stream(transport, since=last):
            if record.kind == RESYNC:
                break  # fetch the missed events page by page
            if record.job != job:
                continue
            last, has_ended = record.seq, record.kind == JOB_ENDED
            yield record
            if has_ended:
                return


def stream(transport: Transport, since: int | None = None) -> Iterator[RecordView]:
    """All events, without end. A broken connection is opened again after the last event seen."""
    while True:
        response = transport.send(ApiRequest("GET", "/events", {"since": since}, streamed=True))
        try:
            for event in _server_sent_events(response):
                since = event.seq
                if event.kind == RESYNC:
                    now = datetime.now(UTC).isoformat()
                    yield RecordView(seq=event.seq, at=now, kind=RESYNC)
                else:
                    yield _decode_record(event.data)
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
