"""A simulated worker: an agent that follows instructions and reports over a faulty network.

It can crash, freeze, and resume with processes of an old attempt.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any

from phalanx.core.events import AbnormalValue, WorkerRegistered
from phalanx.core.model import Protocol
from phalanx.core.spec.watch import AbnormalKind
from phalanx.core.time_units import SECOND
from phalanx.wire.sync import (
    Reported,
    SyncReply,
    SyncRequest,
    TaskInstruction,
    TaskProgress,
    TaskReport,
    TaskSpec,
    Want,
)

#: The interval of full inventories.
_INVENTORY_S = 60.0

Attempt = tuple[str, int]
Register = Callable[[WorkerRegistered], Awaitable[None]]
Sync = Callable[[str, SyncRequest], Coroutine[Any, Any, SyncReply]]


class MachineSuperseded(Exception):  # noqa: N818
    """A later incarnation has registered; this one kills its tasks and exits."""


class Unregistered(Exception):  # noqa: N818
    """The server does not know the worker."""


class SimulatedProcess:
    """The processes of one attempt, with a random duration and outcome."""

    def __init__(self, spec: TaskSpec, random: Random, now_s: float) -> None:
        self.devices = [d for d in spec.env.get("CUDA_VISIBLE_DEVICES", "").split(",") if d]
        self.ends_at = now_s + random.choice([0.1, 1.0, 20.0, 100.0])
        always_fails = "ALWAYS_FAILS" in spec.env
        self.code = 1 if always_fails or random.random() < 0.15 else 0
        #: A process of a job that watches its loss does not fail: it reports a wrong loss.
        self.is_wrong = self.code == 1 and "loss" in spec.watch
        if self.is_wrong:
            self.code = 0
        #: How long it runs on after a stop; longer than its grace if a kill has no effect at first.
        grace_s = spec.grace / SECOND
        self.stop_s = random.choice([0.0, 0.5, grace_s, grace_s, 90.0])
        self.signalled = False

    def stop(self, now_s: float) -> None:
        if not self.signalled:
            self.signalled = True
            self.code = 143
            self.ends_at = now_s + self.stop_s

    def kill(self) -> None:
        self.code = 137
        self.ends_at = 0.0


class SimulatedMachine:
    def __init__(self, name: str, random: Random, register: Register, sync: Sync) -> None:
        self.name = name
        self._random = random
        self._register = register
        self._sync = sync
        self._loop = asyncio.get_running_loop()
        self._boots = 0
        self._seq = 0
        self.incarnation = ""
        self.processes: dict[Attempt, SimulatedProcess] = {}
        self.started: list[Attempt] = []
        self.prepared: set[Attempt] = set()
        self._reports: dict[Attempt, TaskReport] = {}
        self._has_sent_inventory = False
        self._inventory_at = 0.0
        self._term = 0
        #: Cleared while the machine is frozen.
        self.awake = asyncio.Event()
        self.awake.set()
        self._changed = asyncio.Event()
        #: Set when a process has started, or ends sooner.
        self._ends_changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def boot(self) -> None:
        """Start a new incarnation of the agent, without tasks."""
        self._boots += 1
        self.incarnation = f"{self.name}-{self._boots}"
        self._seq = 0
        self.processes.clear()
        self._reports.clear()
        self._task = asyncio.create_task(self._run())

    def crash(self) -> None:
        """Lose power, and with it all processes."""
        if self._task is not None:
            self._task.cancel()
        self._task = None
        self.processes.clear()
        self._reports.clear()

    @property
    def is_up(self) -> bool:
        return self._task is not None and not self._task.done()

    def kill_process(self, attempt: Attempt) -> None:
        self.processes[attempt].kill()
        self._ends_changed.set()

    async def _run(self) -> None:
        await self._register_worker()
        processes = asyncio.create_task(self._run_processes())
        try:
            while True:
                await self.awake.wait()
                await self._sync_once()
        except MachineSuperseded:
            self.processes.clear()
        finally:
            processes.cancel()

    async def _register_worker(self) -> None:
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
                self._has_sent_inventory = False
                return

    async def _sync_once(self) -> None:
        now = self._loop.time()
        full = not self._has_sent_inventory or now >= self._inventory_at
        self._inventory_at = now + _INVENTORY_S if full else self._inventory_at
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
                # There is a new report: the next call replaces the one that the server holds.
                return
            reply = call.result()
        except ConnectionError:
            await asyncio.sleep(self._random.uniform(0.1, 1))
            return
        except Unregistered:
            await self._register_worker()
            return
        finally:
            changed.cancel()
            call.cancel()
        await self.awake.wait()
        if reply.term < self._term:
            return  # from a deposed leader that has not noticed yet
        self._term = reply.term
        self._has_sent_inventory = not reply.full
        for instruction in reply.tasks:
            self._follow(instruction)

    def _follow(self, instruction: TaskInstruction) -> None:
        attempt = (instruction.id, instruction.epoch)
        report = self._reports.get(attempt)
        process = self.processes.get(attempt)
        if instruction.want is Want.FORGET:
            if process is None:
                self._reports.pop(attempt, None)
        elif instruction.want is Want.STOP:
            if process is not None:
                process.stop(self._loop.time())
                self._ends_changed.set()
            elif report is None or report.state is Reported.ACCEPTED:
                self._report(attempt, Reported.GONE)
        elif instruction.want is Want.PREPARE and report is None:
            self.prepared.add(attempt)
            self._report(attempt, Reported.ACCEPTED)
        elif instruction.want is Want.RUN and (report is None or report.state is Reported.ACCEPTED):
            self._start(attempt, instruction)

    def _start(self, attempt: Attempt, instruction: TaskInstruction) -> None:
        if instruction.spec is None:
            raise AssertionError(f"bug: the instruction to run {attempt} has no spec")
        if self._random.random() < 0.03:
            self._report(attempt, Reported.SPAWN_FAILED)
            return
        self.processes[attempt] = SimulatedProcess(
            instruction.spec, self._random, self._loop.time()
        )
        self._ends_changed.set()
        self.started.append(attempt)
        self._report(attempt, Reported.RUNNING)

    def _report(
        self, attempt: Attempt, state: Reported, process: SimulatedProcess | None = None
    ) -> None:
        code = None if process is None else process.code
        signalled = process is not None and process.signalled
        progress = None
        if process is not None and process.is_wrong:
            wrong = AbnormalValue("loss", AbnormalKind.NAN, step=len(self.started))
            progress = TaskProgress(wrong.step, abnormal=(wrong,))
        self._reports[attempt] = TaskReport(
            *attempt, state, exit_code=code, signalled=signalled, progress=progress
        )
        self._changed.set()

    async def _run_processes(self) -> None:
        while True:
            await self._next_end()
            await self.awake.wait()
            now = self._loop.time()
            for attempt, process in list(self.processes.items()):
                if process.ends_at <= now:
                    del self.processes[attempt]
                    self._report(attempt, Reported.EXITED, process)

    async def _next_end(self) -> None:
        """Return when the first process is to end, or when another one may end first."""
        self._ends_changed.clear()
        first = min((process.ends_at for process in self.processes.values()), default=None)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(first):
                await self._ends_changed.wait()
