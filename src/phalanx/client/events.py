"""What happens, as it happens: the stream of a server, and the story of one job to its end."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import httpx
import msgspec

from phalanx.client.transport import ApiRequest, Transport, lines_of
from phalanx.wire.jobs import EventPage, RecordView

#: What a stream yields where some events were missed; the server calls it so.
RESYNC = "resync"
#: The record after which nothing of interest happens to a job.
JOB_ENDED = "JobEnded"

_PAGE = 1000
_decode_record = msgspec.json.Decoder(RecordView).decode
_decode_story = msgspec.json.Decoder(EventPage).decode


class _Event(NamedTuple):
    kind: str
    seq: int
    data: str


def pages(servers: Transport, path: str, after: int = 0) -> Iterator[RecordView]:
    """The story of a job as far as it goes now."""
    at: int | None = after
    while at is not None:
        params = {"after": at, "limit": _PAGE}
        story = _decode_story(servers.ask(ApiRequest("GET", path, params)).content)
        yield from story.events
        at = story.next


def story(servers: Transport, path: str, job: str) -> Iterator[RecordView]:
    """The story of a job, from its beginning to its end, as it happens."""
    last, has_ended = 0, False
    while not has_ended:
        for record in pages(servers, path, after=last):
            last, has_ended = record.seq, has_ended or record.kind == JOB_ENDED
            yield record
        if has_ended:
            return
        for record in stream(servers, since=last):
            if record.kind == RESYNC:
                break  # what was missed is in the story
            if record.job != job:
                continue
            last, has_ended = record.seq, record.kind == JOB_ENDED
            yield record
            if has_ended:
                return


def stream(servers: Transport, since: int | None = None) -> Iterator[RecordView]:
    """All that happens, without end: a connection that breaks is made anew."""
    while True:
        answer = servers.ask(ApiRequest("GET", "/events", {"since": since}, streamed=True))
        try:
            for event in _events(answer):
                since = event.seq
                if event.kind == RESYNC:
                    now = datetime.now(UTC).isoformat()
                    yield RecordView(seq=event.seq, at=now, kind=RESYNC)
                else:
                    yield _decode_record(event.data)
        except httpx.TransportError:
            pass  # the leader is gone, or the way to it; whoever leads next goes on from `since`
        finally:
            answer.close()


def _events(answer: httpx.Response) -> Iterator[_Event]:
    fields: dict[str, str] = {}
    for line in lines_of(answer):
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif "data" in fields:
            yield _Event(fields.get("event", ""), int(fields["id"]), fields["data"])
            fields = {}
        else:
            fields = {}
