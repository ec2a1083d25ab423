"""`phalanx kube scheduler` as a process of its own, with its health and metrics."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import aiohttp

from tests.kubernetes.server_process import ServerProcess
from tests.ports import free_port


class SchedulerProcess:
    def __init__(self, words: Sequence[str], identity: str, log: Path) -> None:
        """`words` follow `phalanx`, without `--listen` and `--identity`."""
        self.port = free_port()
        self.log = log
        command = [sys.executable, "-m", "phalanx.cli", *words, "--identity", identity]
        command.append(f"--listen=127.0.0.1:{self.port}")
        self.process = ServerProcess(command, log)

    async def get(self, path: str) -> str:
        """The answer to a request; empty if there is none, or it is a failure."""
        with suppress(aiohttp.ClientError):
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.port}{path}") as answer,
            ):
                return await answer.text() if answer.status == 200 else ""
        return ""

    async def leads(self) -> bool:
        return "phalanx_kube_leader 1.0" in await self.get("/metrics")
