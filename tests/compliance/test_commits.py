"""A batch is stored as a whole or not at all, and only once if it is sent again."""

import asyncio

import pytest

from phalanx.core.model import Phase, Place
from phalanx.core.states import State
from phalanx.store.protocol import Batch, CommitFailed, Store, UsedKey
from tests.builders import (
    a_finished_job,
    a_job,
    a_queue,
    a_record,
    a_residue,
    a_task,
    a_worker,
)


async def test_committed_rows_are_stored(store: Store, term: int) -> None:
    job, tasks = a_job(), tuple(a_task(index=index) for index in range(3))
    await store.commit(term, Batch("b-1", jobs=(job,), tasks=tasks, records=(a_record(),)))
    assert await store.job("j-1") == (job, tasks)
    assert await store.has_batch("b-1")


async def test_a_job_that_was_never_submitted_is_not_found(store: Store, term: int) -> None:
    await store.commit(term, Batch("b-1", tasks=(a_task("j-2"),)))
    assert await store.job("j-1") is None
    assert await store.job("j-2") is None
    assert not await store.has_batch("b-2")


async def test_a_batch_that_fails_half_way_writes_nothing(store: Store, term: int) -> None:
    first = a_job("j-0", created_at=1)
    await store.commit(
        term, Batch("b-1", jobs=(first,), workers=(a_worker("w-0"),), records=(a_record(1),))
    )
    before = await store.load(term)
    await store.put_blob("c-1", "j-1", b"kept")
    broken = Batch(
        "b-2",
        jobs=(a_job("j-1"), a_job("j-0", created_at=2)),
        tasks=(a_task("j-1"), a_task("j-2")),
        workers=(a_worker("w-1"),),
        removed_workers=("w-0",),
        queues=(a_queue(),),
        residues=(a_residue(),),
        records=(a_record(2, job="j-1"),),
        dropped_blobs=("c-1",),
        used_keys=(UsedKey("eve", "k", "digest", 1),),
    )

    with pytest.raises(CommitFailed, match="b-2"):
        await store.commit(term, broken)

    assert await store.load(term) == before
    assert await store.records(limit=10) == (a_record(1),)
    assert await store.get_blob("c-1") == b"kept"
    assert await store.job("j-1") is None
    assert await store.used_key("eve", "k") is None
    assert not await store.has_batch("b-2")


async def test_the_store_works_after_a_batch_that_failed(store: Store, term: int) -> None:
    await store.commit(term, Batch("b-1", jobs=(a_job("j-1", created_at=1),)))
    with pytest.raises(CommitFailed):
        await store.commit(term, Batch("b-2", jobs=(a_job("j-2"), a_job("j-1", created_at=2))))
    await store.commit(term, Batch("b-3", jobs=(a_job("j-3", created_at=3),)))
    assert [job.id for job in (await store.load(term)).jobs] == ["j-1", "j-3"]


async def test_a_job_never_replaces_another_job_with_the_same_id(store: Store, term: int) -> None:
    stored = a_finished_job("j-7kq2m4xd", 20, created_at=10)
    await store.commit(term, Batch("b-1", jobs=(stored,), tasks=(a_task(stored.id),)))
    await store.commit(term, Batch("b-2", jobs=(a_job("j-other", created_at=30),)))
    same_id = a_job(stored.id, created_at=30)
    new = Batch("b-3", jobs=(a_job("j-other", created_at=30, epoch=2), same_id, a_job("j-new")))

    with pytest.raises(CommitFailed, match=r"^batch b-3 .*another job has the id j-7kq2m4xd"):
        await store.commit(term, new)

    assert await store.job(stored.id) == (stored, (a_task(stored.id),))
    assert [job.epoch for job in (await store.load(term)).jobs] == [0]
    assert not await store.has_batch("b-3")
    await store.commit(term, Batch("b-4", jobs=(a_job("j-new"),)))


async def test_a_value_that_no_store_can_hold_fails_the_batch(store: Store, term: int) -> None:
    with pytest.raises(CommitFailed, match="b-1"):
        await store.commit(term, Batch("b-1", workers=(a_worker(address="\ud800"),)))
    assert not await store.has_batch("b-1")
    assert (await store.load(term)).workers == []


