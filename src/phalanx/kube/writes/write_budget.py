"""How fast conditions, statuses and events are written. Binds come first: while some are under way,
other writes wait, but not for ever."""

import asyncio
from collections.abc import Callable

WRITES_PER_S = 50
#: Binds that take longer do not hold other writes up.
_PATIENCE_S = 2.0
_LOOK_S = 0.05


class WriteBudget:
    """One budget for all writers. `is_binding` tells whether binds are under way."""

    def __init__(self, is_binding: Callable[[], bool]) -> None:
        self._is_binding = is_binding
        self._turn = asyncio.Lock()

    async def take(self) -> None:
        """Wait until one more write may be sent."""
        async with self._turn:
            await asyncio.sleep(1 / WRITES_PER_S)
            waited_s = 0.0
            while self._is_binding() and waited_s < _PATIENCE_S:
                await asyncio.sleep(_LOOK_S)
                waited_s += _LOOK_S
