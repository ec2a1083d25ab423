"""Retention removes old jobs with all their rows, and nothing else."""

from phalanx.core.model import ElementBlock, Rows
from phalanx.core.time_units import HOUR, MINUTE
from phalanx.store.protocol import Batch, JobQuery, PruneCounts, Store, UsedKey
from tests.builders import a_finished_job, a_job, a_record, a_task, a_worker
from tests.compliance.backends import Backend


async def _fill(store: Store, term: int) -> None:
    jobs = (*(a_finished_job(f"j-{n}", n * 10) for n in range(1, 5)), a_job("j-live"))
    tasks = tuple(a_task(job.id, index) for job in jobs for index in range(2))
    records = tuple(a_record(n, job=job.id, at=1) for n, job in enumerate(jobs, 1))
    await store.commit(term, Batch("b-1", jobs=jobs, tasks=tasks, records=records))
    for job in jobs:
        await store.put_blob(f"c-{job.id}", job.id, b"weights")


async def test_the_jobs_that_finished_first_are_removed_with_all_their_rows(
    store: Store, term: int
) -> None:
    await _fill(store, term)

    assert await store.prune(term, before=40, limit=2) == PruneCounts(jobs=2, records=2, blobs=2)

    left = await store.finished_jobs(JobQuery(), limit=10)
    assert [job.id for job in left.jobs] == ["j-4", "j-3"]
    assert await store.job("j-1") is None
    assert await store.records(job="j-2", limit=10) == ()
    assert await store.get_blob("c-j-1") is None
    assert await store.get_blob("c-j-3") == b"weights"
    assert await store.job("j-3") == (
        a_finished_job("j-3", 30),
        (a_task("j-3", 0), a_task("j-3", 1)),
    )
    assert await store.prune(term, before=40, limit=2) == PruneCounts(jobs=1, records=1, blobs=1)
    assert await store.prune(term, before=40, limit=2) == PruneCounts()
    assert await store.job("j-4") is not None


async def test_unfinished_jobs_are_kept_at_any_age(store: Store, term: int) -> None:
    await _fill(store, term)
    await store.commit(term, Batch("b-2", workers=(a_worker(),)))
    await store.prune(term, before=10**15, limit=100)
    assert await store.load(term) == Rows(
        jobs=[a_job("j-live")],
        tasks=[a_task("j-live", 0), a_task("j-live", 1)],
        workers=[a_worker()],
        last_seq=5,
    )
    assert len(await store.records(job="j-live", limit=10)) == 1
    assert await store.get_blob("c-j-live") == b"weights"


async def test_idempotency_keys_are_removed_by_their_age(store: Store, term: int) -> None:
    keys = (UsedKey("eve", "old", "d", 10), UsedKey("eve", "new", "d", 20))
    await store.commit(term, Batch("b-1", used_keys=keys))
    assert await store.prune(term, before=20, limit=5) == PruneCounts(keys=1)
    assert await store.used_key("eve", "old") is None
    assert await store.used_key("eve", "new") == keys[1]


async def test_old_records_of_no_job_are_removed_and_new_ones_are_kept(
    store: Store, term: int
) -> None:
    records = (a_record(1, at=10), a_record(2, at=20), a_record(3, at=10, job="j-1"))
    await store.commit(term, Batch("b-1", jobs=(a_job(),), records=records))
    assert await store.prune(term, before=20, limit=5) == PruneCounts(records=1)
    assert await store.records(limit=5) == records[1:]


async def test_the_number_of_the_last_record_is_kept_when_records_are_removed(
    store: Store, term: int
) -> None:
    await store.commit(term, Batch("b-1", records=(a_record(41), a_record(42))))
    assert await store.prune(term, before=10**15, limit=5) == PruneCounts(records=2)
    assert (await store.load(term)).last_seq == 42


async def test_has_batch_knows_a_batch_for_an_hour_at_any_retention(
    store: Store, backend: Backend, term: int
) -> None:
    await store.commit(term, Batch("b-1", workers=(a_worker("w-1"),)))
    await backend.advance_clock(HOUR - MINUTE)
    await store.prune(term, before=2**62, limit=5)
    assert await store.has_batch("b-1")
    await backend.advance_clock(2 * MINUTE)
    await store.commit(term, Batch("b-2"))
    await store.prune(term, before=0, limit=5)
    assert not await store.has_batch("b-1")
    assert await store.has_batch("b-2")


async def test_a_removed_job_is_removed_with_all_its_rows(store: Store, term: int) -> None:
    await store.put_blob("blob", "j-1", b"state")
    kept = a_finished_job("j-2", 10)
    batch = Batch(
        "b-1",
        jobs=(a_finished_job("j-1", 10), kept),
        tasks=(a_task("j-1"), a_task("j-2")),
        records=(a_record(1, job="j-1"), a_record(2, job="j-2")),
        removed_jobs=("j-1",),
    )
    await store.commit(term, batch)
    assert await store.job("j-1") is None
    assert await store.get_blob("blob") is None
    assert await store.job("j-2") == (kept, (a_task("j-2"),))
    assert [record.seq for record in await store.records(limit=9)] == [2]


async def test_an_array_is_removed_with_its_elements_and_not_before(
    store: Store, term: int
) -> None:
    elements = tuple(a_finished_job(f"j-a[{n}]", 5, array="j-a", index=n) for n in range(2))
    blocks = (ElementBlock("j-a", 0, "df", b"\x01\x02"), ElementBlock("j-a", 1, ".", b"\0"))
    jobs = (a_job("j-a"), *elements, a_finished_job("j-b", 5))
    tasks = tuple(a_task(job.id) for job in elements)
    await store.commit(term, Batch("b-1", jobs=jobs, tasks=tasks, elements=blocks[::-1]))
    rows = await store.load(term)
    assert (rows.jobs, rows.elements) == ([a_job("j-a")], list(blocks))
    # Pages and retention leave elements to their array.
    assert [job.id for job in (await store.finished_jobs(JobQuery(), limit=9)).jobs] == ["j-b"]
    assert await store.prune(term, before=10, limit=9) == PruneCounts(jobs=1)
    assert await store.job("j-a[1]") == (elements[1], (a_task("j-a[1]"),))

    await store.commit(term, Batch("b-2", jobs=(a_finished_job("j-a", 20),)))
    assert (await store.load(term)).elements == []
    assert await store.elements("j-a") == blocks
    assert await store.prune(term, before=30, limit=9) == PruneCounts(jobs=1)
    assert await store.job("j-a[1]") is None
    assert await store.elements("j-a") == ()
