"""The shutdown of a worker: its tasks are stopped, their ends reported, and the spawner exits."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from phalanx.agent.link.attempt_table import AttemptTable
from phalanx.agent.link.controller import AttemptController
from phalanx.agent.link.spawner_client import SpawnerClient
from phalanx.agent.link.sync_loop import Link
from phalanx.agent.messages import QuitWhenIdle, StopAll

#: How long a worker that shuts down waits for the server to answer and to stop its tasks.
_SERVER_STOP_S = 5.0
#: How long it waits for the server to take the last reports.
_LAST_REPORTS_S = 10.0


class ShutdownSignals:
    """SIGTERM and SIGINT: the first asks for a shutdown, the second for an immediate one."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received)

    def _received(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


class WorkerShutdown:
    def __init__(self, spawner: SpawnerClient, controller: AttemptController, link: Link) -> None:
        self._spawner = spawner
        self._controller = controller
        self._link = link
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

    async def run(self, signals: ShutdownSignals, *, keep: bool) -> None:
        """Wait for a signal; return when all tasks have ended, or at once to keep them."""
        await signals.first.wait()
        if keep:
            self._log.info("shutting down", tasks="kept running")
            return
        self._log.info("shutting down", tasks="stopping")
        self._link.is_leaving = True
        self._link.answered.clear()
        self._controller.reports.announce()
        kill = asyncio.create_task(self._kill_on(signals.second))
        try:
            await self._stop_tasks()
        finally:
            kill.cancel()
        self._spawner.send(QuitWhenIdle())

    async def _kill_on(self, second: asyncio.Event) -> None:
        await second.wait()
        self._spawner.send(StopAll(kill=True))

    async def _stop_tasks(self) -> None:
        attempts = self._controller.attempts
        if not await _within(_SERVER_STOP_S, self._link.answered.wait()):
            self._log.warning("server does not answer", action="stopping tasks without the server")
            self._spawner.send(StopAll())
        elif not await _within(_SERVER_STOP_S, _until(attempts, lambda: attempts.all_stopping)):
            self._spawner.send(StopAll())
        await _until(attempts, lambda: attempts.all_ended)
        is_reported = _until(attempts, lambda: self._controller.is_empty)
        if not await _within(_LAST_REPORTS_S, is_reported):
            self._log.warning("reports not sent", action="sending them at the next start")


async def _until(attempts: AttemptTable, is_true: Callable[[], bool]) -> None:
    while not is_true():
        attempts.changed.clear()
        await attempts.changed.wait()


async def _within(seconds: float, work: Coroutine[Any, Any, Any]) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        return False
    return True
