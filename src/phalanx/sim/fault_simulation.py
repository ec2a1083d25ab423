"""A whole cluster with random faults, from a seed: servers, workers, network and users.

The core's invariants are checked after every turn of a leader, and the simulated workers all the
time. In the end every job must have ended, or be pending with a correct reason.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from phalanx.core import events
from phalanx.core.array import elements_of
from phalanx.core.ids import JOB_ID_BITS, job_id
from phalanx.core.model import Job
from phalanx.core.reasons import After, NeverFits, NotEnough
from phalanx.core.spec.job import DEPENDENCY_FIELDS
from phalanx.core.spec.validation import job_spec
from phalanx.core.time_units import SECOND, Micros
from phalanx.engine.settings import EngineSettings
from phalanx.sim.faulty_store import SharedDatabase
from phalanx.sim.invariants import SimulationInvariant, violated
from phalanx.sim.machine import SimulatedMachine
from phalanx.sim.machine_checks import MachineChecks
from phalanx.sim.network import CommandOutcome, SimulatedNetwork
from phalanx.sim.server import SimulatedServer

#: The wall clock at the start of the simulation.
_START: Micros = 1_700_000_000 * SECOND
#: After the last fault, all jobs must end within this time, with all retries and timeouts.
_END_WITHIN_S = 2 * 3600.0
#: Every so many submissions one is an array.
_ARRAY_EVERY = 6


class FaultSimulation:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311
        loop = asyncio.get_running_loop()
        self.database = SharedDatabase(lambda: _START + int(loop.time() * SECOND))
        settings = EngineSettings()
        self.servers = [
            SimulatedServer(name, self.random, self.database, settings)
            for name in ("north", "south")
        ]
        self.network = SimulatedNetwork(self.random, self.servers)
        self.machines = [
            SimulatedMachine(f"m{n}", self.random, self.network.register, self.network.sync)
            for n in range(self.random.randint(2, 6))
        ]
        self.checks = MachineChecks(self.database.content, self.machines)
        self.acknowledged: list[str] = []
        self.refused: list[str] = []

    # Users

    async def submit(self) -> None:
        random = self.random
        replicas = random.choice([1, 1, 2, 3, 4, 6])
        document: dict[str, Any] = {
            "roles": {
                "worker": {
                    "command": "train",
                    "replicas": replicas,
                    "min": random.choice([replicas, replicas, max(1, replicas - 1)]),
                    "resources": random.choice([{}, {"gpu": 1}, {"gpu": 0.5}, {"gpu": 2}]),
                    "env": {"ALWAYS_FAILS": "yes"} if random.random() < 0.1 else {},
                }
            },
            "restart": random.choice(["gang", "gang", "task", "never"]),
            "match": random.choice(["only-waiting", "waiting-and-running", "once-satisfied"]),
            # With a checkpoint, a gang that is partly done starts again.
            "checkpoint": "each" if replicas in (3, 4) else "none",
            "grace": random.choice(["1s", "15s"]),
            "backoff": "5s",
            "time_limit": random.choice([None, "30s"]),
        }
        dependencies: list[str] = []
        if self.acknowledged:
            dependencies = random.sample(self.acknowledged, random.choice([0, 0, 0, 1]))
            document[DEPENDENCY_FIELDS[len(self.acknowledged) % 3]] = dependencies
        if replicas == 2 and document["restart"] != "never":
            document["watch"] = {"loss": {"nan": "restart"}}
        if len(self.acknowledged) % _ARRAY_EVERY == _ARRAY_EVERY - 1:
            document["array"] = random.choice(["0-5", "0-7%2", "2,5-9:2%1"])
        job = job_id(random.getrandbits(JOB_ID_BITS))
        ended = self._ended(dependencies)
        event = events.Submitted(job, job_spec(document), ended=ended)
        outcome = await self.network.outcome(event)
        if outcome is CommandOutcome.DONE:
            self.acknowledged.append(job)
        elif outcome is CommandOutcome.NOT_DONE:
            self.refused.append(job)

    def _ended(self, jobs: list[str]) -> dict[str, Any]:
        rows = {job: self.checks.job(job) for job in jobs}
        return {job: row.phase for job, row in rows.items() if row and not row.is_live}

    # Random actions and faults

    async def act(self) -> None:
        """Take one random action: of a user, or a fault."""
        number = self.random.random()
        machine = self.random.choice(self.machines)
        server = self.random.choice(self.servers)
        actions: list[Callable[[], Any]] = [
            self.submit,
            self.submit,
            self.submit,
            self._cancel,
            self._evict,
            lambda: self._kill_process(machine),
            lambda: self._freeze(machine.awake, self.random.choice([1, 20, 60])),
            lambda: self._reboot(machine),
            lambda: self._crash_server(server),
            lambda: self._freeze(server.store.awake, self.random.choice([1, 15])),
            self._degrade_network,
            self._degrade_store,
        ]
        result = actions[int(number * len(actions))]()
        if asyncio.iscoroutine(result):
            await result

    async def _cancel(self) -> None:
        if self.acknowledged:
            job = self.random.choice(self.acknowledged)
            row = self.checks.job(job)
            if row is not None and row.is_array:
                await self._change_elements(row)
            else:
                await self.network.command(events.CancelRequested(job))

    async def _change_elements(self, array: Job) -> None:
        """Cancel some elements or all of them, or run those again that have failed."""
        job, indices = array.id, tuple(elements_of(array))
        if not array.is_live:
            blocks = self.checks.elements(job)
            event: events.Event = events.ElementsRetried(job, row=array, blocks=blocks)
        elif len(self.acknowledged) % 2:
            event = events.ElementsCancelled(job, indices[1:4])
        else:
            event = events.CancelRequested(job)
        await self.network.command(event)

    async def _evict(self) -> None:
        if self.acknowledged:
            job = self.random.choice(self.acknowledged)
            await self.network.command(
                events.Evicted(job, by="simulator", why="evicted by the simulator")
            )

    def _kill_process(self, machine: SimulatedMachine) -> None:
        if machine.processes:
            machine.kill_process(self.random.choice(sorted(machine.processes)))

    async def _freeze(self, awake: asyncio.Event, seconds: float) -> None:
        awake.clear()
        self._later(seconds, awake.set)

    def _reboot(self, machine: SimulatedMachine) -> None:
        if machine.is_up:
            machine.crash()
            self._later(self.random.uniform(0, 60), machine.boot)

    def _crash_server(self, server: SimulatedServer) -> None:
        if server.is_up:
            server.kill()
            self._later(self.random.uniform(0, 20), server.boot)

    def _degrade_network(self) -> None:
        self.network.loss_rate = 0.2
        self._later(self.random.uniform(1, 60), self._restore_network)

    def _restore_network(self) -> None:
        self.network.loss_rate = 0.0

    def _degrade_store(self) -> None:
        self.database.fault_rate = 0.2
        self._later(self.random.uniform(1, 30), self._restore_store)

    def _restore_store(self) -> None:
        self.database.fault_rate = 0.0

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, action)

    # Running

    async def run(self, steps: int) -> None:
        for server in self.servers:
            server.boot()
        for machine in self.machines:
            machine.boot()
        watch = asyncio.create_task(self._watch())
        try:
            for _ in range(steps):
                await asyncio.sleep(self.random.choice([0.0, 0.1, 1.0, 5.0, 20.0]))
                await self.act()
                self.check()
                if watch.done():
                    watch.result()
            await self._end(watch)
        finally:
            watch.cancel()
            for server in self.servers:
                server.kill()
            for machine in self.machines:
                machine.crash()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            self.check()

    async def _end(self, watch: asyncio.Task[None]) -> None:
        """Without further faults, every job and every process must end."""
        await asyncio.sleep(120.0)  # frozen and crashed servers and workers are back by then
        try:
            async with asyncio.timeout(_END_WITHIN_S):
                while self._unsettled():
                    if watch.done():
                        watch.result()
                    # Jobs that fail late can cordon workers again.
                    await self._uncordon()
                    await asyncio.sleep(5.0)
        except TimeoutError:
            detail = f"{self._rows(self._unsettled())}"
            raise violated(SimulationInvariant.JOBS_END, detail) from None
        await asyncio.sleep(200.0)
        self.check()
        alive = [attempt for machine in self.machines for attempt in machine.processes]
        if alive:
            raise violated(SimulationInvariant.PROCESSES_END, f"{alive}")

    async def _uncordon(self) -> None:
        """Uncordon the workers that were cordoned for failing too often, as an operator would."""
        for machine in self.machines:
            while not await self.network.command(events.CordonChanged(machine.name, None)):
                await asyncio.sleep(1.0)

    def _unsettled(self) -> list[str]:
        """The jobs that are not settled, also those whose acknowledgement was lost."""
        jobs = dict.fromkeys((*self.acknowledged, *self.database.content.jobs))
        return [job for job in jobs if not self._is_settled(job)]

    def _is_settled(self, job: str) -> bool:
        """Whether a job has ended, or is pending with a reason that stays correct."""
        row = self.checks.job(job)
        if row is None:
            return False
        if not row.is_live:
            return True
        if row.is_array:
            waits = () if row.pending is None else row.pending.after
            return all(map(self._is_settled, waits or self.checks.live_elements(job) or [""]))
        leader = next((s.engine for s in self.servers if s.is_up and s.engine.is_leading), None)
        reason = None if leader is None else leader.reasons.get(job)
        if isinstance(reason, After):
            return all(self._is_settled(other) for other in reason.jobs)
        [role] = row.spec.roles
        gpu = role.resources.get("gpu", 0)
        fitting = len(self.machines) * (2000 // gpu) if gpu else role.replicas
        return isinstance(reason, NeverFits | NotEnough) and fitting < row.spec.min_available

    def _rows(self, jobs: list[str]) -> list[str]:
        return [f"{job}: {self.checks.job(job)}" for job in jobs]

    def check(self) -> None:
        for server in self.servers:
            server.check_alive()
        self.checks.check(self.acknowledged, self.refused)


async def simulate_faults(seed: int, steps: int) -> FaultSimulation:
    """Simulate a cluster. Raises AssertionError or InvariantViolated on the first violation."""
    simulation = FaultSimulation(seed)
    await simulation.run(steps)
    return simulation
