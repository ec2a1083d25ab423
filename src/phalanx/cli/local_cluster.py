"""A server and its workers as children of one process: started, heard, and stopped in order."""

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

import httpx
import typer

from phalanx.cli.exits import Status, end
from phalanx.cli.formatting import counted_as
from phalanx.cli.output import console, owned
from phalanx.client.settings import DEFAULT_SERVER

_SERVER = "server"
_HOST = "127.0.0.1"
#: How long a server has to begin to answer, and a part to leave.
_START_S, _STOP_S = 30.0, 60.0
#: Before a worker that ended is started again.
_PAUSE_S = 1.0
_MOMENT_S = 0.1
_libc = ctypes.CDLL(None)
_SET_PDEATHSIG = 1


class _Part:
    """One process of ours, and what it is called."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process


class LocalCluster:
    def __init__(self, folder: Path, port: int, workers: int, gpus: int) -> None:
        self._folder = folder
        self._url = f"http://{_HOST}:{port}"
        self._port = port
        self._names = [f"w-{number}" for number in range(1, workers + 1)]
        self._gpus = gpus
        self._parts: dict[str, _Part] = {}
        self._told: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._is_complete = False  #: all have been there once
        self._out = console()
        self._width = max(len(_SERVER), *(len(name) for name in self._names or [""]))

    async def live(self) -> int:
        """Until it is told to stop, or cannot go on. The status to leave with."""
        if not _is_free(self._port):  # whoever answers there would be given our workers
            end(
                Status.USAGE,
                f"port {self._port} is taken; stop what listens there, or choose another with"
                " --port",
            )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._be_told)
        try:
            await self._start(_SERVER, *self._serve())
            if await self._is_answering():
                for name in self._names:
                    await self._start(name, *self._work(name))
                greeting = asyncio.create_task(self._greet())
                status = await self._watch()
                greeting.cancel()
                return status
            return Status.OK if self._stop.is_set() else Status.UNSUCCESSFUL
        finally:
            await self._stop_all()

    def _be_told(self) -> None:
        """The first time in order; the second time at once."""
        if self._stop.is_set():
            for part in self._parts.values():
                with contextlib.suppress(ProcessLookupError):
                    # A worker that is told twice ends its tasks; one that is killed leaves them.
                    part.process.terminate()
        self._stop.set()

    # What is started

    def _serve(self) -> tuple[str, ...]:
        return (
            "serve",
            f"--host={_HOST}",
            f"--port={self._port}",
            f"--store=sqlite:{self._folder / 'phalanx.db'}",
        )

    def _work(self, name: str) -> tuple[str, ...]:
        return (
            "worker",
            f"--server={self._url}",
            f"--id={name}",
            f"--resources={self._resources()}",
            f"--state-dir={self._folder / 'workers' / name}",
        )

    def _resources(self) -> str:
        """A fair part of this machine for each. One alone finds its GPUs itself; among several,
        nobody has any but those that are pretended."""
        count = max(1, len(self._names))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // count // 1024**3
        cores = max(1, (os.cpu_count() or 1) // count)
        given = [f"cpu={cores}", f"memory={memory}Gi"]
        if self._gpus or count > 1:
            given.append(f"gpu={self._gpus}")
        return ",".join(given)

    async def _start(self, name: str, *words: str) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "phalanx.cli", *words),
            stdin=DEVNULL,
            stdout=DEVNULL,  # a server greets there, and that is for us to do
            stderr=PIPE,
            # Ctrl-C is for us alone: whoever is stopped is stopped in order.
            start_new_session=True,
            preexec_fn=_leave_with_us,
        )
        self._parts[name] = _Part(name, process)
        task = asyncio.create_task(self._tell(name, process))
        self._told.add(task)
        task.add_done_callback(self._told.discard)

    async def _tell(self, name: str, process: Process) -> None:
        """Everything it says, behind its name."""
        if process.stderr is None:
            raise AssertionError("bug: a part without output")
        async for raw in process.stderr:
            self._say(name, raw.decode(errors="replace").rstrip())

    def _say(self, name: str, line: str) -> None:
        with contextlib.suppress(OSError):  # whoever was to read it is gone, and they go on
            self._out.print(owned(name.ljust(self._width), line), soft_wrap=True)

    # What is watched

    async def _is_answering(self) -> bool:
        """Wait until the server leads. False if it ends, or takes too long, or we are to stop."""
        server = self._parts[_SERVER].process
        until = time.monotonic() + _START_S
        while time.monotonic() < until and not self._stop.is_set():
            if server.returncode is not None:
                self._say(_SERVER, f"it ended with status {server.returncode}")
                return False
            if await self._ask("/readyz"):
                return True
            await asyncio.sleep(_MOMENT_S)
        if not self._stop.is_set():
            self._say(
                _SERVER,
                f"it does not lead: another server uses {self._folder}; stop that one, or choose"
                " another folder with --data",
            )
        return False

    async def _ask(self, path: str) -> httpx.Response | None:
        async with httpx.AsyncClient(timeout=1) as client:
            with contextlib.suppress(httpx.HTTPError):
                answer = await client.get(self._url + path)
                return answer if answer.status_code == 200 else None
        return None

    async def _watch(self) -> int:
        """A worker that ends is started again, unless it never worked; without the server there is
        nothing to do."""
        while not self._stop.is_set():
            waits = {asyncio.create_task(p.process.wait()): p for p in self._parts.values()}
            stop = asyncio.create_task(self._stop.wait())
            await asyncio.wait([stop, *waits], return_when=asyncio.FIRST_COMPLETED)
            for task in (stop, *waits):
                task.cancel()
            ended = [part for part in waits.values() if part.process.returncode is not None]
            for part in () if self._stop.is_set() else ended:
                self._say(part.name, f"it ended with status {part.process.returncode}")
                if part.name == _SERVER or not self._is_complete:
                    return Status.UNSUCCESSFUL
                self._say(part.name, "it is started again")
                await asyncio.sleep(_PAUSE_S)
                await self._start(part.name, *self._work(part.name))
        return Status.OK

    async def _stop_all(self) -> None:
        """The workers first, so that the server hears how their tasks ended."""
        server = self._parts.pop(_SERVER, None)
        await asyncio.gather(*(_stopped(part) for part in self._parts.values()))
        if server is not None:
            await _stopped(server)
        await asyncio.gather(*self._told)

    async def _greet(self) -> None:
        """Once all are there."""
        there: set[str] = set()
        while not there.issuperset(self._names):
            await asyncio.sleep(_MOMENT_S)
            answer = await self._ask("/workers")
            there = {worker["id"] for worker in answer.json()} if answer else set()
        self._is_complete = True
        count = len(self._names)
        gpus = f", each with {counted_as(self._gpus, 'pretended GPU')}" if self._gpus else ""
        ask = " --gpu 1" if self._gpus else ""
        at = "" if self._url == DEFAULT_SERVER else f"  export PHALANX_SERVER={self._url}\n"
        typer.echo(
            f"\nPhalanx is up at {self._url} with {counted_as(count, 'worker')}{gpus}.\n"
            f"Everything is kept in {self._folder}.\n\n"
            f"In another terminal:\n{at}"
            f"  phalanx submit --gang {max(1, count)}{ask} --follow -- "
            "sh -c 'echo rank $RANK of $WORLD_SIZE'\n"
            "  phalanx top\n\n"
            "Ctrl-C stops everything.\n"
        )


def _leave_with_us() -> None:
    """In a part that is about to begin: if we are killed, it is told to stop."""
    _libc.prctl(_SET_PDEATHSIG, signal.SIGTERM)


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((_HOST, port))
        except OSError:
            return False
    return True


async def _stopped(part: _Part) -> None:
    if part.process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        part.process.terminate()
    try:
        async with asyncio.timeout(_STOP_S):
            await part.process.wait()
    except TimeoutError:
        part.process.kill()
        await part.process.wait()
