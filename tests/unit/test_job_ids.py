"""Unused ids for new jobs: checked against the store, many at a time, for one term."""

from collections.abc import Collection, Iterator
from itertools import count
from typing import cast

from tests.builders import a_finished_job, a_job

from phalanx.core.ids import job_id
from phalanx.engine.engine import Engine
from phalanx.engine.job_ids import JobIds
from phalanx.store.memory import MemoryStore
from phalanx.store.protocol import Batch, JobSummary


class Leader:
    """An engine that leads."""

    def __init__(self) -> None:
        self.term = 1

    def check_leading(self) -> int:
        return self.term


class CountingStore(MemoryStore):
    queries = 0

    async def job_summaries(self, job_ids: Collection[str]) -> dict[str, JobSummary]:
        self.queries += 1
        return await super().job_summaries(job_ids)


def numbered() -> Iterator[str]:
    return map(job_id, count())


def ids_of(store: MemoryStore, leader: Leader, drawn: Iterator[str]) -> JobIds:
    return JobIds(cast("Engine", leader), store, draw=lambda: next(drawn))


async def test_ids_of_stored_jobs_are_not_taken() -> None:
    store = MemoryStore(clock=lambda: 1)
    term = await store.lead("s-1", "", 10)
    assert term is not None
    stored = (a_finished_job(job_id(0), 10), a_job(job_id(2)))
    await store.commit(term, Batch("b-1", jobs=stored))
    taken = await ids_of(store, Leader(), numbered()).take(50)
    assert len(set(taken)) == 50
    assert not {job_id(0), job_id(2)} & set(taken)


async def test_one_query_is_enough_for_many_submissions() -> None:
    store = CountingStore(clock=lambda: 1)
    ids = ids_of(store, Leader(), numbered())
    taken = [job for _ in range(90) for job in await ids.take(1)]
    assert len(set(taken)) == 90
    assert store.queries == 1
    assert len(set(await ids.take(1000))) == 1000


async def test_ids_that_were_checked_in_an_earlier_term_are_discarded() -> None:
    store, leader = CountingStore(clock=lambda: 1), Leader()
    ids = ids_of(store, leader, numbered())
    await ids.take(1)
    leader.term = 2
    await ids.take(1)
    assert store.queries == 2
