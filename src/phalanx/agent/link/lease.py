"""The lease in the link: renewed with every answer, and enforced if no other process does so."""

import asyncio

import structlog

from phalanx.agent.lease import LeaseFile
from phalanx.agent.spawner.lease_guard import LEASE_CHECK_S, LeaseGuard
from phalanx.agent.state_dir import StateDir

#: The link enforces the lease later than spawner and guard, which do so if they are not frozen.
_DELAY_S = 1.0


class LeaseKeeper:
    def __init__(self, state_dir: StateDir) -> None:
        self._file = LeaseFile(state_dir.lease_file)
        self._guard = LeaseGuard(state_dir, self._file)
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

    def renew(self, sent_at: float, lost_after_s: float) -> None:
        """Renew the lease with an answer: it runs from when the call was sent."""
        try:
            self._file.renew(sent_at + lost_after_s)
        except OSError as error:
            self._log.warning("lease not renewed", error=error.strerror)

    async def run(self) -> None:
        """Enforce the lease until cancelled."""
        try:
            while True:
                await asyncio.sleep(LEASE_CHECK_S)
                if self._guard.is_due(_DELAY_S):
                    await self._enforce()
        finally:
            self._file.close()

    async def _enforce(self) -> None:
        try:
            await asyncio.to_thread(self._guard.enforce)
        except OSError as error:
            self._log.warning("lease not enforced", error=error.strerror)
