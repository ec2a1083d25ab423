"""How fast conditions, statuses and events are written. Binds come first: while some are under way,
other writes wait, but not for ever. When the API server asks for a pause, all of them wait."""

import asyncio
import time
from collections.abc import Callable

from phalanx.kube.api.errors import ApiStatusError

#: A write costs the API server about 1 ms of CPU time, so this is a fifth of one of its cores.
WRITES_PER_S = 200
#: Writes of one kind that are under way at once.
WRITERS = 4
#: Binds that take longer do not hold other writes up.
_PATIENCE_S = 2.0
_LOOK_S = 0.05
#: The pause after an answer 429 that names none.
_PAUSE_S = 1.0


class WriteBudget:
    """One budget for all writers. `is_binding` tells whether binds are under way."""

    def __init__(self, is_binding: Callable[[], bool] = lambda: False) -> None:
        self._is_binding = is_binding
        self._turn = asyncio.Lock()
        self._first = 0  #: writers that come before events
        self._closed_until_s = 0.0

    async def take(self, *, is_event: bool = False) -> None:
        """Wait until one more write may be sent. Events are written after all else."""
        self._first += not is_event
        try:
            while True:
                async with self._turn:
                    if not (is_event and self._first):
                        await self._wait()
                        return
                await asyncio.sleep(_LOOK_S)
        finally:
            self._first -= not is_event

    async def _wait(self) -> None:
        await asyncio.sleep(max(1 / WRITES_PER_S, self._closed_until_s - time.monotonic()))
        waited_s = 0.0
        while self._is_binding() and waited_s < _PATIENCE_S:
            await asyncio.sleep(_LOOK_S)
            waited_s += _LOOK_S

    def note(self, error: Exception) -> bool:
        """Pause all writes if the API server asks for it; whether it does."""
        is_busy = isinstance(error, ApiStatusError) and error.code == 429
        if isinstance(error, ApiStatusError) and is_busy:
            pause_s = error.retry_after_s or _PAUSE_S
            self._closed_until_s = max(self._closed_until_s, time.monotonic() + pause_s)
        return is_busy
