"""Real server processes, as an operator has them: started, listened to, killed, frozen and woken.

Nothing here waits by the clock: a test waits for a line of the log or for an answer.
"""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from tests.acceptance.terminal import OWN_PROCESS, run_here
from tests.integration.server.waiting import PATIENCE_S, within
from tests.plain_http import async_http_client

COMMAND = (sys.executable, "-m", "phalanx.cli")


def environment(**more: str) -> dict[str, str]:
    """Ours without any setting of a server's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PHALANX_")}
    return kept | {"XDG_CONFIG_HOME": "/nonexistent", "PYTHONWARNINGS": "default"} | more


async def phalanx(*arguments: str, **variables: str) -> tuple[int, str, str]:
    """Run a command to its end, without a process of its own if it needs none: status, output,
    errors."""
    if arguments[0] not in OWN_PROCESS:
        return await asyncio.to_thread(run_here, arguments, environment(**variables))
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, stdout=PIPE, stderr=PIPE, env=environment(**variables)
    )
    out, err = await within(PATIENCE_S, process.communicate())
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


class ServerProcess:
    """One `phalanx serve`."""

    def __init__(self, process: Process, name: str) -> None:
        self.name = name
        self.url = ""
        self.lines: list[dict[str, Any]] = []
        self.others: list[str] = []
        self._process = process
        self._news = asyncio.Condition()
        self._is_read = False
        self._reading = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(cls, store: str, name: str, *flags: str, **variables: str) -> "ServerProcess":
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            "serve",
            f"--store={store}",
            f"--name={name}",
            "--port=0",
            "--log-format=json",
            *flags,
            stderr=PIPE,
            env=environment(**variables),
        )
        server = cls(process, name)
        server.url = (await server.line("listening"))["url"]
        return server

    async def _read(self) -> None:
        assert self._process.stderr is not None
        async for raw in self._process.stderr:
            text = raw.decode()
            async with self._news:
                try:
                    self.lines.append(json.loads(text))
                except ValueError:
                    self.others.append(text)
                self._news.notify_all()
        async with self._news:
            self._is_read = True
            self._news.notify_all()

    def seen(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]

    async def line(self, event: str, *, count: int = 1) -> dict[str, Any]:
        """Line number `count` of the log lines with this event."""

        def there() -> bool:
            # A process that has ended may have written lines that were not read yet.
            return len(self.seen(event)) >= count or self._is_read

        async with self._news:
            await within(PATIENCE_S, self._news.wait_for(there), self.told)
        assert len(self.seen(event)) >= count, self.told()
        return self.seen(event)[count - 1]

    def told(self) -> str:
        """All it said, for a test that failed."""
        return f"{self.name}: " + "\n".join([*map(str, self.lines[-30:]), *self.others])

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        status = await within(PATIENCE_S, self._process.wait(), self.told)
        await self._reading
        return status

    async def kill(self) -> None:
        """As the kernel does it: at once."""
        if self._process.returncode is None:
            self.send(signal.SIGKILL)
        await self.ended()

    async def ready(self) -> bool:
        async with async_http_client(self.url) as client:
            try:
                return (await client.get("/readyz")).status_code == 200
            except httpx.HTTPError:
                return False


Start = Callable[..., Awaitable[ServerProcess]]


def sqlite_at(folder: Path) -> str:
    return f"sqlite:{folder / 'phalanx.db'}"
