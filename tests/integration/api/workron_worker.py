"""Workron's worker, as its repository has it: the same requests in the same order.

It registers every field of its struct, polls with three pollers under one id, sends a heartbeat for
each task, and stops a task with SIGTERM, and with SIGKILL after its grace. It repeats the id of a
claim and knows nothing of attempts. Its times are shorter here: see the constants.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from tests.integration.api.serving import Running
from tests.integration.server.waiting import PATIENCE_S

#: 1 s, 5 s, 15 s and 15 s in its source.
POLL_S, HEARTBEAT_S, WORKER_HEARTBEAT_S, GRACE_S = 0.05, 0.1, 0.3, 0.3
NEVER = "0001-01-01T00:00:00Z"


class Process:
    """The process of a task. It runs until a test, or a signal, ends it."""

    def __init__(self, claim: dict[str, Any], machine: "Machine") -> None:
        self.claim = claim
        self.task, _, attempt = claim["id"].partition("@")
        self.attempt = int(attempt)
        self.env: dict[str, str] = claim["env"]
        self.ignores_sigterm = False
        self.was_killed = False
        self.code: int | None = None
        self.ended = asyncio.Event()
        self._machine = machine

    def exit(self, code: int = 0) -> None:
        if self.code is None:
            self.code = code
            self.ended.set()
            self._machine.note()

    def terminate(self) -> None:
        if not self.ignores_sigterm:
            self.exit(143)

    def kill(self) -> None:
        self.was_killed = self.code is None
        self.exit(137)


class Machine:
    """The processes of all workers, and whether two of one task were ever alive at once."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.overlaps: list[tuple[str, int, int]] = []
        self._changed = asyncio.Event()

    def start(self, claim: dict[str, Any]) -> Process:
        process = Process(claim, self)
        self.overlaps += [
            (other.task, other.attempt, process.attempt)
            for other in self.alive()
            if other.task == process.task
        ]
        self.processes.append(process)
        self.note()
        return process

    def alive(self, attempt: int | None = None) -> list[Process]:
        """By task."""
        living = [process for process in self.processes if process.code is None]
        chosen = [p for p in living if attempt is None or p.attempt == attempt]
        return sorted(chosen, key=lambda process: process.task)

    def note(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                await self._changed.wait()


class WorkronWorker:
    def __init__(self, server: Running, machine: Machine, worker: str, pollers: int = 3) -> None:
        self.polls = 0
        #: What its process uploads when it gets SIGTERM.
        self.checkpoint: bytes | None = None
        self._server = server
        self._machine = machine
        self._worker = worker
        self._pollers = pollers
        self._running = [asyncio.Event() for _ in range(pollers)]
        self._tasks: list[asyncio.Task[None]] = []
        self.processes: list[Process] = []
        self._busy: dict[Process, int] = {}

    async def __aenter__(self) -> "WorkronWorker":
        body = {
            "id": self._worker,
            "exec_addr": f"{self._worker}.example:9000",
            "resources": {"memory_mb": 1000},
            "status": "",
            "last_heartbeat": NEVER,
            "registered_at": NEVER,
        }
        reply = await self._server.client.post("/workers/register", json=body)
        assert reply.status_code == 201, reply.text
        self.thaw()
        loops = [self._heartbeats_of_worker(), *map(self._poll, range(self._pollers))]
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL to the worker and its processes."""
        for task in self._tasks:
            task.cancel()
        outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        for process in self.processes:
            process.kill()
        for outcome in outcomes:
            if not isinstance(outcome, asyncio.CancelledError):
                assert outcome is None, outcome

    def poller_of(self, process: Process) -> int:
        return self._busy[process]

    def freeze(self, *pollers: int) -> None:
        """SIGSTOP: no more requests, while the processes of its tasks run on."""
        for poller in pollers or range(self._pollers):
            self._running[poller].clear()

    def thaw(self) -> None:
        for running in self._running:
            running.set()

    async def _send(
        self, poller: int, method: str, path: str, body: bytes | None = None
    ) -> tuple[int, Any]:
        await self._running[poller].wait()
        kind = {} if body is None else {"content-type": "application/octet-stream"}
        reply = await self._server.client.request(method, path, content=body, headers=kind)
        return reply.status_code, reply.json() if reply.content else None

    async def _heartbeats_of_worker(self) -> None:
        while True:
            await self._pause(WORKER_HEARTBEAT_S)
            if any(running.is_set() for running in self._running):
                await self._server.client.post(f"/workers/{self._worker}/heartbeat")

    async def _poll(self, poller: int) -> None:
        while True:
            status, claim = await self._send(poller, "GET", f"/jobs/next?worker_id={self._worker}")
            self.polls += 1
            self._machine.note()
            if status == 200:
                await self._execute(poller, claim)
            else:
                await self._pause(POLL_S)

    async def _execute(self, poller: int, claim: dict[str, Any]) -> None:
        process = self._machine.start(claim)
        self.processes.append(process)
        self._busy[process] = poller
        to_stop: list[int] = []
        heartbeats = asyncio.create_task(self._heartbeats(poller, process, to_stop))
        try:
            await process.ended.wait()
        finally:
            heartbeats.cancel()
            await asyncio.gather(heartbeats, return_exceptions=True)
        if to_stop:
            path = f"/jobs/{claim['id']}/preempted?epoch={to_stop[0]}"
        else:
            path = f"/jobs/{claim['id']}/{'fail' if process.code else 'done'}"
        await self._send(poller, "POST", path)

    async def _heartbeats(self, poller: int, process: Process, to_stop: list[int]) -> None:
        """Answers other than 200 are ignored."""
        while True:
            await self._pause(HEARTBEAT_S)
            status, reply = await self._send(
                poller, "POST", f"/jobs/{process.claim['id']}/heartbeat"
            )
            if status == 200 and reply.get("action") == "preempt" and not to_stop:
                to_stop.append(reply["preemption_epoch"])
                await self._stop(poller, process, to_stop[0])

    async def _stop(self, poller: int, process: Process, epoch: int) -> None:
        if self.checkpoint is not None:
            path = f"/jobs/{process.claim['id']}/checkpoint?epoch={epoch}"
            assert (await self._send(poller, "POST", path, self.checkpoint))[0] == 200
        process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await process.ended.wait()
        process.kill()

    @staticmethod
    async def _pause(seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.Event().wait()
