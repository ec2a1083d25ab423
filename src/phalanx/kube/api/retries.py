"""Pauses between tries of a request, each twice as long as the last."""

import asyncio
import random

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 15.0


class Retries:
    """The first pause is short; with `at_once` there is none before the first retry."""

    def __init__(self, *, at_once: bool = False) -> None:
        self._first_s = 0.0 if at_once else FIRST_PAUSE_S
        self._pause_s = self._first_s

    def reset(self) -> None:
        """Start over after a success."""
        self._pause_s = self._first_s

    async def pause(self, at_least_s: float = 0.0) -> None:
        """Wait for the next try, and for as long as the server asked."""
        await asyncio.sleep(max(self._pause_s * random.uniform(0.8, 1.2), at_least_s))  # noqa: S311
        self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
