"""A leader killed between the commit and its answer: the client's repeat finds the same job."""

import asyncio
import signal
from pathlib import Path

from phalanx import Client
from phalanx.core.time_units import HOUR
from tests.compliance.backends import PostgresBackend
from tests.integration.server.load import FAST
from tests.integration.server.processes import Start

#: Python runs this when it starts: the server kills itself after the first commit with a job.
KILLED_AFTER_THE_COMMIT = """
import os, signal
from phalanx.engine.commits import Commits

commit = Commits.commit

async def commit_and_die(self, changes, *rest):
    await commit(self, changes, *rest)
    if any(each.jobs for each in changes):
        os.kill(os.getpid(), signal.SIGKILL)

Commits.commit = commit_and_die
"""


async def test_a_job_whose_answer_is_lost_with_the_leader_is_submitted_once(
    start: Start, database: PostgresBackend, dsn: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(KILLED_AFTER_THE_COMMIT)
    flags = (*FAST, "--lease=1h")
    first = await start(dsn, "first", *flags, PYTHONPATH=str(tmp_path))
    await first.line("leading")
    second = await start(dsn, "second", *flags)
    await second.line("standing by")

    def submit() -> tuple[str, list[str], str]:
        with Client([first.url, second.url], patience_s=60) as client:
            job = client.submit(command="x", name="once").id
            jobs = [each.id for each in client.jobs(name="once")]
            [record] = client.audit(target=job)
            return job, jobs, record.action

    submitting = asyncio.create_task(asyncio.to_thread(submit))
    assert await first.ended() == -signal.SIGKILL
    await database.advance_clock(HOUR)
    job, jobs, action = await submitting
    assert (jobs, action) == ([job], "submit")
