"""Whose a token is, and how soon a change is noticed."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from tests.driver import spec

from phalanx.core.errors import Conflict, Invalid
from phalanx.core.time_units import HOUR
from phalanx.identity.principal import Principal, Unauthorised
from phalanx.identity.token_changes import TokenChanges
from phalanx.identity.token_registry import TokenRegistry
from phalanx.identity.tokens import NewToken, TokenRequest, digest, new_token
from phalanx.sim.loop import run_virtually
from phalanx.store.memory import MemoryStore
from phalanx.store.protocol import StoreError, Token


def a_token(name: str, role: str, *namespaces: str) -> NewToken:
    return new_token(TokenRequest(name=name, role=role, namespaces=namespaces), 0)


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__(clock=lambda: 0)
        self.asked = 0
        self.is_away = False

    async def tokens_version(self) -> int:
        self.asked += 1
        if self.is_away:
            raise StoreError("away")
        return await super().tokens_version()


def test_a_token_has_256_random_bits_and_only_its_digest_is_stored() -> None:
    created, other = (a_token("ada", "user", "ml") for _ in range(2))
    assert created.secret != other.secret
    assert len(created.secret) == len("phx_") + 43
    assert created.token == Token(
        "ada", "user", digest(created.secret), created.secret[:10], 0, ("ml",), id=created.token.id
    )
    assert created.token.id != other.token.id
    assert created.secret not in repr(created.token)


def test_without_a_token_only_loopback_is_let_in_and_only_if_it_is_open() -> None:
    async def story() -> None:
        store = CountingStore()
        open_registry = TokenRegistry(store, open_on_loopback=True)
        closed_registry = TokenRegistry(store, open_on_loopback=False)
        assert (await open_registry.principal(None, loopback=True)).role == "admin"
        for registry, loopback in (
            (open_registry, False),
            (closed_registry, True),
            (closed_registry, False),
        ):
            with pytest.raises(Unauthorised, match="a token is required"):
                await registry.principal(None, loopback=loopback)

    run_virtually(story())


def test_an_unknown_token_is_refused_even_where_none_is_required() -> None:
    async def story() -> None:
        registry = TokenRegistry(CountingStore(), open_on_loopback=True)
        with pytest.raises(Unauthorised, match="the token is unknown"):
            await registry.principal("phx_wrong", loopback=True)

    run_virtually(story())


def test_a_new_token_is_valid_at_once_and_a_revoked_one_is_refused_soon() -> None:
    async def story() -> None:
        store = CountingStore()
        registry = TokenRegistry(store, open_on_loopback=False)
        refreshing = asyncio.create_task(registry.keep_refreshing())
        created = a_token("ada", "user", "ml")
        await store.add_token(created.token)
        principal = await registry.principal(created.secret, loopback=False)
        assert (principal.name, principal.role, principal.namespaces) == ("ada", "user", ("ml",))
        await store.remove_token("ada")
        await _pass(3)
        with pytest.raises(Unauthorised):
            await registry.principal(created.secret, loopback=False)
        refreshing.cancel()

    run_virtually(story())


def test_guessed_tokens_do_not_load_the_store() -> None:
    async def story() -> None:
        store = CountingStore()
        registry = TokenRegistry(store, open_on_loopback=False)
        guesses = (registry.principal(f"phx_{number}", loopback=False) for number in range(1000))
        answers = await asyncio.gather(*guesses, return_exceptions=True)
        assert {type(answer) for answer in answers} == {Unauthorised}
        assert store.asked == 1

    run_virtually(story())


def test_known_tokens_stay_valid_while_the_store_does_not_answer() -> None:
    async def story() -> None:
        store = CountingStore()
        created = a_token("ada", "admin")
        await store.add_token(created.token)
        registry = TokenRegistry(store, open_on_loopback=False)
        await registry.refresh()
        refreshing = asyncio.create_task(registry.keep_refreshing())
        store.is_away = True
        await _pass(60)
        assert (await registry.principal(created.secret, loopback=False)).role == "admin"
        with pytest.raises(Unauthorised):
            await registry.principal("phx_wrong", loopback=False)
        refreshing.cancel()

    run_virtually(story())


def test_a_token_with_an_unknown_role_is_refused() -> None:
    async def story() -> None:
        store = CountingStore()
        created = a_token("ada", "admin")
        await store.add_token(replace(created.token, role="emperor"))
        registry = TokenRegistry(store, open_on_loopback=True)
        with pytest.raises(Unauthorised, match="emperor"):
            await registry.principal(created.secret, loopback=True)

    run_virtually(story())


async def _pass(seconds: float) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()


def test_an_owner_without_a_token_or_without_access_is_refused() -> None:
    async def story() -> None:
        store = CountingStore()
        for name, role, namespaces in (("ada", "user", ("ml",)), ("root", "admin", ())):
            await store.add_token(a_token(name, role, *namespaces).token)
        registry = TokenRegistry(store, open_on_loopback=False)
        await registry.refresh()
        here, there = spec(namespace="ml"), spec(namespace="lab")
        assert registry.refusal(here, "ada") is None
        assert registry.refusal(there, "root") is None
        assert "may not use namespace lab" in (registry.refusal(there, "ada") or "")
        tied = spec(namespace="ml", group=("lab/other",))
        assert "may not use namespace lab" in (registry.refusal(tied, "ada") or "")
        assert registry.refusal(here, "bob") == "bob has no token any more"
        assert registry.refusal(here, "local") == "local has no token any more"
        assert TokenRegistry(store, open_on_loopback=True).refusal(here, "local") is None
        await store.remove_token("ada")
        await registry.refresh()
        assert registry.refusal(here, "ada") == "ada has no token any more"

    run_virtually(story())


def test_an_expired_token_is_refused_without_a_read_of_the_store() -> None:
    async def story() -> None:
        store, now = CountingStore(), [0]
        request = TokenRequest(name="ada", role="admin", lifetime=10)
        created = new_token(request, 0)
        await store.add_token(created.token)
        registry = TokenRegistry(store, open_on_loopback=False, clock=lambda: now[0])
        assert (await registry.principal(created.secret, loopback=False)).name == "ada"
        asked, now[0] = store.asked, 10
        with pytest.raises(Unauthorised, match="token ada expired at 1970-01-01 00:00:"):
            await registry.principal(created.secret, loopback=False)
        assert store.asked == asked

    run_virtually(story())


def test_tokens_are_read_again_only_when_they_have_changed() -> None:
    class Reads(CountingStore):
        reads = 0

        async def tokens(self) -> tuple[Token, ...]:
            self.reads += 1
            return await super().tokens()

    async def story() -> None:
        store = Reads()
        registry = TokenRegistry(store, open_on_loopback=False)
        for _ in range(5):
            await registry.refresh()
        assert (store.asked, store.reads) == (5, 1)
        await store.add_token(a_token("ada", "admin").token)
        await registry.refresh()
        assert store.reads == 2
        # Its own changes are known; they hide no others.
        authority = TokenChanges(store, registry)
        await authority.create(TokenRequest(name="bob", role="admin"))
        await registry.refresh()
        assert store.reads == 2
        await store.remove_token("ada")
        await authority.create(TokenRequest(name="eve", role="admin"))
        await registry.refresh()
        assert store.reads == 3
        assert [registry.named(name) is None for name in ("ada", "bob", "eve")] == [1, 0, 0]

    run_virtually(story())


def test_a_change_of_this_server_does_not_undo_a_later_one_of_another() -> None:
    async def story() -> None:
        store = CountingStore()
        registry = TokenRegistry(store, open_on_loopback=False)
        created = a_token("ada", "admin")
        version = await store.add_token(created.token)
        assert version is not None
        await store.remove_token("ada")  # by another server, and read before `put` had its turn
        await registry.refresh()
        registry.put(created.token, version)
        assert registry.named("ada") is None

    run_virtually(story())


def test_the_last_use_of_a_token_is_stored_once_an_hour() -> None:
    async def story() -> None:
        store, now = CountingStore(), [0]
        created = a_token("ada", "admin")
        await store.add_token(created.token)
        registry = TokenRegistry(store, open_on_loopback=False, clock=lambda: now[0])
        refreshing = asyncio.create_task(registry.keep_refreshing())
        for at, stored in ((HOUR, HOUR), (HOUR + 1, HOUR), (2 * HOUR, 2 * HOUR)):
            now[0] = at
            await registry.principal(created.secret, loopback=False)
            await _pass(3)
            assert await store.token_uses() == {"ada": stored}
        refreshing.cancel()

    run_virtually(story())


def test_a_join_token_expires_after_a_day_unless_asked_otherwise() -> None:
    def expiry(**fields: Any) -> int | None:
        return new_token(TokenRequest(name="x", **fields), 5).token.expires_at

    assert expiry(role="join") == 24 * HOUR + 5
    assert expiry(role="join", lifetime=7) == 12
    assert expiry(role="admin") is None


def test_a_name_can_be_joined_again_only_after_its_credential_was_revoked() -> None:
    async def story() -> None:
        store, now = CountingStore(), [0]
        # Two servers on one database: the second has not noticed what the first has done.
        registries = [
            TokenRegistry(store, open_on_loopback=False, clock=lambda: now[0]) for _ in range(2)
        ]
        first, second = (TokenChanges(store, each, lambda: now[0]) for each in registries)
        by = Principal("join", "join", workers="*")
        await first.join(by, "w", "1" * 64)
        with pytest.raises(Conflict, match="phalanx token revoke worker:w"):
            await second.join(by, "w", "2" * 64)
        await first.revoke("worker:w")
        await second.join(by, "w", "2" * 64)
        with pytest.raises(Conflict):
            await first.join(by, "w", "3" * 64)
        await first.revoke("worker:w")
        now[0] = 31 * 24 * HOUR
        await first.join(by, "v", "4" * 64)
        await first.revoke("worker:v")
        assert [token.name for token in await store.tokens()] == ["worker:v"]

    run_virtually(story())


@pytest.mark.parametrize("namespace", ["a\x1b[31m", "A b", "", "ml*"])
def test_a_namespace_of_a_token_is_a_valid_name_or_every(namespace: str) -> None:
    with pytest.raises(Invalid) as caught:
        a_token("ada", "user", "ml", namespace)
    assert [problem.path for problem in caught.value.problems] == ["namespaces[1]"]
    assert a_token("ada", "user", "ml", "*").token.namespaces == ("ml", "*")
