"""A worker as its operator has it: one link on one spawner, until it is told to leave.

A spawner that dies is replaced; what it ran is gone, and the server is told so.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvloop

from phalanx.agent.link.controller import AttemptController
from phalanx.agent.link.leader_client import LeaderClient
from phalanx.agent.link.link import Link, Registration, Superseded
from phalanx.agent.link.spawner_client import SpawnerClient
from phalanx.agent.lock import Lock, holder
from phalanx.agent.messages import Quit, StopAll, Welcome
from phalanx.agent.state_dir import StateDir

Logger = structlog.typing.FilteringBoundLogger

#: How long a leaving worker waits for a server: to answer, and to take the last reports.
_ANSWER_S = 5.0
_GOODBYE_S = 10.0
#: Every link of a spawner speaks later than those before it.
_CALLS_OF_A_LINK = 1_000_000_000


class CannotWork(Exception):  # noqa: N818
    """The worker does not start; the message says why and what to do."""


class WorkerSettings(msgspec.Struct, frozen=True):
    servers: tuple[str, ...]
    state: Path
    registration: Registration
    keep: bool = False
    token: Callable[[], str | None] = lambda: None


def run(settings: WorkerSettings) -> int:
    """Work until told to stop; the exit status. Raises CannotWork."""
    places = StateDir(settings.state)
    try:
        places.create()
        lock = Lock.take(places.link_lock)
    except OSError as error:
        raise CannotWork(f"the state directory {settings.state} cannot be used: {error}") from error
    if lock is None:
        raise CannotWork(
            f"another worker, process {holder(places.link_lock)}, uses {settings.state};"
            " name another one with --state-dir"
        )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(WorkerProcess(settings, places).live())
    finally:
        lock.release()


class WorkerProcess:
    def __init__(self, settings: WorkerSettings, places: StateDir) -> None:
        self._settings = settings
        self._places = places
        self._log: Logger = structlog.get_logger().bind()
        self._servers = LeaderClient(settings.servers, settings.token)
        self._told_to_stop = asyncio.Event()
        self._told_twice = asyncio.Event()

    async def live(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        try:
            while True:
                owner = await SpawnerClient.find(self._places)
                status = await self._work(owner)
                owner.close()
                if status is not None:
                    return status
                self._log.error("spawner died", cure="a new one takes its place")
        finally:
            self._servers.close()

    def _on_signal(self) -> None:
        (self._told_twice if self._told_to_stop.is_set() else self._told_to_stop).set()

    async def _work(self, owner: SpawnerClient) -> int | None:
        """The exit status, or None if the spawner has gone."""
        tells = owner.tells()
        welcome = await anext(tells, None)
        if not isinstance(welcome, Welcome):
            return None
        registration = msgspec.structs.replace(
            self._settings.registration, incarnation=welcome.incarnation
        )
        attempts = AttemptController(registration.id, owner, self._places, self._servers, self._log)
        self._places.sweep({life.key for life in welcome.lives})
        attempts.know(welcome.lives)
        first_seq = welcome.links * _CALLS_OF_A_LINK
        link = Link(self._servers, registration, attempts, self._places.cluster, first_seq)
        self._log.info("working", worker=registration.id, tasks=len(welcome.lives))

        async def hear() -> None:
            async for told in tells:
                attempts.know(told.lives)

        works: dict[str, Coroutine[Any, Any, Any]] = {
            "spawner": hear(),
            "link": link.run(),
            "output": attempts.shipper.run(),
            "progress": attempts.watch_progress(),
            "leaving": self._leave(owner, attempts, link),
        }
        tasks = [asyncio.create_task(work, name=name) for name, work in works.items()]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return await self._verdict({task.get_name(): task for task in done}, owner, tasks[0])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _verdict(
        self,
        done: dict[str, "asyncio.Task[Any]"],
        owner: SpawnerClient,
        spawner: "asyncio.Task[Any]",
    ) -> int | None:
        if "leaving" in done:
            done["leaving"].result()
            return 0
        link = done.get("link")
        if link is not None and isinstance(link.exception(), Superseded):
            self._log.error("superseded", why=str(link.exception()))
            owner.send(StopAll(kill=True), Quit())
            await spawner  # which leaves once nothing is left
            return 1
        if "spawner" in done:
            done["spawner"].result()
            return None
        for task in done.values():
            task.result()
        raise AssertionError("bug: a part of the worker ended by itself")

    async def _leave(self, owner: SpawnerClient, attempts: AttemptController, link: Link) -> None:
        """Returns when everything has gone elsewhere, or at once if it may stay."""
        await self._told_to_stop.wait()
        if self._settings.keep:
            self._log.info("leaving", tasks="stay")
            return
        self._log.info("leaving", tasks="stop")
        link.is_leaving = True
        link.answered.clear()
        attempts.news.set()
        hurry = asyncio.create_task(self._hurry(owner))
        try:
            await self._stop_tasks(owner, attempts, link)
        finally:
            hurry.cancel()
        owner.send(Quit())

    async def _hurry(self, owner: SpawnerClient) -> None:
        await self._told_twice.wait()
        owner.send(StopAll(kill=True))

    async def _stop_tasks(
        self, owner: SpawnerClient, attempts: AttemptController, link: Link
    ) -> None:
        if not await _within(_ANSWER_S, link.answered.wait()):
            self._log.warning("nobody answers", cure="tasks are stopped without the server")
            owner.send(StopAll())
        elif not await _within(_ANSWER_S, _until(attempts, lambda: attempts.are_stopping)):
            owner.send(StopAll())
        await _until(attempts, lambda: attempts.are_over)
        if not await _within(_GOODBYE_S, _until(attempts, lambda: attempts.is_empty)):
            self._log.warning("not everything was told", cure="it is told at the next start")


async def _until(attempts: AttemptController, is_so: Callable[[], bool]) -> None:
    while not is_so():
        attempts.changed.clear()
        await attempts.changed.wait()


async def _within(seconds: float, work: Coroutine[Any, Any, Any]) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        return False
    return True
