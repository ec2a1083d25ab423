"""A new leader loads all committed rows of unfinished jobs."""

from hypothesis import HealthCheck, given, settings

from phalanx.core.model import Rows
from phalanx.core.records import job_of
from phalanx.store.protocol import Batch, JobQuery, Store
from tests.builders import (
    a_finished_job,
    a_job,
    a_queue,
    a_record,
    a_residue,
    a_task,
    a_worker,
)
from tests.compliance.backends import Backend
from tests.compliance.conftest import LEASE
from tests.compliance.strategies import batches


async def test_an_empty_store_loads_nothing(store: Store, term: int) -> None:
    assert await store.load(term) == Rows()


async def test_rows_are_loaded_in_the_order_of_their_keys(store: Store, term: int) -> None:
    await store.commit(
        term,
        Batch(
            "b-1",
            jobs=(a_job("j-b"), a_job("j-a"), a_job("j-B")),
            tasks=(a_task("j-b", 10), a_task("j-b", 9), a_task("j-a", 1), a_task("j-a", 0)),
            workers=(a_worker("w-é"), a_worker("w-z"), a_worker("w-\uffee"), a_worker("w-𝄞")),
            queues=(a_queue("b"), a_queue("a")),
            residues=(a_residue("j-b.0", 11), a_residue("j-b.0", 2), a_residue("j-a.0", 3)),
        ),
    )
    rows = await store.load(term)
    assert [job.id for job in rows.jobs] == ["j-B", "j-a", "j-b"]
    assert [task.id for task in rows.tasks] == ["j-a.0", "j-a.1", "j-b.9", "j-b.10"]
    assert [worker.id for worker in rows.workers] == ["w-z", "w-é", "w-\uffee", "w-𝄞"]
    assert [queue.name for queue in rows.queues] == ["a", "b"]
    assert [(row.task, row.epoch) for row in rows.residues] == [
        ("j-a.0", 3),
        ("j-b.0", 2),
        ("j-b.0", 11),
    ]


async def test_finished_jobs_and_their_tasks_are_not_loaded(store: Store, term: int) -> None:
    await store.commit(
        term,
        Batch("b-1", jobs=(a_job("j-1"), a_job("j-2")), tasks=(a_task("j-1"), a_task("j-2"))),
    )
    await store.commit(term, Batch("b-2", jobs=(a_finished_job("j-1", 7),)))
    rows = await store.load(term)
    assert rows.jobs == [a_job("j-2")]
    assert rows.tasks == [a_task("j-2")]
    assert await store.job("j-1") == (a_finished_job("j-1", 7), (a_task("j-1"),))


async def test_the_last_record_is_the_highest_that_was_ever_written(
    store: Store, term: int
) -> None:
    await store.commit(term, Batch("b-1", records=(a_record(3), a_record(7), a_record(5))))
    await store.commit(term, Batch("b-2", workers=(a_worker(),)))
    assert (await store.load(term)).last_seq == 7


async def test_the_next_leader_finds_what_the_last_one_committed(
    store: Store, backend: Backend, term: int
) -> None:
    await store.commit(
        term, Batch("b-1", jobs=(a_job(),), tasks=(a_task(),), records=(a_record(4),))
    )
    await store.resign(term)
    await store.close()
    other = backend.handle()
    await other.open()
    later = await other.lead("s-2", "", LEASE)
    assert later is not None
    assert await other.load(later) == Rows(jobs=[a_job()], tasks=[a_task()], last_seq=4)
    assert await other.has_batch("b-1")
    await other.close()


async def test_loaded_rows_share_no_objects_with_earlier_ones(store: Store, term: int) -> None:
    labels = {"zone": "a"}
    worker = a_worker(labels=labels)
    await store.commit(term, Batch("b-1", workers=(worker,)))
    labels["zone"] = "b"
    first, second = await store.load(term), await store.load(term)
    assert first.workers[0].labels == {"zone": "a"}
    assert first.workers[0] is not second.workers[0]


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(batch=batches())
async def test_committed_rows_are_loaded_back_equal(backend: Backend, batch: Batch) -> None:
    store = (await backend.fresh()).handle()
    await store.open()
    term = await store.lead("s-1", "", LEASE)
    assert term is not None
    await store.commit(term, batch)

    records = sorted(batch.records, key=lambda record: record.seq)
    live = {job.id for job in batch.jobs if job.is_live}
    jobs = sorted(batch.jobs, key=lambda job: (job.created_at, job.id))
    assert await store.has_batch(batch.id)
    assert await store.load(term) == Rows(
        jobs=[job for job in jobs if job.id in live],
        tasks=sorted(
            (task for task in batch.tasks if task.job in live),
            key=lambda task: (task.job, task.index),
        ),
        workers=sorted(batch.workers, key=lambda worker: worker.id),
        queues=sorted(batch.queues, key=lambda queue: queue.name),
        residues=sorted(batch.residues, key=lambda row: (row.task, row.epoch)),
        crons=sorted(batch.crons, key=lambda cron: cron.key),
        accounts=sorted(batch.accounts, key=lambda account: account.queue),
        elements=sorted(
            (block for block in batch.elements if block.array in live),
            key=lambda block: (block.array, block.number),
        ),
        last_seq=max((record.seq for record in records), default=0),
    )
    assert list(await store.records(limit=100)) == records
    finished = (await store.finished_jobs(JobQuery(), limit=100)).jobs
    assert {job.id: job for job in finished} == {j.id: j for j in jobs if j.id not in live}
    for job in batch.jobs:
        tasks = sorted(
            (task for task in batch.tasks if task.job == job.id), key=lambda task: task.index
        )
        assert await store.job(job.id) == (job, tuple(tasks))
        mine = tuple(record for record in records if job_of(record) == job.id)
        assert await store.records(job=job.id, limit=100) == mine
    for used in batch.used_keys:
        assert await store.used_key(used.principal, used.key) == used
    await store.close()
