"""The commands of the page about TLS, run in the order of the page."""

import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.integration.agent.machines import Machine
from tests.integration.server.processes import ServerProcess, Start, phalanx
from tests.integration.server.waiting import eventually

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "tls.md"
FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")


def commands() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return "".join(blocks).splitlines()


class Reader:
    """Runs the commands in a folder, with its own server instead of `scheduler.example`."""

    def __init__(self, start: Start, folder: Path) -> None:
        self.machine: Machine | None = None
        self._start = start
        self._folder = folder
        self._server: ServerProcess | None = None
        self._pin = ""

    async def run(self, command: str) -> None:
        written = command.replace("/srv/phalanx", str(self._folder))
        written = FINGERPRINT.sub(self._pin, written)
        if self._server is not None:
            written = written.replace("https://scheduler.example:8080", self._server.url)
        words = shlex.split(written.replace("/etc/phalanx", str(self._folder)))
        match words[1]:
            case "serve":
                await self._serve(words[2:])
            case "worker":
                await self._work(words[2:])
            case _:
                home = {"XDG_CONFIG_HOME": str(self._folder / "home")}
                status, out, err = await phalanx(*words[1:], **home)
                assert status == 0, f"{command}: {err}"
                if words[1:3] == ["token", "create"]:
                    file = "join-token" if "join" in words else "token"
                    (self._folder / file).write_text(out.split()[-1])

    async def _serve(self, flags: list[str]) -> None:
        at = flags.index("--store")
        store = flags[at + 1]
        flags = [*flags[:at], *flags[at + 2 :]]
        if "--advertise-url" in flags:
            at = flags.index("--advertise-url")
            flags = [*flags[:at], *flags[at + 2 :]]
        if self._server is not None:
            await self._server.kill()
        self._server = await self._start(store, "page", *flags)
        self._server.url = f"https://localhost:{self._server.url.rpartition(':')[2]}"
        await self._server.line("leading")
        for line in self._server.seen("certificate authority in use"):
            self._pin = line["fingerprint"]

    async def _work(self, flags: list[str]) -> None:
        assert self._server is not None
        machine = self.machine = Machine(self._folder, "w-1", self._server.url)
        await machine.start(*flags)

        async def is_registered() -> bool:
            return bool(machine.logged("registered"))

        await eventually(is_registered, 60, machine.log)


@pytest_asyncio.fixture
async def reader(start: Start, tmp_path: Path) -> AsyncIterator[Reader]:
    reader = Reader(start, tmp_path)
    yield reader
    if reader.machine is not None:
        await reader.machine.kill()


async def test_every_command_works_in_the_order_of_the_page(
    reader: Reader, tmp_path: Path, own_certificate: None
) -> None:
    for command in commands():
        await reader.run(command)
