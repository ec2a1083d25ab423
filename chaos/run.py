"""One run: the cluster, the jobs, the faults, the end, and the verdict of the checker."""

import asyncio
import fcntl
import sys
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from chaos.checker import JobOutcome, Violation, check
from chaos.cluster import PROGRAM, Cluster
from chaos.database import database
from chaos.faults import FaultInjector
from chaos.journal import TaskRun, read_runs
from chaos.schedule import FaultKind, PlannedJob, Schedule, schedule
from chaos.user import User

#: After the last fault, every job must end within this time.
_END_WITHIN_S = 300.0
#: After the last job, every process must be gone within this time.
_GONE_WITHIN_S = 90.0
_READY_WITHIN_S = 90.0
_UNCORDON_S = 3.0
#: While this many jobs have not ended, new ones are left out: the run is about faults, not queues.
_UNFINISHED = 30
_POLL_S = 0.5
_ENDED = ("done", "failed", "cancelled", "timed-out")


class RunResult(NamedTuple):
    schedule: Schedule
    outcomes: list[JobOutcome]
    runs: list[TaskRun]
    violations: list[Violation]
    faults: Counter[FaultKind]
    skipped: int  #: faults whose target had another one
    left_out: int  #: jobs that came while the cluster had enough of them
    seconds: float


class ChaosRun:
    def __init__(self, seed: int, seconds: float, store: str, folder: Path) -> None:
        # The interpreter of the harness, without packages: it starts fast.
        program = [str(Path(sys.executable).resolve()), "-I", "-S", str(PROGRAM)]
        self._schedule = schedule(seed, seconds, has_database=store == "postgres", program=program)
        for job in self._schedule.jobs:
            job.document["roles"]["worker"]["env"]["CHAOS_DIR"] = str(folder)
        self._store = store
        self._folder = folder
        self._left_out = 0
        self._user: User
        self._cluster: Cluster

    async def run(self, *, has_disks: bool) -> RunResult:
        began = time.monotonic()
        async with database(self._store, self._folder) as store:
            self._cluster = Cluster(self._folder, store.store, has_disks=has_disks)
            self._user = User(self._cluster.urls)
            injector = FaultInjector(self._cluster, store, self._user)
            try:
                await self._cluster.start()
                await self._until(self._all_active, _READY_WITHIN_S, "every worker is active")
                await self._turbulence(injector)
                outcomes, violations = await self._end()
            finally:
                await self._user.close()
                await self._cluster.close()
        runs = read_runs(self._folder / "journal")
        return RunResult(
            self._schedule,
            outcomes,
            runs,
            violations + check(outcomes, runs, self._listed),
            injector.done,
            injector.skipped,
            self._left_out,
            time.monotonic() - began,
        )

    # Jobs and faults

    async def _turbulence(self, injector: FaultInjector) -> None:
        """Submit the jobs and do the faults, each at its time, until all of it is done."""
        uncordon = asyncio.create_task(self._uncordon_forever())
        try:
            async with asyncio.TaskGroup() as group:
                for job in self._schedule.jobs:
                    group.create_task(self._after(job.at_s, self._submit(job)))
                for fault in self._schedule.faults:
                    group.create_task(self._after(fault.at_s, injector.inject(fault)))
        finally:
            uncordon.cancel()

    async def _after(self, seconds: float, action: Coroutine[Any, Any, None]) -> None:
        await asyncio.sleep(seconds)
        await action

    async def _submit(self, job: PlannedJob) -> None:
        unfinished = await self._user.get(f"/jobs?finished=false&limit={_UNFINISHED}")
        if len(unfinished["jobs"]) == _UNFINISHED:
            self._left_out += 1
            return
        await self._user.submit(job)
        if job.cancel_after_s is not None:
            await asyncio.sleep(job.cancel_after_s)
            await self._user.cancel(job)

    async def _uncordon_forever(self) -> None:
        """Undo what the server does to workers on which many jobs failed, as an operator would."""
        while True:
            await asyncio.sleep(_UNCORDON_S)
            await self._uncordon()

    async def _uncordon(self) -> None:
        for worker in await self._user.workers():
            if "cordoned" in str(worker.get("status")) or worker.get("cordoned"):
                await self._user.uncordon(worker["id"])

    # The end

    async def _end(self) -> tuple[list[JobOutcome], list[Violation]]:
        violations = []
        try:
            await self._until(self._all_ended, _END_WITHIN_S, "every job has ended")
        except TimeoutError:
            unfinished = [job for job in await self._user.jobs() if job["phase"] not in _ENDED]
            violations += [
                Violation("jobs-end", job["name"], f"is {job['phase']}: {job.get('reason')}")
                for job in unfinished
            ]
        try:
            await self._until(self._all_gone, _GONE_WITHIN_S, "every process is gone")
        except TimeoutError:
            violations += [
                Violation("no-orphans", name, "a process is alive") for name in self._alive()
            ]
        self._listed = await self._user.jobs()
        planned = {job.name: job for job in self._schedule.jobs}
        outcomes = []
        for name, job in self._user.acknowledged.items():
            events = await self._user.get(f"/jobs/{job}/events?limit=1000")
            outcomes.append(
                JobOutcome(
                    planned[name],
                    job,
                    await self._user.get(f"/jobs/{job}"),
                    [] if events is None else events["events"],
                    name in self._user.cancelled,
                )
            )
        return outcomes, violations

    async def _until(self, condition: Any, seconds: float, what: str) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not await condition():
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise TimeoutError(f"not within {seconds:g} s: {what}") from None

    async def _all_active(self) -> bool:
        listed = await self._user.workers()
        active = {worker["id"] for worker in listed if worker["status"] == "active"}
        return all(worker.name in active for worker in self._cluster.workers)

    async def _all_ended(self) -> bool:
        await self._uncordon()
        return not (await self._user.get("/jobs?finished=false&limit=1"))["jobs"]

    async def _all_gone(self) -> bool:
        return not self._alive()

    def _alive(self) -> list[str]:
        """The tasks of which a process holds its lock."""
        locks = (self._folder / "locks").glob("*/task.*")
        return sorted(f"{path.parent.name} {path.name}" for path in locks if _is_held(path))


def _is_held(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
