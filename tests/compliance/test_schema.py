"""Migrations run once, and a store with a newer schema is refused."""

import asyncio

import pytest

from phalanx.store import schema
from phalanx.store.protocol import Batch, SchemaTooNew, Store, StoreError, StoreUnreadable
from phalanx.store.schema import migrations
from tests.builders import a_job
from tests.compliance.backends import Backend, BackendWithSchema

NUMBERS = [each.number for each in migrations("sqlite")]


async def test_a_store_with_a_newer_schema_is_refused(
    backend_with_schema: BackendWithSchema,
) -> None:
    await backend_with_schema.add_schema_number(99)
    store = backend_with_schema.handle()
    known = len(migrations("sqlite"))
    with pytest.raises(SchemaTooNew, match=rf"schema 99, .* up to {known}; upgrade Phalanx"):
        await store.open()
    await store.close()


async def test_a_store_with_other_tables_is_refused(
    backend_with_schema: BackendWithSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = backend_with_schema.handle()
    await store.open()
    await store.close()

    def changed(dialect: str) -> tuple[schema.Migration, ...]:
        first, *others = migrations(dialect)
        return (first._replace(sql=f"{first.sql}\nCREATE TABLE later (id BIGINT);"), *others)

    monkeypatch.setattr(schema, "migrations", changed)
    store = backend_with_schema.handle()
    with pytest.raises(StoreUnreadable, match="another version of Phalanx wrote this database"):
        await store.open()
    await store.close()


async def test_migrations_run_once_when_several_servers_open_the_store(
    backend_with_schema: BackendWithSchema,
) -> None:
    handles = [backend_with_schema.handle() for _ in range(5)]
    await asyncio.gather(*(handle.open() for handle in handles))
    assert len({await handle.cluster_id() for handle in handles}) == 1
    for handle in handles:
        await handle.close()
    assert await backend_with_schema.schema_numbers() == NUMBERS


async def test_opening_again_changes_nothing(backend_with_schema: BackendWithSchema) -> None:
    clusters = []
    for _ in range(2):
        handle = backend_with_schema.handle()
        await handle.open()
        clusters.append(await handle.cluster_id())
        await handle.close()
    assert clusters[0] == clusters[1]
    assert await backend_with_schema.schema_numbers() == NUMBERS


async def test_a_store_of_an_older_version_is_brought_up_to_date(
    backend_with_schema: BackendWithSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = backend_with_schema.handle()
    await handle.open()
    term = await handle.lead("s-1", "", 0)
    assert term is not None
    await handle.commit(term, Batch("b-1", jobs=(a_job(),)))
    await handle.close()

    _add_migrations(monkeypatch, "CREATE TABLE more (n bigint);", "INSERT INTO more VALUES (1);")
    handle = backend_with_schema.handle()
    await handle.open()
    assert await handle.job("j-1") == (a_job(), ())
    await handle.close()
    assert await backend_with_schema.schema_numbers() == [*NUMBERS, 2, 3]


async def test_a_migration_that_fails_leaves_nothing_behind(
    backend_with_schema: BackendWithSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = "CREATE TABLE more (n bigint);\n"
    _add_migrations(monkeypatch, table + "INSERT INTO missing VALUES (1);")  # noqa: S608
    handle = backend_with_schema.handle()
    with pytest.raises(StoreError, match="missing"):
        await handle.open()
    await handle.close()
    assert await backend_with_schema.schema_numbers() == NUMBERS

    _add_migrations(monkeypatch, table)
    handle = backend_with_schema.handle()
    await handle.open()
    await handle.close()
    assert await backend_with_schema.schema_numbers() == [*NUMBERS, 2]


def _add_migrations(patch: pytest.MonkeyPatch, *scripts: str) -> None:
    def more(dialect: str) -> tuple[schema.Migration, ...]:
        new = (schema.Migration(n, f"000{n}_new.sql", sql) for n, sql in enumerate(scripts, 2))
        return (*migrations(dialect), *new)

    patch.setattr(schema, "migrations", more)


async def test_closing_twice_or_unopened_is_harmless(store: Store, backend: Backend) -> None:
    await backend.handle().close()
    await store.close()


def test_every_dialect_has_the_same_migrations() -> None:
    names = [[each.name for each in migrations(dialect)] for dialect in ("sqlite", "postgres")]
    assert names[0] == names[1]
