"""The batch of changes has the last version of each row, the removals, and records in order."""

from tests.driver import Driver, spec

from phalanx.core import events
from phalanx.core.changes import Changes
from phalanx.core.model import Assignment, Blob, Protocol, Queue
from phalanx.core.records import JobSubmitted
from phalanx.store.batches import batch_of
from phalanx.store.memory import MemoryStore
from phalanx.store.protocol import Batch


def test_no_changes_give_an_empty_batch() -> None:
    assert batch_of("b-1", []) == Batch("b-1")


def test_one_event_gives_its_rows_and_its_records() -> None:
    driver = Driver()
    changes = driver.apply(events.Submitted("j-1", spec(2)))
    batch = batch_of("b-1", [changes])
    assert batch.jobs == (driver.job("j-1"),)
    assert batch.tasks == (driver.task("j-1", 0), driver.task("j-1", 1))
    assert [type(record) for record in batch.records] == [JobSubmitted]


def test_of_each_row_only_the_last_version_is_kept() -> None:
    driver = Driver()
    driver.worker("a")
    applied = [
        driver.apply(events.Submitted("j-1", spec())),
        driver.apply(events.PriorityChanged("j-1", 5)),
        driver.apply(events.PriorityChanged("j-1", 7)),
    ]
    [job] = batch_of("b-1", applied).jobs
    assert job.priority == 7
    assert job == driver.job("j-1")


def test_records_keep_their_order() -> None:
    driver = Driver()
    applied = [driver.apply(events.Submitted(f"j-{n}", spec())) for n in range(5)]
    numbers = [record.seq for record in batch_of("b-1", applied).records]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 5


def test_a_row_that_is_added_and_removed_is_removed() -> None:
    driver = Driver()
    applied = [
        driver.apply(events.QueueSet(Queue("night"))),
        driver.apply(events.QueueRemoved("night")),
    ]
    batch = batch_of("b-1", applied)
    assert batch.queues == ()
    assert batch.removed_queues == ("night",)


def test_a_row_that_is_removed_and_added_again_is_written() -> None:
    driver = Driver()
    driver.apply(events.QueueSet(Queue("night")))
    applied = [
        driver.apply(events.QueueRemoved("night")),
        driver.apply(events.QueueSet(Queue("night", weight=2))),
    ]
    batch = batch_of("b-1", applied)
    assert batch.queues == (Queue("night", weight=2),)
    assert batch.removed_queues == ()


def test_workers_and_their_residues_are_removed_by_their_keys() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec())
    epoch = driver.run(job, "a")
    lost = driver.apply(events.WorkerLost("a"))
    assert [row.task for row in batch_of("b-1", [lost]).residues] == [f"{job}.0"]
    removed = batch_of("b-2", [driver.apply(events.WorkerRemoved("a"))])
    assert removed.removed_workers == ("a",)
    assert removed.removed_residues == ((f"{job}.0", epoch),)


def _saved(driver: Driver, job: str, *blobs: str) -> list[Changes]:
    task = driver.task(job, 0)
    return [
        driver.apply(events.CheckpointSaved(task.id, task.epoch, Blob(blob, 1))) for blob in blobs
    ]


def _draining() -> tuple[Driver, str]:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec(checkpoint="each"))
    driver.run(job, "a")
    driver.apply(events.Evicted(job, by="ops", why="a test"))
    return driver, job


def test_a_checkpoint_that_was_replaced_is_dropped() -> None:
    driver, job = _draining()
    assert batch_of("b-1", _saved(driver, job, "x", "y")).dropped_blobs == ("x",)


def test_a_checkpoint_that_was_replaced_and_saved_again_stays() -> None:
    driver, job = _draining()
    assert batch_of("b-1", _saved(driver, job, "x", "y", "x")).dropped_blobs == ("y",)


async def test_one_batch_of_many_events_has_the_same_result_as_one_batch_each() -> None:
    driver = Driver()
    history = _history(driver)
    stores = MemoryStore(clock=lambda: 1), MemoryStore(clock=lambda: 1)
    terms = [await store.lead("test", "", 10) or 0 for store in stores]
    for number, changes in enumerate(history):
        await stores[0].commit(terms[0], batch_of(f"b-{number}", [changes]))
    await stores[1].commit(terms[1], batch_of("b-all", history))
    alone, together = [await store.load(1) for store in stores]
    assert alone == together
    assert together == driver.rows()
    records = [await store.records(limit=1000) for store in stores]
    assert records[0] == records[1] == tuple(driver.records)


def _history(driver: Driver) -> list[Changes]:
    """A gang that starts, fails and drains beside a worker that is lost and a queue that goes."""
    facts: list[events.Event] = [
        *(events.WorkerRegistered(name, "1", Protocol.SYNC, name) for name in "abc"),
        *(events.Inventoried(name, "1", ()) for name in "abc"),
        events.QueueSet(Queue("night")),
        events.Submitted("j-1", spec(2)),
        events.Submitted("j-2", spec()),
        events.Placed((events.Placement("j-1", 0, (Assignment(0, "a"), Assignment(1, "b"))),)),
        events.Accepted("j-1.0", 1),
        events.Accepted("j-1.1", 1),
        events.Started("j-1.0", 1),
        events.Started("j-1.1", 1),
        events.QueueRemoved("night"),
        events.WorkerLost("a"),
        events.Stopped("j-1.1", 1),
        events.WorkerRemoved("c"),
        events.CancelRequested("j-2"),
    ]
    return [driver.apply(fact) for fact in facts]
