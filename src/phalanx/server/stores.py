"""The store that a setting names: `memory`, `sqlite:PATH` or `postgres://…`."""

import os
import re
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from phalanx.host.clock import wall_clock
from phalanx.server.config import Config, state_directory
from phalanx.store.memory import MemoryStore
from phalanx.store.protocol import Store, StoreError
from phalanx.store.sqlite import SQLiteStore


def place_of(config: Config) -> str:
    """The name of the store, with the default if none is set."""
    named: str | None = config["store"]
    return named or f"sqlite:{state_directory(os.environ) / 'phalanx.db'}"


def shown(place: str) -> str:
    """The name without its password, for logs and messages."""
    if not place.startswith("postgres"):
        return place
    url = urlsplit(place)
    user, at, host = url.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    netloc = f"{name}:…@{host}" if colon else f"{user}{at}{host}"
    query = re.sub(r"((?:^|&)password=)[^&]*", r"\1…", url.query)
    return urlunsplit(url._replace(netloc=netloc, query=query))


def store_at(place: str, lease_s: float) -> Store:
    """The store, not open yet. Creates the default directory, and no other; raises StoreError."""
    if place == "memory":
        return MemoryStore(clock=wall_clock)
    kind, _, rest = place.partition(":")
    if kind == "sqlite":
        path = Path(rest).expanduser().absolute()
        _require_directory(path.parent)
        return SQLiteStore(path)
    # Only servers with PostgreSQL need its driver.
    from phalanx.store.postgres import PostgresStore  # noqa: PLC0415

    # A commit must time out while enough lease is left to look up its outcome.
    return PostgresStore(place, timeout_s=lease_s / 2)


def _require_directory(folder: Path) -> None:
    """Raise StoreError without the directory: its name may be mistyped."""
    if folder == state_directory(os.environ):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the directory {folder} cannot be created:"
                f" {error.strerror or type(error).__name__}; choose another with --store"
            ) from error
    elif not folder.is_dir():
        raise StoreError(
            f"there is no directory {folder}; create it with `mkdir -p -m 700 {folder}`, or correct"
            " --store"
        )
