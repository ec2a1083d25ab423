"""Blobs are stored bit for bit."""

import pytest

from phalanx.store.protocol import Batch, Store
from tests.builders import a_job
from tests.compliance.backends import Backend


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(range(256)),
        bytes(range(256)) * 4096,
        b"\x00" * 10,
        b"{not json",
        b"\x80\x04\x95 a pickle, for all we know \xff\xfe",
    ],
    ids=["empty", "all-bytes", "1-MiB", "zeros", "not-json", "binary"],
)
async def test_a_blob_comes_back_bit_for_bit(store: Store, data: bytes) -> None:
    await store.put_blob("c-1", "j-1", data)
    found = await store.get_blob("c-1")
    assert found == data
    assert type(found) is bytes


async def test_a_blob_that_was_never_stored_is_none(store: Store) -> None:
    assert await store.get_blob("c-1") is None


async def test_a_blob_that_is_put_again_is_replaced(store: Store) -> None:
    await store.put_blob("c-1", "j-1", b"first")
    await store.put_blob("c-1", "j-1", b"second")
    assert await store.get_blob("c-1") == b"second"


async def test_a_dropped_blob_is_removed_and_others_stay(store: Store, term: int) -> None:
    for blob in ("c-1", "c-2", "c-3"):
        await store.put_blob(blob, "j-1", blob.encode())
    await store.commit(term, Batch("b-1", jobs=(a_job(),), dropped_blobs=("c-1", "c-3", "c-9")))
    assert await store.get_blob("c-1") is None
    assert await store.get_blob("c-2") == b"c-2"


async def test_a_removed_blob_is_gone_and_others_stay(store: Store) -> None:
    for blob in ("c-1", "c-2"):
        await store.put_blob(blob, "j-1", blob.encode())
    for _ in range(2):
        await store.remove_blob("c-1")
    assert await store.get_blob("c-1") is None
    assert await store.get_blob("c-2") == b"c-2"


async def test_a_blob_outlives_the_server_that_kept_it(store: Store, backend: Backend) -> None:
    await store.put_blob("c-1", "j-1", b"weights")
    await store.close()
    other = backend.handle()
    await other.open()
    assert await other.get_blob("c-1") == b"weights"
    await other.close()


async def test_a_blob_needs_no_leader_and_does_not_depose_one(store: Store, term: int) -> None:
    await store.put_blob("c-1", "j-1", b"weights")
    await store.commit(term, Batch("b-1"))
