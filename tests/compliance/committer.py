"""A process of its own on one SQLite file, to be killed or to contend: see test_sqlite.py.

`commit` writes batches for ever and prints a job's id only once its batch was acknowledged.
`contend` asks for leadership when told to, prints the answer, and holds on until told to go.
"""

import asyncio
import sys

from phalanx.core.spec.job import MINUTE
from phalanx.store.protocol import Batch
from phalanx.store.sqlite import SQLiteStore
from tests.builders import a_job, a_record, a_task
from tests.compliance.backends import FakeClock

#: Rows of one batch, so that a torn one can be told.
TASKS = 20


async def commit(store: SQLiteStore) -> None:
    # The lease has run out as soon as it is given, so that the next process need not wait.
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
    # The clock of the tests, which stands still.
    store = SQLiteStore(path, clock=FakeClock())
    await store.open()
    print("open", flush=True)  # noqa: T201
    await {"commit": commit, "contend": contend}[what](store)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
