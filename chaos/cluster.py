"""The cluster under test as real processes: a database, two servers, eight workers.

Every process is supervised as a service manager would do it: if it ends, it is started again.
"""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.ports import free_port

from chaos.network_proxy import NetworkProxy
from chaos.schedule import GPUS, WORKERS

_COMMAND = (sys.executable, "-m", "phalanx.cli")
_RESTART_S = 1.0
_STOP_S = 15.0
_DISK = "size=32m,mode=0755"
_CLONE_NEWNS = 0x20000
PROGRAM = Path(__file__).with_name("task_program.py")


def environment() -> dict[str, str]:
    """Ours without any setting of Phalanx."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PHALANX_")}
    return kept | {"XDG_CONFIG_HOME": "/nonexistent"}


def send(pid: int | None, number: signal.Signals) -> None:
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class Supervised:
    """A process that is started again when it ends."""

    def __init__(self, name: str, arguments: tuple[str, ...], log: Path) -> None:
        self.name = name
        self._arguments = arguments
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._may_start = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    def start(self) -> None:
        self._may_start.set()
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())

    def hold(self) -> None:
        """Do not start it again until `start`."""
        self._may_start.clear()

    async def _keep(self) -> None:
        while True:
            await self._may_start.wait()
            with self._log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *_COMMAND,
                    *self._arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    env=environment(),
                    start_new_session=True,
                )
            await self._process.wait()
            await asyncio.sleep(_RESTART_S)

    async def ended(self) -> None:
        if self._process is not None:
            await self._process.wait()

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        send(self.pid, signal.SIGKILL)
        await self.ended()


class Worker(Supervised):
    def __init__(self, folder: Path, number: int, urls: list[str], *, has_disk: bool) -> None:
        name = f"w-{number}"
        self.state = folder / name
        self.state.mkdir()
        if has_disk:
            _mount(self.state)
        self.has_disk = has_disk
        arguments = (
            "worker",
            *(f"--server={url}" for url in urls),
            f"--id={name}",
            f"--state-dir={self.state}",
            f"--resources=gpu={GPUS},cpu=4,memory=1Gi",
            "--address=127.0.0.1",
            "--log-format=json",
        )
        super().__init__(name, arguments, folder / "logs" / f"{name}.log")

    @property
    def spawner(self) -> int | None:
        try:
            pid = int((self.state / "spawner.lock").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if str(self.state).encode() in command else None

    def children(self) -> tuple[list[int], list[int]]:
        """The guards of the spawner, and its tasks."""
        guards: list[int] = []
        tasks: list[int] = []
        spawner = self.spawner
        with suppress(OSError):
            listed = Path(f"/proc/{spawner}/task/{spawner}/children").read_text().split()
            for pid in map(int, listed):
                with suppress(OSError):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                    (tasks if str(PROGRAM).encode() in command else guards).append(pid)
        return guards, tasks

    def everything(self) -> list[int]:
        """All processes of the worker, those first that would start others."""
        guards, tasks = self.children()
        return [pid for pid in (self.pid, self.spawner, *guards, *tasks) if pid is not None]

    async def close(self) -> None:
        """Stop it cleanly, so that it removes its cgroups, or else kill what is left."""
        self.hold()
        processes = self.everything()
        for number in (signal.SIGCONT, signal.SIGTERM):
            send(self.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await self.ended()
        await super().close()
        for pid in (*processes, *self.everything()):
            send(pid, signal.SIGKILL)
        # The disk ends with this process.
        with suppress(OSError):
            log = self._log.with_name(f"{self.name}.spawner.log")
            log.write_bytes((self.state / "spawner.log").read_bytes())


def _mount(folder: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", _DISK, "chaos", str(folder)], check=True)  # noqa: S603, S607


def private_mounts() -> bool:
    """Give this process mounts of its own, which end with it. False without the right to do so."""
    if os.geteuid() != 0 or ctypes.CDLL(None).unshare(_CLONE_NEWNS) != 0:
        return False
    made = subprocess.run(["mount", "--make-rprivate", "/"], check=False)  # noqa: S607
    return made.returncode == 0


class Cluster:
    """Two servers behind proxies, and the workers. The store is the caller's."""

    def __init__(self, folder: Path, store: str, *, has_disks: bool) -> None:
        for name in ("journal", "locks", "logs"):
            (folder / name).mkdir()
        ports, proxied = ([free_port() for _ in range(2)] for _ in range(2))
        self.proxies = [NetworkProxy(port) for port in ports]
        self._proxied = proxied
        advertised = [f"http://127.0.0.1:{port}" for port in proxied]
        self.urls = advertised
        self.servers = [
            Supervised(
                f"s-{n}",
                (
                    "serve",
                    f"--store={store}",
                    f"--name=s-{n}",
                    f"--port={ports[n]}",
                    f"--advertise-url={advertised[n]}",
                    "--log-format=json",
                ),
                folder / "logs" / f"s-{n}.log",
            )
            for n in range(2)
        ]
        self.workers = [Worker(folder, n, advertised, has_disk=has_disks) for n in range(WORKERS)]

    async def start(self) -> None:
        for proxy, port in zip(self.proxies, self._proxied, strict=True):
            await proxy.listen(port)
        for each in (*self.servers, *self.workers):
            each.start()

    async def close(self) -> None:
        await asyncio.gather(*(worker.close() for worker in self.workers))
        await asyncio.gather(*(server.close() for server in self.servers))
        await asyncio.gather(*(proxy.close() for proxy in self.proxies))
