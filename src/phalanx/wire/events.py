"""Events as they go over the wire: records with their times as ISO 8601 strings.

A stream has two further kinds of its own: `resync` where events were missed, and, for a client that
is older than its server, events of kinds that it does not know.
"""

from functools import cache
from typing import Any, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from phalanx.core.records import MOMENT, Record, RecordBase
from phalanx.wire.times import iso_time, micros


class Resync(RecordBase, frozen=True, tag="resync"):
    """Some events were missed: load again what you show, and go on reading."""


class UnknownEvent(RecordBase, frozen=True, tag="unknown"):
    """An event of a kind that this client does not know, with its fields as they came."""

    name: str  #: the kind
    fields: dict[str, Any]


#: What a client is given.
Event: TypeAlias = Record | Resync | UnknownEvent


class EventPage(msgspec.Struct, frozen=True):
    events: tuple[Record, ...]
    messages: tuple[str, ...]  #: the events in words, in the same order
    next: int | None  #: the `after` of the next page; null on the last one


@cache
def time_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Names of the fields that hold a point in time."""
    fields = msgspec.structs.fields(kind)
    return tuple(field.name for field in fields if MOMENT in get_args(field.type))


def with_iso_times(record: RecordBase) -> Any:
    """The record as JSON has it. Its times are strings, whatever their declared type."""
    times = {name: iso_time(getattr(record, name)) for name in time_fields(type(record))}
    return replace(record, **times)


_BY_KIND: dict[str, type[Record]] = {kind.__name__: kind for kind in get_args(Record)}


def event_from(fields: dict[str, Any]) -> Event:
    """An event from its JSON."""
    kind = _BY_KIND.get(fields.get("kind", ""))
    return _unknown(fields) if kind is None else _known(kind, fields)


def _known(kind: type[Record], fields: dict[str, Any]) -> Event:
    times = {name: micros(fields[name]) for name in time_fields(kind) if name in fields}
    try:
        return msgspec.convert(fields | times, kind)
    except msgspec.ValidationError:
        return _unknown(fields)


def _unknown(fields: dict[str, Any]) -> UnknownEvent:
    rest = {key: value for key, value in fields.items() if key not in ("kind", "seq", "at")}
    seq, at = fields.get("seq", 0), fields.get("at")
    return UnknownEvent(fields.get("kind", ""), rest, seq=seq, at=0 if at is None else micros(at))
