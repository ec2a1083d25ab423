"""Standbys note in the store that they are there, for people to see."""

import asyncio
from contextlib import suppress
from typing import NamedTuple

from phalanx.core.time_units import SECOND, Micros
from phalanx.engine.engine import Engine
from phalanx.engine.host import HostEnvironment
from phalanx.store.protocol import Note, Store, StoreError

_KIND = "standby"
_EVERY_S = 5.0
#: A standby that has noted nothing for so long is silent, and after a while it is gone.
_SILENT: Micros = 8 * SECOND
_GONE: Micros = 30 * SECOND


class Standby(NamedTuple):
    name: str
    url: str
    silent: Micros | None  #: how long nothing was heard from it; None if it was heard in time


async def current_standbys(store: Store, now: Micros) -> list[Standby]:
    """By name. Raises StoreError."""
    standbys: list[Standby] = []
    for note in await store.notes(_KIND):
        age = now - note.at
        if age <= _GONE:
            standbys.append(Standby(note.name, note.doc, age if age > _SILENT else None))
    return standbys


async def keep_noting(engine: Engine, store: Store, host: HostEnvironment) -> None:
    """Note that this server is there, while it does not lead."""
    while True:
        if not engine.is_leading:
            with suppress(StoreError):
                await store.put_note(Note(_KIND, host.name, host.clock(), host.url))
                await store.remove_notes(_KIND, host.clock() - 10 * _GONE)
        await asyncio.sleep(_EVERY_S)
