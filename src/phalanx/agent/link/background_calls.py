"""Calls to the server that may take long, run in the background: at most one for each attempt."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from phalanx.agent.messages import AttemptKey


class BackgroundCalls:
    def __init__(self) -> None:
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
        self._calls: dict[AttemptKey, asyncio.Task[None]] = {}

    def __contains__(self, key: AttemptKey) -> bool:
        return key in self._calls

    def start(self, key: AttemptKey, call: Coroutine[Any, Any, None]) -> None:
        """Start a call, in place of an earlier one for the attempt."""
        self.cancel(key)
        task = self._calls[key] = asyncio.create_task(call)

        def finished(done: asyncio.Task[None]) -> None:
            if self._calls.get(key) is done:
                del self._calls[key]
            if not done.cancelled() and done.exception() is not None:
                self._log.error(
                    "checkpoint transfer failed", task=key[0], exc_info=done.exception()
                )

        task.add_done_callback(finished)

    def cancel(self, key: AttemptKey) -> None:
        call = self._calls.pop(key, None)
        if call is not None:
            call.cancel()
