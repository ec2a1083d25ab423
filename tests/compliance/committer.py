"""A process on an SQLite file that is killed, or contends for leadership; see test_sqlite.py.

`commit` writes batches in a loop, and prints the id of a job when its batch is acknowledged.
`contend` takes leadership for each line of its input, and prints the result.
"""

import asyncio
import sys

from phalanx.core.time_units import MINUTE
from phalanx.store.protocol import Batch
from phalanx.store.sqlite import SQLiteStore
from tests.builders import a_job, a_record, a_task
from tests.compliance.backends import FakeClock

#: Rows of one batch, so that a partial one is recognised.
TASKS = 20


async def commit(store: SQLiteStore) -> None:
    # The lease expires at once, so that the next process can lead without waiting.
    term = await store.lead("committer", "", 0)
    assert term is not None
    seq = (await store.load(term)).last_seq
    while True:
        seq += 1
        job = f"j-{seq:06}"
        tasks = tuple(a_task(job, index) for index in range(TASKS))
        records = (a_record(seq, job=job),)
        await store.commit(
            term, Batch(f"b-{job}", jobs=(a_job(job),), tasks=tasks, records=records)
        )
        print(job, flush=True)  # noqa: T201


async def contend(store: SQLiteStore) -> None:
    for _ in sys.stdin:
        print(await store.lead("contender", "", MINUTE), flush=True)  # noqa: T201


async def main(what: str, path: str) -> None:
    # The clock of the tests, which does not move.
    store = SQLiteStore(path, clock=FakeClock())
    await store.open()
    print("open", flush=True)  # noqa: T201
    await {"commit": commit, "contend": contend}[what](store)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
