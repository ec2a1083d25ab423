"""The way from machines and users to whoever leads: requests and answers may be late, lost,
delivered again, or overtaken by later ones."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

from phalanx.core.errors import Conflict, CoreError, Unknown
from phalanx.core.events import Event, WorkerRegistered
from phalanx.engine.errors import NotLeading, Unavailable
from phalanx.sim.machine import MachineSuperseded, Unregistered
from phalanx.sim.server import SimulatedServer
from phalanx.wire.sync import SyncReply, SyncRequest

T = TypeVar("T")
Ask = Callable[[SimulatedServer], Coroutine[Any, Any, T]]


class Network:
    def __init__(self, random: Random, servers: Sequence[SimulatedServer]) -> None:
        self._random = random
        self._servers = servers
        self.loss_rate = 0.0
        #: Copies that are still under way.
        self._copies: set[asyncio.Task[None]] = set()

    async def call(self, ask: Ask[T]) -> T:
        """Ask one of the servers. Raises ConnectionError if no answer comes, whatever became of
        the request."""
        await asyncio.sleep(self._latency())
        if self._is_unlucky():
            raise ConnectionError("the request was lost")
        server = self._random.choice(self._servers)
        if not server.is_up or not server.store.awake.is_set():
            await asyncio.sleep(1.0)
            raise ConnectionError("nobody answers")
        try:
            answer = await ask(server)
        except (NotLeading, Unavailable) as error:
            raise ConnectionError(str(error)) from error
        await server.store.awake.wait()
        await asyncio.sleep(self._latency())
        if self._is_unlucky():
            raise ConnectionError("the answer was lost")
        return answer

    def _is_unlucky(self) -> bool:
        return self._random.random() < self.loss_rate

    def _latency(self) -> float:
        return self._random.uniform(0, 5.0 if self._is_unlucky() else 0.02)

    async def command(self, event: Event) -> bool:
        """Whether it was acknowledged."""
        try:
            await self.call(lambda server: server.engine.apply(event))
        except (ConnectionError, CoreError):
            return False
        return True

    async def register(self, event: WorkerRegistered) -> None:
        async def ask(server: SimulatedServer) -> None:
            await server.engine.apply(event)
            server.engine.hear_worker(event.worker)

        await self.call(ask)

    async def sync(self, worker: str, request: SyncRequest) -> SyncReply:
        def ask(server: SimulatedServer) -> Coroutine[Any, Any, SyncReply]:
            return server.agent_sync.sync(worker, request)

        if self._is_unlucky():
            copy = asyncio.create_task(self._deliver_again(ask))
            self._copies.add(copy)
            copy.add_done_callback(self._copies.discard)
        try:
            return await self.call(ask)
        except Unknown as error:
            raise Unregistered from error
        except Conflict as error:
            raise MachineSuperseded from error

    async def _deliver_again(self, ask: Ask[SyncReply]) -> None:
        """A copy of the request arrives when later ones may have been; nobody hears the answer."""
        await asyncio.sleep(self._random.uniform(0, 40))
        with suppress(ConnectionError, CoreError):
            await self.call(ask)
