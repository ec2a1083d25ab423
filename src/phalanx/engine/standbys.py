"""Standbys note in the store that they are there, for people to see."""

import asyncio
from contextlib import suppress

from phalanx.core.time_units import SECOND, Micros
from phalanx.engine.engine import Engine
from phalanx.engine.host import HostEnvironment
from phalanx.store.protocol import Note, Store, StoreError

_KIND = "standby"
_EVERY_S = 10.0
#: A standby that has noted nothing for this long is gone.
_SILENT: Micros = 25 * SECOND


async def current_standbys(store: Store, now: Micros) -> list[Note]:
    """By name; the text of each is its address. Raises StoreError."""
    return [note for note in await store.notes(_KIND) if now - note.at <= _SILENT]


async def keep_noting(engine: Engine, store: Store, host: HostEnvironment) -> None:
    """Note that this server is there, while it does not lead."""
    while True:
        if not engine.is_leading:
            with suppress(StoreError):
                await store.put_note(Note(_KIND, host.name, host.clock(), host.url))
                await store.remove_notes(_KIND, host.clock() - 10 * _SILENT)
        await asyncio.sleep(_EVERY_S)
