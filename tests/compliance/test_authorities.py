"""Certificate authorities have unique numbers, and need no leader."""

import asyncio

from phalanx.store.protocol import Store, StoredAuthority
from tests.compliance.backends import Backend


async def test_authorities_are_listed_by_number_and_can_be_removed(store: Store) -> None:
    assert await store.authorities() == ()
    second, first = StoredAuthority(2, "c2", "k2", "x2"), StoredAuthority(1, "c1", "k1")
    assert await store.add_authority(second)
    assert await store.add_authority(first)
    assert await store.authorities() == (first, second)
    assert await store.remove_authority(1)
    assert not await store.remove_authority(1)
    assert await store.authorities() == (second,)


async def test_of_two_servers_that_create_the_first_authority_one_is_refused(
    store: Store, backend: Backend
) -> None:
    other = backend.handle()
    await other.open()
    added = await asyncio.gather(
        store.add_authority(StoredAuthority(1, "a", "k")),
        other.add_authority(StoredAuthority(1, "b", "k")),
    )
    assert sorted(added) == [False, True]
    assert await store.authorities() == await other.authorities()
    await other.close()
