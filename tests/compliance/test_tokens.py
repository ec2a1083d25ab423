"""Tokens have unique names, and need no leader."""

import asyncio

from msgspec.structs import replace

from phalanx.store.protocol import Store, Token
from tests.compliance.backends import Backend


def a_token(name: str, digest: str = "0" * 64) -> Token:
    return Token(name, "user", digest, "phx_abcd", created_at=1, namespaces=("ml", "team-*"))


async def test_a_new_store_has_no_tokens(store: Store) -> None:
    assert await store.tokens() == ()


async def test_tokens_are_listed_by_name(store: Store) -> None:
    tokens = [a_token("zoë"), a_token("ada"), a_token("a\0b\\c" * 100)]
    for token in tokens:
        assert await store.add_token(token)
    assert sorted(await store.tokens(), key=lambda t: t.name) == sorted(
        tokens, key=lambda t: t.name
    )
    assert [token.name for token in await store.tokens()][-2:] == ["ada", "zoë"]


async def test_a_token_with_a_taken_name_is_refused_and_the_first_one_stays(store: Store) -> None:
    assert await store.add_token(a_token("ada", "1" * 64))
    assert not await store.add_token(a_token("ada", "2" * 64))
    assert [token.digest for token in await store.tokens()] == ["1" * 64]


async def test_the_name_of_a_removed_token_is_free_again(store: Store) -> None:
    assert await store.add_token(a_token("ada"))
    assert await store.remove_token("ada")
    assert not await store.remove_token("ada")
    assert await store.tokens() == ()
    assert await store.add_token(a_token("ada", "2" * 64))


async def test_a_token_is_replaced_only_if_it_is_as_expected(store: Store) -> None:
    before = a_token("ada", "1" * 64)
    after = replace(before, next_digest="2" * 64)
    assert not await store.replace_token(before, after)
    assert await store.add_token(before)
    done = await asyncio.gather(*(store.replace_token(before, after) for _ in range(3)))
    assert sorted(map(bool, done)) == [False, False, True]
    assert await store.tokens() == (after,)


async def test_the_version_grows_with_every_change_of_the_tokens(
    store: Store, backend: Backend
) -> None:
    other = backend.handle()
    await other.open()
    versions = [await other.tokens_version()]
    token = a_token("ada")
    for change in (
        store.add_token(token),
        store.replace_token(token, replace(token, workers="w-1")),
        store.remove_token("ada"),
    ):
        assert await change == versions[-1] + 1
        versions.append(await other.tokens_version())
    assert versions == [0, 1, 2, 3]
    assert await store.remove_token("ada") is None
    assert await other.tokens_version() == 3
    await other.close()


async def test_uses_of_tokens_are_kept_without_a_change_of_the_version(store: Store) -> None:
    for name in ("ada", "bob"):
        await store.add_token(a_token(name))
    version = await store.tokens_version()
    await store.note_token_uses({"ada": 5, "nobody": 6})
    await store.note_token_uses({"ada": 7})
    assert await store.token_uses() == {"ada": 7}
    assert await store.tokens_version() == version
    await store.remove_token("ada")
    assert await store.token_uses() == {}


async def test_other_handles_see_a_new_token_at_once_while_a_server_leads(
    store: Store, term: int, backend: Backend
) -> None:
    other = backend.handle()
    await other.open()
    assert await other.add_token(a_token("ada"))
    assert [token.name for token in await store.tokens()] == ["ada"]
    assert await store.remove_token("ada")
    assert await other.tokens() == ()
    await store.renew(term, 10_000_000)
    await other.close()


async def test_of_two_concurrent_tokens_with_one_name_one_is_refused(
    store: Store, backend: Backend
) -> None:
    other = backend.handle()
    await other.open()
    added = await asyncio.gather(
        store.add_token(a_token("ada", "1" * 64)), other.add_token(a_token("ada", "2" * 64))
    )
    assert sorted(map(bool, added)) == [False, True]
    await other.close()
