"""Task output: stored by offset, trimmed at the front, removed with its job."""

import pytest

from phalanx.store.protocol import Batch, Deposed, OutputChunk, OutputEnd, OutputTrim, Store
from tests.builders import a_finished_job, a_job
from tests.compliance.backends import Backend
from tests.compliance.conftest import LEASE

ALL = 2**62


def chunk(
    offset: int, data: bytes, *, task: int = 0, epoch: int = 1, job: str = "j-1"
) -> OutputChunk:
    return OutputChunk(job, task, epoch, offset, data)


@pytest.fixture
async def there(store: Store, term: int) -> int:
    """A job that chunks can be of."""
    await store.commit(term, Batch("b-1", jobs=(a_job("j-1"),)))
    return term


async def read(store: Store, offset: int = 0, length: int = ALL, **of: int) -> list[OutputChunk]:
    found = await store.output(
        "j-1", of.get("task", 0), of.get("epoch", 1), offset=offset, length=length
    )
    return list(found)


async def test_chunks_come_back_in_order_and_bit_for_bit(store: Store, there: int) -> None:
    chunks = [chunk(0, bytes(range(256))), chunk(256, b"\x00\xff"), chunk(258, b"end")]
    for each in reversed(chunks):
        await store.put_output(there, [each])
    found = await read(store)
    assert found == chunks
    assert all(type(each.data) is bytes for each in found)


async def test_attempts_and_tasks_have_separate_output(store: Store, there: int) -> None:
    chunks = [
        chunk(0, b"a"),
        chunk(0, b"b", task=1),
        chunk(0, b"c", epoch=2),
        chunk(1, b"dd", epoch=2),
    ]
    await store.put_output(there, chunks)
    assert await read(store, task=1) == chunks[1:2]
    assert await read(store, epoch=2) == chunks[2:]
    assert await read(store, task=2) == []
    assert await store.output_ends("j-1") == (
        OutputEnd(0, 1, 1),
        OutputEnd(0, 2, 3),
        OutputEnd(1, 1, 1),
    )
    assert await store.output_ends("j-2") == ()


async def test_a_chunk_that_comes_again_changes_nothing_and_a_longer_one_replaces_it(
    store: Store, there: int
) -> None:
    await store.put_output(there, [chunk(0, b"abc")])
    await store.put_output(there, [chunk(0, b"abc"), chunk(0, b"x")])
    assert await read(store) == [chunk(0, b"abc")]
    await store.put_output(there, [chunk(0, b"abcd"), chunk(0, b"ab")])
    assert await read(store) == [chunk(0, b"abcd")]


async def test_reading_begins_with_the_chunk_that_contains_the_offset(
    store: Store, there: int
) -> None:
    chunks = [chunk(0, b"0123"), chunk(4, b"4567"), chunk(20, b"after"), chunk(25, b"last")]
    await store.put_output(there, chunks)
    for offset, first in ((0, 0), (3, 0), (4, 1), (7, 1), (8, 2), (19, 2), (24, 2), (25, 3)):
        assert await read(store, offset) == chunks[first:]
    assert await read(store, 29) == []


async def test_one_read_is_limited_and_a_gap_does_not_end_it(store: Store, there: int) -> None:
    chunks = [chunk(n * 10, b"x" * 10) for n in range(5)]
    far = [chunk(2**60, b"far"), chunk(2**60 + 3, b"away")]
    await store.put_output(there, chunks + far)
    assert await read(store, 0, 20) == chunks[:2]
    assert await read(store, 20, 20) == chunks[2:4]
    assert await read(store, 15, 10) == chunks[1:3]
    assert await read(store, 50, 3) == far[:1]


async def test_a_trim_removes_whole_chunks_from_the_front_and_returns_their_size(
    store: Store, there: int
) -> None:
    chunks = [chunk(n * 10, b"x" * 10) for n in range(5)]
    others = [chunk(0, b"other", task=1), chunk(0, b"earlier", epoch=2)]
    await store.put_output(there, chunks + others)
    assert await store.put_output(there, [], [OutputTrim("j-1", 0, 1, 25)]) == 20
    assert await read(store) == chunks[2:]
    more = chunk(50, b"more")
    assert (
        await store.put_output(
            there, [more], [OutputTrim("j-1", 0, 2, ALL), OutputTrim("j-1", 0, 1, 30)]
        )
        == 17
    )
    assert await read(store) == [*chunks[3:], more]
    assert await read(store, task=1) == others[:1]
    assert await store.output_ends("j-1") == (OutputEnd(0, 1, 54), OutputEnd(1, 1, 5))


async def test_output_is_removed_with_its_job_and_not_before(store: Store, term: int) -> None:
    jobs = (a_finished_job("j-1", 10), a_finished_job("j-2", 30))
    await store.commit(term, Batch("b-1", jobs=jobs))
    await store.put_output(term, [chunk(0, b"a"), chunk(0, b"b", job="j-2")])
    await store.prune(term, before=20, limit=10)
    assert await store.output_ends("j-1") == ()
    assert await store.output_ends("j-2") == (OutputEnd(0, 1, 1),)
    await store.put_output(term, [chunk(0, b"late"), chunk(1, b"c", job="j-2")])
    assert await store.output_ends("j-1") == ()
    assert await store.output_ends("j-2") == (OutputEnd(0, 1, 2),)


async def test_output_outlives_the_server_that_kept_it(
    store: Store, backend: Backend, there: int
) -> None:
    await store.put_output(there, [chunk(0, b"the end")])
    await backend.die(store)
    other = backend.handle()
    await other.open()
    found = await other.output("j-1", 0, 1, offset=0, length=ALL)
    assert found == (chunk(0, b"the end"),)
    await other.close()


async def test_a_deposed_leader_stores_no_output(
    store: Store, backend: Backend, there: int
) -> None:
    await backend.advance_clock(LEASE)
    await backend.die(store)
    other = backend.handle()
    await other.open()
    assert await other.lead("s-2", "http://s-2", LEASE) is not None
    with pytest.raises(Deposed):
        await store.put_output(there, [chunk(0, b"late")])
    assert await other.output_ends("j-1") == ()
    await other.close()
