"""Commands that work directly on a server's store, whether or not a server is running."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from phalanx.cli.settings import refuse
from phalanx.server.config import Config
from phalanx.store.protocol import Store, StoreError

T = TypeVar("T")


def with_store(config: Config, work: Callable[[Store], Awaitable[T]]) -> T:
    """Open the store, do the work, and close the store; errors end the command."""
    from phalanx.server import stores  # noqa: PLC0415

    place = stores.place_of(config)
    if place == "memory":
        refuse("the memory store ends with its process; pass another with --store")

    async def opened() -> T:
        store = stores.store_at(place, config["lease"])
        try:
            await store.open()
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(opened())
    except (StoreError, OSError) as error:
        refuse(f"{stores.shown(place)}: {error}")
