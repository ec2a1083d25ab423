"""One leader at a time: terms only increase, and only the latest term can write."""

import asyncio

import pytest

from phalanx.core.time_units import MINUTE
from phalanx.store.protocol import Batch, Deposed, Leader, Store
from tests.builders import a_finished_job, a_job, a_worker
from tests.compliance.backends import Backend, SQLiteBackend
from tests.compliance.conftest import LEASE


async def test_every_handle_sees_the_leader(store: Store, backend: Backend) -> None:
    other = backend.handle()
    await other.open()
    assert await other.leader() is None
    term = await store.lead("s-1", "http://s-1:7070", LEASE)
    assert term == 1
    assert await other.leader() == Leader(term=1, holder="s-1", url="http://s-1:7070")
    await other.close()


async def test_a_lease_in_force_is_not_taken_over_even_by_its_holder(
    store: Store, backend: Backend, term: int
) -> None:
    other = backend.handle()
    await other.open()
    await backend.advance_clock(LEASE - MINUTE)
    assert await other.lead("s-2", "http://s-2", LEASE) is None
    assert await other.lead("s-1", "http://s-1", LEASE) is None
    assert await store.lead("s-1", "http://s-1", LEASE) is None
    await store.renew(term, LEASE)
    await other.close()


async def test_an_expired_lease_is_taken_over(store: Store, backend: Backend, term: int) -> None:
    other = backend.handle()
    await other.open()
    await backend.die(store)
    await backend.advance_clock(LEASE)
    assert await other.leader() is None
    assert await other.lead("s-2", "http://s-2", LEASE) == term + 1
    assert await store.leader() == Leader(term + 1, "s-2", "http://s-2")
    await other.close()


async def test_an_expired_lease_is_taken_again_by_the_same_server(
    store: Store, backend: Backend, term: int
) -> None:
    await backend.advance_clock(LEASE)
    assert await store.lead("s-1", "http://s-1", LEASE) == term + 1
    with pytest.raises(Deposed):
        await store.commit(term, Batch("b-1"))


async def test_a_deposed_term_writes_nothing_even_when_it_wakes_up_late(
    store: Store, backend: Backend, term: int
) -> None:
    await store.commit(term, Batch("b-1", jobs=(a_finished_job("j-old", 5),)))
    other = backend.handle()
    await other.open()
    await backend.die(store)
    await backend.advance_clock(LEASE)
    later = await other.lead("s-2", "http://s-2", LEASE)
    assert later is not None
    await other.commit(later, Batch("b-2", jobs=(a_job("j-2"),)))

    with pytest.raises(Deposed, match=f"term {term}"):
        await store.commit(term, Batch("b-3", jobs=(a_job("j-3"),), workers=(a_worker(),)))
    with pytest.raises(Deposed):
        await store.renew(term, LEASE)
    with pytest.raises(Deposed):
        await store.load(term)
    with pytest.raises(Deposed):
        await store.prune(term, before=10, limit=10)
    # Not even when the later lease has run out as well.
    await backend.advance_clock(2 * LEASE)
    with pytest.raises(Deposed):
        await store.commit(term, Batch("b-3", jobs=(a_job("j-3"),), workers=(a_worker(),)))

    rows = await other.load(later)
    assert [job.id for job in rows.jobs] == ["j-2"]
    assert rows.workers == []
    assert not await other.has_batch("b-3")
    assert await other.job("j-old") is not None
    await other.commit(later, Batch("b-4"))
    await other.close()


async def test_a_term_that_was_never_given_writes_nothing(store: Store, term: int) -> None:
    with pytest.raises(Deposed):
        await store.commit(term + 1, Batch("b-1", jobs=(a_job(),)))
    assert not await store.has_batch("b-1")


async def test_a_resigned_leader_is_replaced_at_once(
    store: Store, backend: Backend, term: int
) -> None:
    other = backend.handle()
    await other.open()
    await store.resign(term)
    assert await store.leader() is None
    assert await other.lead("s-2", "http://s-2", LEASE) == term + 1
    await other.close()


