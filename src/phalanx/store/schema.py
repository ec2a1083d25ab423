"""Migrations: numbered SQL files that bring a database up to date.

A file is applied once, in one transaction with its number, under a lock of the database. A database
of a newer version, or whose files were others, is refused.
"""

import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import NamedTuple

from phalanx.store.protocol import SchemaTooNew, StoreUnreadable

_COMMENT = re.compile(r"--.*")


class Migration(NamedTuple):
    number: int
    name: str
    sql: str

    @property
    def label(self) -> str:
        """Its name, and the beginning of a digest of its statements."""
        words = " ".join(_COMMENT.sub("", self.sql).split())
        return f"{self.name} {sha256(words.encode()).hexdigest()[:12]}"


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


def next_migration(dialect: str, applied: Mapping[int, str]) -> Migration | None:
    """The migration that follows the applied ones, which are labels by number; None if there is
    none. Raises SchemaTooNew and StoreUnreadable."""
    known = migrations(dialect)
    present = max(applied, default=0)
    if present > len(known):
        raise SchemaTooNew(
            f"the store has schema {present}, but this version of Phalanx supports schemas up to"
            f" {len(known)}; upgrade Phalanx, or restore a backup that this version wrote"
        )
    if any(applied.get(each.number) != each.label for each in known[:present]):
        raise StoreUnreadable("its tables are not those of this version of Phalanx")
    return known[present] if present < len(known) else None
