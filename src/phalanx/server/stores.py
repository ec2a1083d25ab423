"""From the name of a store to a store: `memory`, `sqlite:PATH`, `postgres://…`."""

import os
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from phalanx.server.config import Config, state_directory
from phalanx.store.memory import MemoryStore
from phalanx.store.protocol import Store, StoreError
from phalanx.store.sqlite import SQLiteStore, wall_clock


def place_of(config: Config) -> str:
    """The store's name with nothing left to guess."""
    named: str | None = config["store"]
    return named or f"sqlite:{state_directory(os.environ) / 'phalanx.db'}"


def shown(place: str) -> str:
    """The name without a password, for logs and people."""
    if not place.startswith("postgres"):
        return place
    url = urlsplit(place)
    user, at, host = url.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    netloc = f"{name}:…@{host}" if colon else f"{user}{at}{host}"
    return urlunsplit(url._replace(netloc=netloc))


def store_at(place: str, lease_s: float) -> Store:
    """Not yet open. Makes the directory of a SQLite file; raises StoreError if it cannot."""
    if place == "memory":
        return MemoryStore(clock=wall_clock)
    kind, _, rest = place.partition(":")
    if kind == "sqlite":
        path = Path(rest).expanduser().absolute()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"{path.parent} cannot be made a directory: {error.strerror or error}; name another"
                " place"
            ) from error
        return SQLiteStore(path)
    # Only whoever uses PostgreSQL needs its driver.
    from phalanx.store.postgres import PostgresStore  # noqa: PLC0415

    # A commit has to be given up while there is lease left to look for its outcome.
    return PostgresStore(place, timeout_s=lease_s / 2)
