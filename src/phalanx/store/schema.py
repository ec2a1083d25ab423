"""Migrations: numbered SQL files that bring a database up to date.

A file is applied once, in one transaction with its number, under a lock of the database. A database
of a newer version is refused.
"""

from functools import cache
from importlib import resources
from typing import NamedTuple

from phalanx.store.protocol import SchemaTooNew


class Migration(NamedTuple):
    number: int
    name: str
    sql: str


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """The files of `migrations/<dialect>/` in order, named like `0001_initial.sql`."""
    folder = resources.files("phalanx.store") / "migrations" / dialect
    files = sorted(
        Migration(int(file.name.partition("_")[0]), file.name, file.read_text("utf-8"))
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    )
    numbers = [migration.number for migration in files]
    if numbers != list(range(1, len(files) + 1)):
        raise RuntimeError(f"bug: the {dialect} migrations are numbered {numbers}")
    return tuple(files)


def next_migration(dialect: str, present: int) -> Migration | None:
    """The migration that follows the present schema; None if it is current. Raises SchemaTooNew."""
    known = migrations(dialect)
    if present > len(known):
        raise SchemaTooNew(
            f"the store has schema {present}, but this version of Phalanx supports schemas up to"
            f" {len(known)}; upgrade Phalanx, or restore a backup that this version wrote"
        )
    return known[present] if present < len(known) else None