async def test_a_row_replaces_the_row_with_the_same_key(store: Store, term: int) -> None:
    await store.commit(term, Batch("b-1", jobs=(a_job(),), tasks=(a_task(),)))
    job = a_job(phase=Phase.RUNNING, epoch=4)
    task = a_task(state=State.RUNNING, place=Place("w-1", 1_000))
    await store.commit(term, Batch("b-2", jobs=(job,), tasks=(task,)))
    assert await store.job("j-1") == (job, (task,))


async def test_sending_a_batch_again_changes_nothing(store: Store, term: int) -> None:
    first = Batch("b-1", jobs=(a_job(),), workers=(a_worker(),), records=(a_record(1),))
    await store.commit(term, first)
    later = Batch("b-2", jobs=(a_job(epoch=9),), removed_workers=("w-1",))
    await store.commit(term, later)
    before = await store.load(term)

    await store.commit(term, first)

    assert await store.load(term) == before
    assert before.jobs == [a_job(epoch=9)]
    assert before.workers == []


async def test_a_batch_may_be_empty(store: Store, term: int) -> None:
    await store.commit(term, Batch("b-1"))
    assert await store.has_batch("b-1")


async def test_of_two_rows_with_one_key_the_later_is_kept(store: Store, term: int) -> None:
    await store.commit(term, Batch("b-1", workers=(a_worker(slots=1), a_worker(slots=2))))
    assert (await store.load(term)).workers == [a_worker(slots=2)]


async def test_workers_queues_and_residues_can_be_removed(store: Store, term: int) -> None:
    await store.commit(
        term,
        Batch(
            "b-1",
            workers=(a_worker("w-1"), a_worker("w-2")),
            queues=(a_queue("a"), a_queue("b")),
            residues=(a_residue("j-1.0", 1), a_residue("j-1.0", 2), a_residue("j-1.1", 1)),
        ),
    )
    await store.commit(
        term,
        Batch(
            "b-2",
            removed_workers=("w-1", "w-unknown"),
            removed_queues=("b",),
            removed_residues=(("j-1.0", 2), ("j-1.1", 1), ("j-1.1", 7)),
        ),
    )
    rows = await store.load(term)
    assert rows.workers == [a_worker("w-2")]
    assert rows.queues == [a_queue("a")]
    assert rows.residues == [a_residue("j-1.0", 1)]


async def test_a_row_that_is_removed_and_written_in_one_batch_is_written(
    store: Store, term: int
) -> None:
    await store.commit(term, Batch("b-1", workers=(a_worker(slots=1),)))
    await store.commit(term, Batch("b-2", removed_workers=("w-1",), workers=(a_worker(slots=2),)))
    assert (await store.load(term)).workers == [a_worker(slots=2)]


async def test_a_batch_can_have_a_thousand_rows(store: Store, term: int) -> None:
    tasks = tuple(a_task(index=index, epoch=index) for index in range(1_000))
    records = tuple(a_record(seq, job="j-1") for seq in range(1, 1_001))
    await store.commit(term, Batch("b-1", jobs=(a_job(),), tasks=tasks, records=records))
    rows = await store.load(term)
    assert tuple(rows.tasks) == tasks
    assert rows.last_seq == 1_000
    assert await store.records(job="j-1", limit=2_000) == records


async def test_concurrent_commits_are_all_stored(store: Store, term: int) -> None:
    batches = [Batch(f"b-{n}", workers=(a_worker(f"w-{n}"),)) for n in range(10)]
    await asyncio.gather(*(store.commit(term, batch) for batch in batches))
    assert len((await store.load(term)).workers) == 10


async def test_after_a_cancelled_commit_the_store_knows_its_outcome_and_works(
    store: Store, term: int
) -> None:
    for n in range(8):
        commit = asyncio.create_task(
            store.commit(term, Batch(f"b-{n}", workers=(a_worker(f"w-{n}"),)))
        )
        for _ in range(n):
            await asyncio.sleep(0)
        commit.cancel()
        await asyncio.gather(commit, return_exceptions=True)
        fate = await store.has_batch(f"b-{n}")
        workers = {worker.id for worker in (await store.load(term)).workers}
        assert (f"w-{n}" in workers) == fate
        await store.commit(term, Batch(f"b-{n}", workers=(a_worker(f"w-{n}"),)))
    assert len((await store.load(term)).workers) == 8
