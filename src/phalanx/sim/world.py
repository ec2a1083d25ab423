"""A whole cluster from a seed: servers, machines, users, and everything that can go wrong between.

The core's invariants are checked after every turn, and the truth about the machines all the time.
In the end every job is over, or waits for a reason that is true.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from phalanx.core import events
from phalanx.core.ids import JOB_ID_BITS, job_id
from phalanx.core.reasons import After, NeverFits, NotEnough
from phalanx.core.spec.job import SECOND, Micros
from phalanx.core.spec.validation import job_spec
from phalanx.engine.settings import EngineSettings
from phalanx.sim.faults import Faults
from phalanx.sim.invariants import SimulationInvariant, violated
from phalanx.sim.machine import SimulatedMachine
from phalanx.sim.machine_checks import MachineChecks
from phalanx.sim.network import Network
from phalanx.sim.server import SimulatedServer

#: The simulation begins here, as far as its rows know.
_EPOCH: Micros = 1_700_000_000 * SECOND
#: After the last fault, everything must be over by then: retries, backoffs and time-outs included.
_PATIENCE_S = 2 * 3600.0


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311
        loop = asyncio.get_running_loop()
        self.faults = Faults(lambda: _EPOCH + int(loop.time() * SECOND))
        settings = EngineSettings()
        self.servers = [
            SimulatedServer(name, self.random, self.faults, settings) for name in ("north", "south")
        ]
        self.network = Network(self.random, self.servers)
        self.machines = [
            SimulatedMachine(f"m{n}", self.random, self.network.register, self.network.sync)
            for n in range(self.random.randint(2, 6))
        ]
        self.truth = MachineChecks(self.faults.database, self.machines)
        self.acknowledged: list[str] = []

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
                    "env": {"DOOMED": "yes"} if random.random() < 0.1 else {},
                }
            },
            "restart": random.choice(["gang", "gang", "task", "never"]),
            "match": random.choice(["only-waiting", "waiting-and-running", "once-satisfied"]),
            "grace": random.choice(["1s", "15s"]),
            "backoff": "5s",
            "time_limit": random.choice([None, "30s"]),
            "after": random.sample(self.acknowledged, random.choice([0, 0, 0, 1]))
            if self.acknowledged
            else [],
        }
        job = job_id(random.getrandbits(JOB_ID_BITS))
        ended = self._ended(document["after"])
        event = events.Submitted(job, job_spec(document), ended=ended)
        if await self.network.command(event):
            self.acknowledged.append(job)

    def _ended(self, jobs: list[str]) -> dict[str, Any]:
        found = {job: self.truth.job(job) for job in jobs}
        return {job: row.phase for job, row in found.items() if row and not row.is_live}

    # What goes wrong

    async def befall(self) -> None:
        """One thing happens."""
        action, weight = self.random.choice, self.random.random()
        machine, server = action(self.machines), action(self.servers)
        happenings: list[Callable[[], Any]] = [
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
            self._bad_network,
            self._bad_store,
        ]
        happening = happenings[int(weight * len(happenings))]
        result = happening()
        if asyncio.iscoroutine(result):
            await result

    async def _cancel(self) -> None:
        if self.acknowledged:
            await self.network.command(
                events.CancelRequested(self.random.choice(self.acknowledged))
            )

    async def _evict(self) -> None:
        if self.acknowledged:
            job = self.random.choice(self.acknowledged)
            await self.network.command(
                events.Evicted(job, by="chance", why="evicted by the simulator")
            )

    def _kill_process(self, machine: SimulatedMachine) -> None:
        if machine.processes:
            process = machine.processes[self.random.choice(sorted(machine.processes))]
            process.code = 137
            process.ends_at = 0.0

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

    def _bad_network(self) -> None:
        self.network.loss_rate = 0.2
        self._later(self.random.uniform(1, 60), self._good_network)

    def _good_network(self) -> None:
        self.network.loss_rate = 0.0

    def _bad_store(self) -> None:
        self.faults.rate = 0.2
        self._later(self.random.uniform(1, 30), self._good_store)

    def _good_store(self) -> None:
        self.faults.rate = 0.0

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, what)

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
                await self.befall()
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
        """No more faults: every job comes to its end, and nothing that was promised is missing."""
        await asyncio.sleep(120.0)  # what is frozen or down comes back
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while self._unsettled():
                    if watch.done():
                        watch.result()
                    # Jobs that fail late cordon workers too.
                    await self._uncordon()
                    await asyncio.sleep(5.0)
        except TimeoutError:
            detail = f"{self._told(self._unsettled())}"
            raise violated(SimulationInvariant.JOBS_END, detail) from None
        await asyncio.sleep(200.0)
        self.check()
        alive = [attempt for machine in self.machines for attempt in machine.processes]
        if alive:
            raise violated(SimulationInvariant.PROCESSES_END, f"{alive}")

    async def _uncordon(self) -> None:
        """An operator looks at machines that are cordoned for having failed too often."""
        for machine in self.machines:
            while not await self.network.command(events.CordonChanged(machine.name, None)):
                await asyncio.sleep(1.0)

    def _unsettled(self) -> list[str]:
        return [job for job in self.acknowledged if not self._is_settled(job)]

    def _is_settled(self, job: str) -> bool:
        """Over, or waiting for a reason that is true and will stay so."""
        row = self.truth.job(job)
        if row is None:
            return False
        if not row.is_live:
            return True
        leader = next((s.engine for s in self.servers if s.is_up and s.engine.is_leading), None)
        reason = None if leader is None else leader.reasons.get(job)
        if isinstance(reason, After):
            return all(self._is_settled(other) for other in reason.jobs)
        [role] = row.spec.roles
        gpu = role.resources.get("gpu", 0)
        room = len(self.machines) * (2000 // gpu) if gpu else role.replicas
        return isinstance(reason, NeverFits | NotEnough) and room < row.spec.min_available

    def _told(self, jobs: list[str]) -> list[str]:
        return [f"{job}: {self.truth.job(job)}" for job in jobs]

    def check(self) -> None:
        for server in self.servers:
            server.check_alive()
        self.truth.check(self.acknowledged)


async def simulate(seed: int, steps: int) -> World:
    world = World(seed)
    await world.run(steps)
    return world
