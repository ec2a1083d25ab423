"""Commands that work directly on a server's store, whether or not a server is running."""

import asyncio
import getpass
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import uuid4

from phalanx.cli.settings import refuse
from phalanx.server.config import Config
from phalanx.store.protocol import AuditRecord, Store, StoreError
from phalanx.wire.times import now_micros

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


def audit_record(action: str, kind: str, target: str) -> AuditRecord:
    """The audit record of a change that this command makes directly in a database."""
    user = f"{getpass.getuser()}@{socket.gethostname()}"
    return AuditRecord(uuid4().hex, now_micros(), user, "store", "", action, kind, target=target)