async def test_a_deposed_leader_that_resigns_changes_nothing(
    store: Store, backend: Backend, term: int
) -> None:
    other = backend.handle()
    await other.open()
    await store.resign(term)
    later = await other.lead("s-2", "http://s-2", LEASE)
    await store.resign(term)
    assert await store.leader() == Leader(term + 1, "s-2", "http://s-2")
    assert later == term + 1
    await other.renew(later, LEASE)
    await other.close()


async def test_a_renewed_lease_counts_from_now(store: Store, backend: Backend, term: int) -> None:
    await backend.advance_clock(LEASE - MINUTE)
    await store.renew(term, LEASE)
    await backend.advance_clock(LEASE - MINUTE)
    assert await store.leader() is not None
    await backend.advance_clock(2 * MINUTE)
    assert await store.leader() is None


async def test_an_expired_lease_is_renewed_if_no_other_server_leads(
    store: Store, backend: Backend, term: int
) -> None:
    await backend.advance_clock(5 * LEASE)
    await store.commit(term, Batch("b-1"))
    await store.renew(term, LEASE)
    assert await store.leader() == Leader(term, "s-1", "http://s-1")


async def test_of_contenders_at_the_same_moment_one_leads_and_terms_only_grow(
    backend: Backend,
) -> None:
    handles = [backend.handle() for _ in range(6)]
    for handle in handles:
        await handle.open()
    for expected in range(1, 6):
        terms = await asyncio.gather(
            *(handle.lead(f"s-{n}", "", LEASE) for n, handle in enumerate(handles))
        )
        winners = [(handle, term) for handle, term in zip(handles, terms, strict=True) if term]
        assert [term for _, term in winners] == [expected]
        await winners[0][0].resign(expected)
    for handle in handles:
        await handle.close()


async def test_a_leader_that_commits_while_it_is_replaced_wins_or_writes_nothing(
    store: Store, backend: Backend, term: int
) -> None:
    other = backend.handle()
    await other.open()
    for n in range(10):
        await backend.die(store)
        await backend.advance_clock(LEASE)
        later, committed = await asyncio.gather(
            other.lead("s-2", "", LEASE),
            store.commit(term, Batch(f"b-{n}", workers=(a_worker(f"w-{n}"),))),
            return_exceptions=True,
        )
        assert isinstance(later, int)
        workers = {worker.id for worker in (await other.load(later)).workers}
        if isinstance(committed, Deposed):
            assert f"w-{n}" not in workers
        else:
            assert committed is None
            assert f"w-{n}" in workers
        store, other, term = other, store, later
    await other.close()


async def test_the_cluster_keeps_its_id(store: Store, backend: Backend, term: int) -> None:
    cluster = await store.cluster_id()
    assert len(cluster) == 32
    other = backend.handle()
    await other.open()
    assert await other.cluster_id() == cluster
    await other.close()


async def test_two_clusters_have_two_ids(
    memory_backend: Backend, sqlite_backend: Backend, postgres_backend: Backend
) -> None:
    ids = set()
    for backend in (memory_backend, sqlite_backend, postgres_backend):
        handle = backend.handle()
        await handle.open()
        ids.add(await handle.cluster_id())
        await handle.close()
    assert len(ids) == 3


async def test_a_clock_set_forward_does_not_make_a_second_leader_on_one_host(
    sqlite_backend: SQLiteBackend,
) -> None:
    first, second = sqlite_backend.handle(), sqlite_backend.handle()
    await first.open()
    await second.open()
    term = await first.lead("s-1", "", LEASE)
    assert term is not None
    await sqlite_backend.advance_clock(10 * LEASE)
    assert await second.lead("s-2", "", LEASE) is None
    await first.renew(term, LEASE)
    await first.close()
    await sqlite_backend.advance_clock(LEASE)
    assert await second.lead("s-2", "", LEASE) == term + 1
    await second.close()
