"""Finished jobs by pages, records by number, idempotency keys."""

import base64
from typing import Any

import pytest

from phalanx.core.causes import TaskEnding
from phalanx.core.model import Job, Phase
from phalanx.core.records import TaskFailed
from phalanx.store.protocol import Batch, JobQuery, JobSummary, Store, UsedKey
from tests.builders import a_finished_job, a_job, a_record, a_spec

ANY = JobQuery()


def _finished(job_id: str, created_at: int, **fields: Any) -> Job:
    """A job that finished the sooner, the later it was created: that must not matter to a page."""
    return a_finished_job(job_id, 10_000 - created_at, created_at=created_at, **fields)


async def _ids(store: Store, query: JobQuery, limit: int = 100) -> list[str]:
    return [job.id for job in (await store.finished_jobs(query, limit=limit)).jobs]


async def test_the_job_created_last_comes_first_and_ids_break_ties(store: Store, term: int) -> None:
    jobs = (
        _finished("j-a", 10),
        _finished("j-c", 20),
        _finished("j-b", 20),
        _finished("j-C", 20),
        _finished("j-d", 5),
        a_job("j-live"),
    )
    await store.commit(term, Batch("b-1", jobs=jobs))
    assert await _ids(store, ANY) == ["j-c", "j-b", "j-C", "j-a", "j-d"]


async def test_finished_jobs_are_selected_by_each_field_of_a_query(store: Store, term: int) -> None:
    vision, speech = a_spec(namespace="vision", queue="batch"), a_spec(namespace="speech")
    urgent = a_spec(namespace="vision", queue="urgent")
    jobs = (
        _finished("j-1", 1, name="train", spec=vision),
        _finished("j-2", 2, name="train", spec=urgent, phase=Phase.FAILED),
        _finished("j-3", 3, name="eval", spec=speech),
        _finished("j-4", 4, name="o'neil \0 \\", spec=vision, phase=Phase.TIMED_OUT),
    )
    await store.commit(term, Batch("b-1", jobs=jobs))
    assert await _ids(store, JobQuery(namespace="vision")) == ["j-4", "j-2", "j-1"]
    assert await _ids(store, JobQuery(queue="batch")) == ["j-4", "j-1"]
    assert await _ids(store, JobQuery(phase=Phase.DONE)) == ["j-3", "j-1"]
    assert await _ids(store, JobQuery(name="train")) == ["j-2", "j-1"]
    assert await _ids(store, JobQuery(name="o'neil \0 \\")) == ["j-4"]
    assert await _ids(store, JobQuery("vision", "urgent", Phase.FAILED, "train")) == ["j-2"]
    assert await _ids(store, JobQuery(namespace="vision", name="eval")) == []
    assert await _ids(store, JobQuery(name_contains="a")) == ["j-3", "j-2", "j-1"]
    assert await _ids(store, JobQuery(name_contains="rai", queue="batch")) == ["j-1"]
    assert await _ids(store, JobQuery(name_contains=" \0 ")) == ["j-4"]
    assert await _ids(store, JobQuery(name_contains="%")) == []


async def test_jobs_are_selected_by_the_beginning_of_their_id(store: Store, term: int) -> None:
    live = a_job("j-7k000000")
    found = ("j-7k", "j-7kq2m4xd", "j-7kzzzzzz", "j-7kq\U0010fffe")
    ids = (*found, "j-7j", "j-7m", "j-7K", "j-%k", "j-")
    jobs = tuple(_finished(job, n) for n, job in enumerate(ids))
    await store.commit(term, Batch("b-1", jobs=(live, *jobs)))
    query = JobQuery(id_prefix="j-7k")
    assert await _ids(store, query) == [*reversed(found)]
    assert await _ids(store, JobQuery(id_prefix="j-7kq", namespace="elsewhere")) == []
    assert await _ids(store, JobQuery(id_prefix="j-%")) == ["j-%k"]
    assert len(await _ids(store, JobQuery(id_prefix=""))) == len(ids)
    first = await store.finished_jobs(query, limit=2)
    rest = await store.finished_jobs(query, limit=2, cursor=first.cursor)
    assert [job.id for job in rest.jobs] == ["j-7kq2m4xd", "j-7k"]
    assert rest.cursor is None


async def test_ids_that_a_stored_job_has_are_known_whether_it_finished_or_not(
    store: Store, term: int
) -> None:
    jobs = (_finished("j-done", 1), a_job("j-live"), a_job("j-\0\\" + "x" * 999))
    await store.commit(term, Batch("b-1", jobs=jobs))
    free = {"j-free", "j-don", "", "j-\0\\" + "x" * 998}
    summaries = await store.job_summaries({*free, *(job.id for job in jobs)})
    assert summaries == {
        job.id: JobSummary(job.spec.namespace, job.phase, job.finished_at is not None)
        for job in jobs
    }
    assert await store.job_summaries([]) == {}


