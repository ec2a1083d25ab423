"""Requests that are under way beside the passes of the scheduler."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class OpenCalls:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()

    def send(self, work: Coroutine[Any, Any, object]) -> None:
        """Run the work until it ends, or until `stop`."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cancel everything that is under way."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
