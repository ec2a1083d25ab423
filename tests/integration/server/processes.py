"""Real server processes, as an operator has them: started, listened to, killed, frozen and woken.

Nothing here waits by the clock: a test waits for a line of the log or for an answer.
"""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any

import httpx

from tests.acceptance.terminal import OWN_PROCESS, run_here
from tests.integration.server.waiting import PATIENCE_S, within
from tests.plain_http import async_http_client
from tests.ports import free_port
from tests.preloaded import start_phalanx


def environment(**more: str) -> dict[str, str]:
    """Ours without any setting of a server's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PHALANX_")}
    return kept | {"XDG_CONFIG_HOME": "/nonexistent", "PYTHONWARNINGS": "default"} | more


async def phalanx(*arguments: str, **variables: str) -> tuple[int, str, str]:
    """Run a command to its end, without a process of its own if it needs none: status, output,
    errors."""
    if arguments[0] not in OWN_PROCESS:
        return await asyncio.to_thread(run_here, arguments, environment(**variables))
    env = environment(**variables)
    process = start_phalanx(*arguments, stdout=PIPE, stderr=PIPE, text=True, env=env)
    out, err = await asyncio.to_thread(process.communicate, timeout=PATIENCE_S)
    return process.returncode, out, err


class Process:
    """A command that goes on, and the lines of its log."""

    def __init__(self, process: "subprocess.Popen[Any]") -> None:
        self._process = process
        self.pid = process.pid

    @classmethod
    def start(cls, *words: str, before: Sequence[str] = (), **variables: str) -> "Process":
        """Start a command, as an argument of the program `before` it if there is one."""
        env = environment(**variables)
        return cls(start_phalanx(*words, before=before, stderr=PIPE, env=env))

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def wait(self) -> int:
        while (status := self._process.poll()) is None:
            ended = asyncio.Event()
            handle = os.pidfd_open(self.pid)
            asyncio.get_running_loop().add_reader(handle, ended.set)
            try:
                await ended.wait()
            finally:
                asyncio.get_running_loop().remove_reader(handle)
                os.close(handle)
        return status

    async def lines(self) -> AsyncIterator[bytes]:
        """Each line, until the process has ended."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._process.stderr
        )
        async for line in reader:
            yield line
        await self.wait()


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
    async def start(
        cls, store: str, name: str, *flags: str, before: Sequence[str] = (), **variables: str
    ) -> "ServerProcess":
        words = ["serve", f"--store={store}", f"--name={name}", "--log-format=json"]
        words.append(f"--port={free_port()}")
        if store.startswith("sqlite:"):
            # A server that is suspended for a while goes on. If it is killed, its file is free.
            words.append("--lease=1h")
        process = Process.start(*words, *flags, before=before, **variables)
        server = cls(process, name)
        server.url = (await server.line("listening"))["url"]
        return server

    async def _read(self) -> None:
        async for raw in self._process.lines():
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
