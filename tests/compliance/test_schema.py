"""A store is brought up to date once, and one from the future is left alone."""

import asyncio

import pytest

from phalanx.store.protocol import SchemaTooNew, Store
from phalanx.store.schema import migrations
from tests.compliance.backends import Place, PlaceWithSchema

NUMBERS = [each.number for each in migrations("sqlite")]


async def test_a_store_from_the_future_is_refused(
    place_with_schema: PlaceWithSchema,
) -> None:
    await place_with_schema.pretend_schema(99)
    store = place_with_schema.handle()
    known = len(migrations("sqlite"))
    with pytest.raises(SchemaTooNew, match=rf"schema 99 .* up to {known}; upgrade Phalanx"):
        await store.open()
    await store.close()


async def test_migrations_run_once_when_many_open_at_the_same_time(
    place_with_schema: PlaceWithSchema,
) -> None:
    handles = [place_with_schema.handle() for _ in range(5)]
    await asyncio.gather(*(handle.open() for handle in handles))
    assert len({await handle.cluster_id() for handle in handles}) == 1
    for handle in handles:
        await handle.close()
    assert await place_with_schema.schema_numbers() == NUMBERS


async def test_opening_again_changes_nothing(place_with_schema: PlaceWithSchema) -> None:
    clusters = []
    for _ in range(2):
        handle = place_with_schema.handle()
        await handle.open()
        clusters.append(await handle.cluster_id())
        await handle.close()
    assert clusters[0] == clusters[1]
    assert await place_with_schema.schema_numbers() == NUMBERS


async def test_closing_twice_or_unopened_is_harmless(store: Store, place: Place) -> None:
    await place.handle().close()
    await store.close()


def test_every_dialect_has_the_same_migrations() -> None:
    names = [[each.name for each in migrations(dialect)] for dialect in ("sqlite", "postgres")]
    assert names[0] == names[1]
