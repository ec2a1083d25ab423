"""Crons on servers that crash, freeze and lose their store: no scheduled time may run twice."""

import asyncio
from collections import Counter

from phalanx.core import events
from phalanx.core.records import CronDenied
from phalanx.core.spec.validation import job_spec
from phalanx.core.time_units import MINUTE
from phalanx.engine.errors import NoAnswer
from phalanx.sim.faulty_server import START, FaultyServers
from phalanx.store import rows

_HOUR_S = 3600.0
_CRON = job_spec(
    {
        "name": "every-minute",
        "schedule": {"cron": "* * * * *", "concurrency": "allow", "keep": {"done": 1000}},
        "roles": {"a": {"command": "x"}},
    }
)


class _CronSimulation(FaultyServers):
    async def apply(self, event: events.Event) -> None:
        """Apply an event, and retry until a leader has acknowledged it."""
        while True:
            leader = self.leader()
            try:
                if leader is not None:
                    await leader.apply(event)
                    return
            except NoAnswer:
                pass
            await asyncio.sleep(0.5)

    def has_denied(self) -> bool:
        """Whether a run of the cron was denied."""
        records = self.database.content.records.values()
        return any(isinstance(rows.record_from(row.doc), CronDenied) for row in records)

    def runs_by_minute(self) -> Counter[int]:
        """The number of runs for each scheduled minute since the start."""
        jobs = (rows.job_from(row.doc) for row in self.database.content.jobs.values())
        return Counter(((job.due_at or 0) - START) // MINUTE for job in jobs if job.cron)


async def simulate_crons(seed: int) -> list[int]:
    """Simulate an hour with a cron that runs every minute; return the minutes that ran.

    Raises AssertionError if a minute ran twice.
    """
    simulation = _CronSimulation(seed)
    simulation.boot()
    await simulation.apply(events.CronSet(_CRON))
    loop = asyncio.get_running_loop()
    while loop.time() < _HOUR_S:
        await simulation.inject_fault()
        await asyncio.sleep(simulation.random.uniform(0, 30))
        simulation.check_alive()
    await asyncio.sleep(120.0)
    simulation.kill()
    runs = simulation.runs_by_minute()
    # A second run of a minute would be denied for its name; it must not even be attempted.
    if simulation.has_denied() or any(count > 1 for count in runs.values()):
        raise AssertionError(f"bug: scheduled times of a cron ran twice: {runs}")
    return sorted(runs)
