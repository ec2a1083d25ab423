"""Contend for leadership, lead, lose it, contend again."""

import asyncio
from collections.abc import Callable

from phalanx.core.time_units import SECOND
from phalanx.engine.host import HostEnvironment
from phalanx.engine.leader_term import LeaderTerm
from phalanx.engine.settings import EngineSettings
from phalanx.engine.telemetry import Telemetry
from phalanx.store.protocol import Leader, Store, StoreError

#: Pause between two tries at a store that does not answer.
_RETRY_S = 0.5
#: How often a standby tries to lead.
_CONTEND_S = 0.5


class Leadership:
    """`new_term` creates a term from its number and the time at which it was requested."""

    def __init__(
        self,
        store: Store,
        host: HostEnvironment,
        settings: EngineSettings,
        telemetry: Callable[[], Telemetry],
        new_term: Callable[[int, float], LeaderTerm],
    ) -> None:
        self._store = store
        self._host = host
        self._settings = settings
        self._telemetry = telemetry
        self._new_term = new_term
        self._running: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.term: LeaderTerm | None = None  #: while this server leads
        self.leader: Leader | None = None  #: the other server that leads, if one is known

    async def run(self) -> None:
        """Contend and lead until stopped or cancelled."""
        self._running = asyncio.current_task()
        try:
            while not self._is_stopping:
                began_s = asyncio.get_running_loop().time()
                number = await self._contend()
                if number is None:
                    await asyncio.sleep(min(_CONTEND_S, self._settings.lease_s / 4))
                else:
                    await self._lead(self._new_term(number, began_s))
        finally:
            self._running = None

    async def _contend(self) -> int | None:
        """The number of a new term, or None if another server leads."""
        try:
            lease = round(self._settings.lease_s * SECOND)
            number = await self._store.lead(self._host.name, self._host.url, lease)
            self.leader = None if number is not None else await self._store.leader()
        except StoreError as error:
            self._telemetry().store_failed(str(error))
            await asyncio.sleep(_RETRY_S)
            return None
        if number is None:
            self._telemetry().standing_by(self.leader)
        return number

    async def _lead(self, term: LeaderTerm) -> None:
        self.term = term
        try:
            await term.run()
        finally:
            self.term = None

    async def resign(self) -> None:
        """Answer the commands that were accepted, and let a standby lead at once."""
        if self.term is not None:
            await self.term.resign()

    async def stop(self) -> None:
        """Resign, and end `run`."""
        self._is_stopping = True
        await self.resign()
        running = self._running
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
