"""Submissions to servers that crash, freeze and lose their store: each answer must be true.

A submission is done, not done, or of unknown outcome. A job that was reported as done is in the
store, and a job that was reported as not done never appears there.
"""

import asyncio
from collections import Counter

from phalanx.core.errors import CoreError
from phalanx.core.events import Submitted
from phalanx.core.ids import JOB_ID_BITS, job_id
from phalanx.core.spec.validation import job_spec
from phalanx.engine.errors import NotLeading, Unavailable, UncertainOutcome
from phalanx.sim.faulty_server import FaultyServers
from phalanx.sim.invariants import SimulationInvariant, violated
from phalanx.sim.network import CommandOutcome

_USERS = 4
_LENGTH_S = 300.0
_SPEC = job_spec({"roles": {"a": {"command": "x"}}})


class _OutcomeSimulation(FaultyServers):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.outcomes: dict[str, CommandOutcome] = {}
        self._submitting = asyncio.Event()

    async def use(self) -> None:
        """Submit one job after the other, forever."""
        while True:
            await asyncio.sleep(self.random.uniform(0, 10))
            leader = self.leader()
            if leader is None:
                continue
            job = job_id(self.random.getrandbits(JOB_ID_BITS))
            self._submitting.set()
            try:
                await leader.apply(Submitted(job, _SPEC))
            except UncertainOutcome:
                self.outcomes[job] = CommandOutcome.UNKNOWN
            except (NotLeading, Unavailable, CoreError):
                self.outcomes[job] = CommandOutcome.NOT_DONE
            else:
                self.outcomes[job] = CommandOutcome.DONE

    async def submission_under_way(self) -> None:
        """Return at a moment at which a submission is probably being committed."""
        self._submitting.clear()
        await self._submitting.wait()
        await asyncio.sleep(self.random.uniform(0, 0.015))

    def check(self) -> None:
        """Raise InvariantViolated if an answer was not true."""
        for job, outcome in self.outcomes.items():
            is_stored = job in self.database.content.jobs
            if outcome is CommandOutcome.DONE and not is_stored:
                raise violated(SimulationInvariant.ACKNOWLEDGED_JOBS_ARE_STORED, f"job {job}")
            if outcome is CommandOutcome.NOT_DONE and is_stored:
                raise violated(SimulationInvariant.REFUSED_JOBS_ARE_NOT_STORED, f"job {job}")


async def simulate_outcomes(seed: int) -> Counter[CommandOutcome]:
    """Simulate some minutes with several users; how often each outcome was reported.

    Raises InvariantViolated if an answer was not true.
    """
    simulation = _OutcomeSimulation(seed)
    simulation.boot()
    users = [asyncio.create_task(simulation.use()) for _ in range(_USERS)]
    loop = asyncio.get_running_loop()
    while loop.time() < _LENGTH_S:
        await simulation.submission_under_way()
        await simulation.inject_fault()
        await asyncio.sleep(simulation.random.uniform(0, 5))
        simulation.check_alive()
    for user in users:
        user.cancel()
    simulation.kill()
    await asyncio.gather(*users, return_exceptions=True)
    simulation.check()
    return Counter(simulation.outcomes.values())
