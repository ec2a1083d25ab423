"""The tokens of `phalanx up` on a server that requires tokens: for its workers, and for the user.

They are created in the database, and are in files that only the user can read.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from phalanx.cli.settings import refuse

if TYPE_CHECKING:
    from phalanx.identity.token_changes import TokenChanges
    from phalanx.identity.token_registry import TokenRegistry


class LocalTokens(NamedTuple):
    """The files with the tokens."""

    join: Path
    admin: Path


def required(store: str, host: str) -> bool:
    """Whether a server with this machine's settings requires tokens."""
    from phalanx.server.config import ConfigError, load  # noqa: PLC0415
    from phalanx.server.listening import is_open  # noqa: PLC0415

    try:
        return not is_open(load({"store": store, "host": host}))
    except ConfigError as error:
        refuse(*error.problems)


async def create(store: str, folder: Path) -> LocalTokens:
    """Create the tokens that are missing or have expired. Raises StoreError, OSError."""
    from phalanx.identity.token_changes import TokenChanges  # noqa: PLC0415
    from phalanx.identity.token_registry import TokenRegistry  # noqa: PLC0415
    from phalanx.server import stores  # noqa: PLC0415
    from phalanx.server.config import load  # noqa: PLC0415

    config = load({"store": store})
    database = stores.store_at(stores.place_of(config), config["lease"])
    try:
        await database.open()
        registry = TokenRegistry(database, open_on_loopback=False)
        await registry.refresh()
        authority = TokenChanges(database, registry)
        return LocalTokens(
            await _ensure(authority, registry, "join", folder / "join.token"),
            await _ensure(authority, registry, "admin", folder / "admin.token"),
        )
    finally:
        await database.close()


async def _ensure(
    authority: "TokenChanges", registry: "TokenRegistry", role: str, file: Path
) -> Path:
    """The file, with a token that is valid."""
    from phalanx.identity.principal import Unauthorised  # noqa: PLC0415
    from phalanx.identity.tokens import TokenRequest  # noqa: PLC0415

    if file.exists():
        try:
            await registry.principal(file.read_text().strip(), loopback=False)
        except Unauthorised:
            pass
        else:
            return file
    name = f"up-{role}"
    if registry.named(name) is not None:
        await authority.revoke(name)
    created = await authority.create(TokenRequest(name=name, role=role))
    file.unlink(missing_ok=True)
    opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(opened, "w") as content:
        content.write(created.secret + "\n")
    return file
