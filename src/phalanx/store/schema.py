"""The numbered SQL files that bring a database up to date, and the refusal of a newer one.

A file is applied once, in one transaction with its number, under a lock that each dialect takes.
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
    """Those of `migrations/<dialect>/`, in order; a file is named `0001_what_it_does.sql`."""
    folder = resources.files("phalanx.store") / "migrations" / dialect
    found = sorted(
        Migration(int(file.name.partition("_")[0]), file.name, file.read_text("utf-8"))
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    )
    numbers = [migration.number for migration in found]
    if numbers != list(range(1, len(found) + 1)):
        raise RuntimeError(f"bug: the {dialect} migrations are numbered {numbers}")
    return tuple(found)


def next_migration(dialect: str, present: int) -> Migration | None:
    """What follows the schema that is there. Raises SchemaTooNew."""
    known = migrations(dialect)
    if present > len(known):
        raise SchemaTooNew(
            f"the store has schema {present} and this Phalanx knows schemas up to {len(known)}; "
            "upgrade Phalanx, or restore a backup from before the store was upgraded"
        )
    return known[present] if present < len(known) else None
