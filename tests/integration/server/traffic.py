"""Clients and agents under which servers are killed: each remembers what it was promised."""

import asyncio
from collections import Counter
from random import Random
from typing import Any
from uuid import uuid4

import httpx
import msgspec

from phalanx.core.events import WorkerRegistered
from phalanx.sim.machine import MachineSuperseded, SimulatedMachine, Unregistered
from phalanx.wire.sync import SyncReply, SyncRequest
from tests.integration.server.waiting import PATIENCE_S, eventually, pass_time
from tests.plain_http import async_http_client


class Fleet:
    """The servers that a client knows; it remembers the one that answered last."""

    def __init__(self, *urls: str) -> None:
        self.urls = list(urls)
        limits = httpx.Limits(max_connections=200)
        self._client = async_http_client(timeout=20, limits=limits)
        self._first = 0

    async def call(self, method: str, path: str, **given: Any) -> httpx.Response:
        """The answer of the server that leads. Raises ConnectionError if none does."""
        for number in range(len(self.urls)):
            at = (self._first + number) % len(self.urls)
            try:
                answer = await self._client.request(method, self.urls[at] + path, **given)
            except httpx.HTTPError:
                continue
            if answer.status_code in (307, 503, 504):
                continue
            self._first = at
            return answer
        raise ConnectionError("no server leads")

    async def insist(self, method: str, path: str, **given: Any) -> httpx.Response:
        """Ask until somebody answers. What is asked must do no harm when it is done twice."""
        answers: list[httpx.Response] = []

        async def asked() -> bool:
            try:
                answers.append(await self.call(method, path, **given))
            except ConnectionError:
                return False
            return True

        await eventually(asked, PATIENCE_S)
        return answers[0]

    async def close(self) -> None:
        await self._client.aclose()


class Submitter:
    """Submits one job after another and remembers those that were acknowledged."""

    def __init__(self, fleet: Fleet, **job: Any) -> None:
        self._fleet = fleet
        self._job = job
        self.acknowledged: list[str] = []
        self._task = asyncio.create_task(self._submit())

    async def _submit(self) -> None:
        while True:
            # Submitted again with the same key, it is the same job.
            answer = await self._fleet.insist(
                "POST",
                "/jobs",
                json=self._job,
                headers={"Idempotency-Key": uuid4().hex},
            )
            assert answer.status_code in (200, 201), answer.text
            self.acknowledged.append(answer.json()["id"])
            # The agents run about as many jobs as are submitted, however long the test takes.
            await pass_time(0.1)

    async def more(self, count: int) -> None:
        """Until so many more are acknowledged."""
        wanted = len(self.acknowledged) + count

        async def there() -> bool:
            if self._task.done():
                self._task.result()
            return len(self.acknowledged) >= wanted

        await eventually(
            there, PATIENCE_S, lambda: f"{len(self.acknowledged)} of {wanted} were taken"
        )

    async def stop(self) -> list[str]:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return self.acknowledged


class Steady(Random):
    """Without chance: every task takes the shortest time and succeeds."""

    def random(self) -> float:
        return 0.99

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def uniform(self, a: float, b: float) -> float:
        return a


class Agents:
    """Machines with the simulator's agent on them, talking to real servers over HTTP."""

    def __init__(self, fleet: Fleet, count: int) -> None:
        self._fleet = fleet
        self.machines = [
            SimulatedMachine(f"w-{n}", Steady(), self._register, self._sync) for n in range(count)
        ]

    def boot(self) -> None:
        for machine in self.machines:
            machine.boot()

    def crash(self) -> None:
        for machine in self.machines:
            machine.crash()

    def ran(self) -> Counter[tuple[str, int]]:
        """How often each attempt was started, on all machines together."""
        return Counter(attempt for machine in self.machines for attempt in machine.started)

    async def _register(self, event: WorkerRegistered) -> None:
        answer = await self._fleet.call(
            "POST",
            "/workers/register",
            json={
                "id": event.worker,
                "incarnation": event.incarnation,
                "protocol": "sync",
                "exec_addr": event.address,
                "resources": {"gpu": 2, "cpu": 8},
            },
        )
        assert answer.status_code in (200, 201), answer.text

    async def _sync(self, worker: str, request: SyncRequest) -> SyncReply:
        answer = await self._fleet.call(
            "POST", f"/workers/{worker}/sync", content=msgspec.json.encode(request)
        )
        if answer.status_code == 404:
            raise Unregistered
        if answer.status_code == 409:
            raise MachineSuperseded
        if answer.status_code != 200:
            raise ConnectionError(answer.text)
        return msgspec.json.decode(answer.content, type=SyncReply)


class PlainWorker:
    """A plain runner, like a shell script with curl: it claims, runs and reports."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self._fleet = fleet
        self._name = name
        self.ran: list[tuple[str, int]] = []
        self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        await self._register()
        while True:
            try:
                claim = await self._fleet.call(
                    "GET", "/jobs/next", params={"worker_id": self._name, "wait": 2}
                )
            except ConnectionError:
                # A claim may have been lost on the way: register again.
                await self._register()
                continue
            if claim.status_code == 200:
                await self._run(claim.json())

    async def _register(self) -> None:
        await self._fleet.insist("POST", "/workers/register", json={"id": self._name})

    async def _run(self, claim: dict[str, Any]) -> None:
        attempt = (claim["id"].partition("@")[0], claim["reservation_epoch"])
        self.ran.append(attempt)
        answer = await self._fleet.insist(
            "POST",
            f"/jobs/{attempt[0]}/done",
            params={"epoch": attempt[1], "worker_id": self._name},
        )
        # Reported again, because the first answer was lost.
        assert answer.status_code in (200, 404, 409), answer.text

    async def stop(self) -> list[tuple[str, int]]:
        self._task.cancel()
        [ended] = await asyncio.gather(self._task, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended
        return self.ran


async def all_done(fleet: Fleet, jobs: list[str], seconds: float = 3 * PATIENCE_S) -> None:
    """Return when each of these jobs is done."""
    left = dict.fromkeys(jobs)

    async def asked() -> bool:
        for job in list(left):
            try:
                answer = await fleet.call("GET", f"/jobs/{job}")
            except ConnectionError:
                return False
            assert answer.status_code == 200, f"job {job} was acknowledged and is missing"
            phase = answer.json()["phase"]
            assert phase not in ("failed", "cancelled", "timed-out"), answer.text
            if phase != "done":
                return False
            del left[job]
        return True

    await eventually(asked, seconds, lambda: f"{len(left)} of {len(jobs)} jobs are not done")
