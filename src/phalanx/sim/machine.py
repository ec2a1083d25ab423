"""A simulated machine with an agent on it: it prepares, runs and stops what it is told to, reports
over a network that loses and repeats, and may die, freeze, forget, or come back as a zombie."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any

from phalanx.core.events import WorkerRegistered
from phalanx.core.model import Protocol
from phalanx.core.spec.job import SECOND
from phalanx.wire.sync import (
    Reported,
    SyncReply,
    SyncRequest,
    TaskInstruction,
    TaskReport,
    TaskSpec,
    Want,
)

#: How often all is said again, in case anything was missed.
_FULL_S = 60.0

Attempt = tuple[str, int]
Register = Callable[[WorkerRegistered], Awaitable[None]]
Sync = Callable[[str, SyncRequest], Coroutine[Any, Any, SyncReply]]


class MachineSuperseded(Exception):  # noqa: N818
    """A later incarnation has registered; this one stops its tasks and ends."""


class Unregistered(Exception):  # noqa: N818
    """The server does not know the worker."""


class Process:
    """A task's process tree on the machine."""

    def __init__(self, spec: TaskSpec, random: Random, now_s: float) -> None:
        self.devices = [d for d in spec.env.get("CUDA_VISIBLE_DEVICES", "").split(",") if d]
        self.ends_at = now_s + random.choice([0.1, 1.0, 20.0, 100.0])
        doomed = "DOOMED" in spec.env
        self.code = 1 if doomed or random.random() < 0.15 else 0
        #: How long it takes to die once told, the grace included.
        grace_s = spec.grace / SECOND
        self.dying_s = random.choice([0.0, 0.5, grace_s, grace_s, 90.0])
        self.signalled = False

    def stop(self, now_s: float) -> None:
        if not self.signalled:
            self.signalled = True
            self.code = 143
            self.ends_at = now_s + self.dying_s


class SimulatedMachine:
    def __init__(self, name: str, random: Random, register: Register, sync: Sync) -> None:
        self.name = name
        self._random = random
        self._register = register
        self._sync = sync
        self._loop = asyncio.get_running_loop()
        self._births = 0
        self._seq = 0
        self.incarnation = ""
        self.processes: dict[Attempt, Process] = {}
        self.started: list[Attempt] = []
        self.prepared: set[Attempt] = set()
        self._reports: dict[Attempt, TaskReport] = {}
        self._sent_full = False
        self._next_full = 0.0
        self._term = 0
        #: Cleared while the machine is frozen.
        self.awake = asyncio.Event()
        self.awake.set()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def boot(self) -> None:
        """A new incarnation that has nothing."""
        self._births += 1
        self.incarnation = f"{self.name}-{self._births}"
        self._seq = 0
        self.processes.clear()
        self._reports.clear()
        self._task = asyncio.create_task(self._live())

    def crash(self) -> None:
        """The power goes: processes, memory and all."""
        if self._task is not None:
            self._task.cancel()
        self._task = None
        self.processes.clear()
        self._reports.clear()

    @property
    def is_up(self) -> bool:
        return self._task is not None and not self._task.done()

    async def _live(self) -> None:
        await self._sign_on()
        pulse = asyncio.create_task(self._run_processes())
        try:
            while True:
                await self.awake.wait()
                await self._sync_once()
        except MachineSuperseded:
            self.processes.clear()
        finally:
            pulse.cancel()

    async def _sign_on(self) -> None:
        event = WorkerRegistered(
            self.name,
            self.incarnation,
            Protocol.SYNC,
            address=self.name,
            resources={"gpu": 2000, "cpu": 8000},
        )
        while True:
            try:
                await self._register(event)
            except ConnectionError:
                await asyncio.sleep(self._random.uniform(0.1, 2))
            else:
                self._sent_full = False
                return

    async def _sync_once(self) -> None:
        now = self._loop.time()
        full = not self._sent_full or now >= self._next_full
        self._next_full = now + _FULL_S if full else self._next_full
        reports = dict(self._reports)
        self._changed.clear()
        self._seq += 1
        request = SyncRequest(
            self.incarnation, self._seq, self._term, full, tuple(reports.values()), wait=10.0
        )
        call = asyncio.create_task(self._sync(self.name, request))
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait([call, changed], return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                # Something happened: a new call takes the place of the one that is held.
                return
            reply = call.result()
        except ConnectionError:
            await asyncio.sleep(self._random.uniform(0.1, 1))
            return
        except Unregistered:
            await self._sign_on()
            return
        finally:
            changed.cancel()
            call.cancel()
        await self.awake.wait()
        if reply.term < self._term:
            return  # from a leader that was deposed and does not know it
        self._term = reply.term
        self._sent_full = not reply.full
        for order in reply.tasks:
            self._obey(order)

    def _obey(self, order: TaskInstruction) -> None:
        attempt = (order.id, order.epoch)
        known = self._reports.get(attempt)
        process = self.processes.get(attempt)
        if order.want is Want.FORGET:
            if process is None:
                self._reports.pop(attempt, None)
        elif order.want is Want.STOP:
            if process is not None:
                process.stop(self._loop.time())
            elif known is None or known.state is Reported.ACCEPTED:
                self._report(attempt, Reported.GONE)
        elif order.want is Want.PREPARE and known is None:
            self.prepared.add(attempt)
            self._report(attempt, Reported.ACCEPTED)
        elif order.want is Want.RUN and (known is None or known.state is Reported.ACCEPTED):
            self._spawn(attempt, order)

    def _spawn(self, attempt: Attempt, order: TaskInstruction) -> None:
        if order.spec is None:
            raise AssertionError(f"bug: told to run {attempt} without saying what")
        if self._random.random() < 0.03:
            self._report(attempt, Reported.SPAWN_FAILED)
            return
        self.processes[attempt] = Process(order.spec, self._random, self._loop.time())
        self.started.append(attempt)
        self._report(attempt, Reported.RUNNING)

    def _report(self, attempt: Attempt, state: Reported, process: Process | None = None) -> None:
        code = None if process is None else process.code
        signalled = process is not None and process.signalled
        self._reports[attempt] = TaskReport(*attempt, state, exit_code=code, signalled=signalled)
        self._changed.set()

    async def _run_processes(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            await self.awake.wait()
            now = self._loop.time()
            for attempt, process in list(self.processes.items()):
                if process.ends_at <= now:
                    del self.processes[attempt]
                    self._report(attempt, Reported.EXITED, process)