async def test_pages_neither_repeat_nor_skip_while_others_finish(store: Store, term: int) -> None:
    there = tuple(_finished(f"j-{n:02}", 100 + n // 3) for n in range(20))
    await store.commit(term, Batch("b-0", jobs=there))
    seen: list[str] = []
    cursor: str | None = None
    for n in range(50):
        page = await store.finished_jobs(ANY, limit=3, cursor=cursor)
        seen.extend(job.id for job in page.jobs)
        cursor = page.cursor
        if cursor is None:
            break
        # One was created after all the others, and one when the first of the first page was.
        new = (_finished(f"j-new-{n}", 500 + n), _finished(f"j-zzz-{n}", 106))
        await store.commit(term, Batch(f"b-{n + 1}", jobs=new))
    assert seen == sorted((job.id for job in there), reverse=True)


async def test_pages_of_a_query_have_only_jobs_that_match_it(store: Store, term: int) -> None:
    jobs = tuple(
        _finished(f"j-{n}", n, phase=Phase.FAILED if n % 2 else Phase.DONE) for n in range(10)
    )
    await store.commit(term, Batch("b-1", jobs=jobs))
    query = JobQuery(phase=Phase.FAILED, namespace="default")
    first = await store.finished_jobs(query, limit=3)
    second = await store.finished_jobs(query, limit=3, cursor=first.cursor)
    assert [job.id for job in first.jobs] == ["j-9", "j-7", "j-5"]
    assert [job.id for job in second.jobs] == ["j-3", "j-1"]
    assert second.cursor is None


async def test_the_last_page_has_no_cursor_even_when_it_is_full(store: Store, term: int) -> None:
    await store.commit(term, Batch("b-1", jobs=tuple(_finished(f"j-{n}", n) for n in range(4))))
    first = await store.finished_jobs(ANY, limit=2)
    assert first.cursor is not None
    assert (await store.finished_jobs(ANY, limit=2, cursor=first.cursor)).cursor is None
    assert (await store.finished_jobs(ANY, limit=4)).cursor is None


async def test_a_cursor_can_be_part_of_a_url(store: Store, term: int) -> None:
    jobs = tuple(_finished(f"j-{n}?&=+/\0é", n) for n in range(3))
    await store.commit(term, Batch("b-1", jobs=jobs))
    cursor = (await store.finished_jobs(ANY, limit=1)).cursor
    assert cursor is not None
    assert cursor.replace("-", "").replace("_", "").isalnum()
    assert cursor.isascii()
    assert (await store.finished_jobs(ANY, limit=5, cursor=cursor)).jobs == jobs[1::-1]


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "nonsense",
        "é",
        "W10",
        base64.urlsafe_b64encode(b'["1","j-1"]').decode().rstrip("="),
        base64.urlsafe_b64encode(b'[1,"j-1",2]').decode().rstrip("="),
        base64.urlsafe_b64encode(b'[9223372036854775808,"j-1"]').decode().rstrip("="),
        base64.urlsafe_b64encode(b'[1,"j\\u0000"]').decode().rstrip("="),
        base64.urlsafe_b64encode(b'[1,"j-1"]').decode().rstrip("=") + "!",
        base64.urlsafe_b64encode(b'[1,"j-1"]').decode().rstrip("=") + "=",
        "A" * 5000,
    ],
)
async def test_a_cursor_that_no_store_made_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(ValueError, match="not a cursor"):
        await store.finished_jobs(ANY, limit=1, cursor=cursor)


async def test_records_come_in_order_above_a_number(store: Store, term: int) -> None:
    records = tuple(a_record(seq, job=f"j-{seq % 2}", size=seq) for seq in range(1, 11))
    await store.commit(term, Batch("b-1", records=records[5:]))
    await store.commit(term, Batch("b-2", records=records[:5]))
    assert await store.records(limit=100) == records
    assert await store.records(after=4, limit=3) == records[4:7]
    assert await store.records(after=10, limit=3) == ()


async def test_records_of_one_job_are_selected(store: Store, term: int) -> None:
    records = (
        a_record(1, job="j-1"),
        a_record(2),
        a_record(3, job="j-2"),
        TaskFailed("j-1", 2, 0, "w-1", TaskEnding.EXITED, "exited", 1, seq=4, at=1_000),
        a_record(5, job="j-1"),
    )
    await store.commit(term, Batch("b-1", records=records))
    assert await store.records(job="j-1", limit=2) == (records[0], records[3])
    assert await store.records(job="j-1", after=1, limit=9) == (records[3], records[4])
    assert await store.records(job="j-3", limit=9) == ()


async def test_an_idempotency_key_belongs_to_its_principal(store: Store, term: int) -> None:
    eve = UsedKey("eve", "k", "digest", 1, jobs=("j-1", None))
    bob = UsedKey("bob", "k", "other", 2)
    await store.commit(term, Batch("b-1", used_keys=(eve, bob)))
    assert await store.used_key("eve", "k") == eve
    assert await store.used_key("bob", "k") == bob
    assert await store.used_key("ann", "k") is None
    assert await store.used_key("eve", "K") is None


async def test_long_keys_that_differ_at_their_end_are_two_keys(store: Store, term: int) -> None:
    keys = [UsedKey("eve", "x" * 5000 + end, end, 1) for end in "12"]
    await store.commit(term, Batch("b-1", used_keys=tuple(keys)))
    assert await store.used_key("eve", "x" * 5000 + "2") == keys[1]
