"""The simulated network between workers, users and servers: requests and replies may be delayed,
lost, duplicated or reordered.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from enum import Enum
from random import Random
from typing import Any, TypeVar

from phalanx.core.errors import Conflict, CoreError, Unknown
from phalanx.core.events import Event, WorkerRegistered
from phalanx.engine.errors import NotLeading, Unavailable, UncertainOutcome
from phalanx.sim.machine import MachineSuperseded, Unregistered
from phalanx.sim.server import SimulatedServer
from phalanx.wire.sync import SyncReply, SyncRequest

T = TypeVar("T")


class CommandOutcome(Enum):
    """What a user knows of a command."""

    DONE = "done"
    NOT_DONE = "not done"
    UNKNOWN = "unknown"


class _NotDoneError(ConnectionError):
    """A server answered that the request changed nothing."""


Call = Callable[[SimulatedServer], Coroutine[Any, Any, T]]


class SimulatedNetwork:
    def __init__(self, random: Random, servers: Sequence[SimulatedServer]) -> None:
        self._random = random
        self._servers = servers
        self.loss_rate = 0.0
        #: Duplicated requests that are still in flight.
        self._duplicates: set[asyncio.Task[None]] = set()

    async def send(self, call: Call[T]) -> T:
        """Call one of the servers and return its reply.

        Raises ConnectionError if no reply arrives, even if the server has handled the request.
        """
        await asyncio.sleep(self._latency())
        if self._has_fault():
            raise ConnectionError("simulated: the request was lost")
        server = self._random.choice(self._servers)
        if not server.is_up or not server.store.awake.is_set():
            await asyncio.sleep(1.0)
            raise ConnectionError("simulated: the server does not answer")
        try:
            reply = await call(server)
        except (NotLeading, Unavailable) as error:
            raise _NotDoneError(str(error)) from error
        except UncertainOutcome as error:
            raise ConnectionError(str(error)) from error
        await server.store.awake.wait()
        await asyncio.sleep(self._latency())
        if self._has_fault():
            raise ConnectionError("simulated: the reply was lost")
        return reply

    def _has_fault(self) -> bool:
        return self._random.random() < self.loss_rate

    def _latency(self) -> float:
        return self._random.uniform(0, 5.0 if self._has_fault() else 0.02)

    async def command(self, event: Event) -> bool:
        """Apply an event on the leader; whether it was acknowledged."""
        return await self.outcome(event) is CommandOutcome.DONE

    async def outcome(self, event: Event) -> CommandOutcome:
        """Apply an event on the leader; what its sender knows afterwards."""
        try:
            await self.send(lambda server: server.engine.apply(event))
        except (_NotDoneError, CoreError):
            return CommandOutcome.NOT_DONE
        except ConnectionError:
            return CommandOutcome.UNKNOWN
        return CommandOutcome.DONE

    async def register(self, event: WorkerRegistered) -> None:
        async def call(server: SimulatedServer) -> None:
            await server.engine.apply(event)
            server.engine.hear_worker(event.worker)

        await self.send(call)

    async def sync(self, worker: str, request: SyncRequest) -> SyncReply:
        def call(server: SimulatedServer) -> Coroutine[Any, Any, SyncReply]:
            return server.agent_sync.sync(worker, request)

        if self._has_fault():
            duplicate = asyncio.create_task(self._send_later(call))
            self._duplicates.add(duplicate)
            duplicate.add_done_callback(self._duplicates.discard)
        try:
            return await self.send(call)
        except Unknown as error:
            raise Unregistered from error
        except Conflict as error:
            raise MachineSuperseded from error

    async def _send_later(self, call: Call[SyncReply]) -> None:
        """Deliver a duplicate of a request, possibly after later ones; its reply is discarded."""
        await asyncio.sleep(self._random.uniform(0, 40))
        with suppress(ConnectionError, CoreError):
            await self.send(call)
