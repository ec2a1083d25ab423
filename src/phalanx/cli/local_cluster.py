"""The server and the workers of `phalanx up` as child processes: started, watched and stopped."""

import asyncio
import contextlib
import ctypes
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from datetime import datetime
from pathlib import Path

import httpx
import typer

from phalanx.cli import local_tokens
from phalanx.cli.exits import Status, end
from phalanx.cli.formatting import plural
from phalanx.cli.local_tokens import LocalTokens
from phalanx.cli.output import console, prefixed_line
from phalanx.cli.visible_text import whole_words
from phalanx.client.settings import DEFAULT_SERVER, TOKEN_VARIABLE
from phalanx.secrets.encryption import add_key
from phalanx.wire.times import iso_time, now_micros

_SERVER = "server"
_HOST = "127.0.0.1"
#: How long the server has to answer after its start, and a process to exit after SIGTERM.
_START_TIMEOUT_S, _STOP_TIMEOUT_S = 30.0, 60.0
#: The pause before a worker that exited is restarted.
_RESTART_PAUSE_S = 1.0
_POLL_S = 0.1
#: The server has no TLS. Without this, every request would load the authorities of the system.
_NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_LOG_LINE = re.compile(
    r"(?P<time>\S+T\S+Z) \[(?P<level>\w+) *\] (?P<event>.*?)(?: {2,}(?P<fields>\S.*))? *"
)
_libc = ctypes.CDLL(None)
_SET_PDEATHSIG = 1
_TOKEN_VARIABLES = (TOKEN_VARIABLE, "PHALANX_TOKEN_FILE")


class _Child:
    """A child process and its name in the output."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process


class LocalCluster:
    """A server and workers on this machine. Their log lines are printed after their names."""

    def __init__(
        self, folder: Path, port: int, workers: int, gpus: int, *, has_dashboard: bool
    ) -> None:
        self._folder = folder
        self._store = f"sqlite:{folder / 'phalanx.db'}"
        self._tokens: LocalTokens | None = None  #: if the server requires tokens
        self._url = f"http://{_HOST}:{port}"
        self._port = port
        self._workers = [f"w-{number}" for number in range(1, workers + 1)]
        self._gpus = gpus
        self._has_dashboard = has_dashboard
        self._children: dict[str, _Child] = {}
        self._readers: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._is_complete = False  #: every worker has registered once
        self._out = console()
        self._width = max(len(_SERVER), *(len(name) for name in self._workers or [""]))

    async def run(self) -> int:
        """Run until a signal arrives or the server exits. Returns the exit status."""
        if not _is_free(self._port):  # otherwise our workers would register with that server
            end(
                Status.USAGE,
                f"port {self._port} is in use; stop the process that listens there, or choose"
                " another port with --port",
            )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        try:
            await self._start(_SERVER, *self._server_arguments())
            if await self._server_leads():
                if local_tokens.required(self._store, _HOST):
                    self._tokens = await local_tokens.create(self._store, self._folder)
                begun = iso_time(now_micros())
                for name in self._workers:
                    await self._start(name, *self._worker_arguments(name))
                greeting = asyncio.create_task(self._greet(begun))
                status = await self._watch()
                greeting.cancel()
                return status
            return Status.OK if self._stop.is_set() else Status.UNSUCCESSFUL
        finally:
            await self._stop_all()

    def _on_signal(self) -> None:
        """Stop everything in order. On a second signal, send SIGTERM to all processes at once."""
        if self._stop.is_set():
            for child in self._children.values():
                with contextlib.suppress(ProcessLookupError):
                    # A worker kills its tasks on the second SIGTERM. SIGKILL would orphan them.
                    child.process.terminate()
        self._stop.set()

    # Starting

    def _server_arguments(self) -> tuple[str, ...]:
        return (
            "serve",
            f"--host={_HOST}",
            f"--port={self._port}",
            f"--store={self._store}",
            f"--secret-key-file={self._key_file()}",
            *(() if self._has_dashboard else ("--no-dashboard",)),
        )

    def _key_file(self) -> Path:
        """The key that encrypts secrets; created if there is none."""
        path = self._folder / "secret.key"
        if not path.exists():
            add_key(path)
        return path

    def _worker_arguments(self, name: str) -> tuple[str, ...]:
        tokens = () if self._tokens is None else (f"--token-file={self._tokens.join}",)
        return (
            "worker",
            f"--server={self._url}",
            f"--id={name}",
            f"--resources={self._resources()}",
            f"--state-dir={self._folder / 'workers' / name}",
            *tokens,
        )

    def _resources(self) -> str:
        """An equal part of this machine for each worker. A single worker detects the machine's
        GPUs; several workers have only simulated ones."""
        count = max(1, len(self._workers))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // count // 1024**3
        cores = max(1, (os.cpu_count() or 1) // count)
        amounts = [f"cpu={cores}", f"memory={memory}Gi"]
        if self._gpus or count > 1:
            amounts.append(f"gpu={self._gpus}")
        return ",".join(amounts)

    async def _start(self, name: str, *arguments: str) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "phalanx.cli", *arguments),
            stdin=DEVNULL,
            stdout=DEVNULL,  # the server's greeting; ours replaces it
            stderr=PIPE,
            # A token of the user's is for another cluster, or not for workers.
            env={k: v for k, v in os.environ.items() if k not in _TOKEN_VARIABLES},
            # Ctrl-C reaches only this process, which stops the others in order.
            start_new_session=True,
            preexec_fn=_stop_with_parent,
        )
        self._children[name] = _Child(name, process)
        reader = asyncio.create_task(self._print_log(name, process))
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)

    async def _print_log(self, name: str, process: Process) -> None:
        if process.stderr is None:
            raise AssertionError("bug: a child process without a pipe")
        async for raw in process.stderr:
            line = raw.decode(errors="replace").rstrip()
            self._print(name, short_log_line(line) if self._out.is_terminal else line)

    def _print(self, name: str, line: str) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed; the cluster keeps running
            if not self._out.is_terminal:
                self._out.print(prefixed_line(name.ljust(self._width), line), soft_wrap=True)
                return
            room = self._out.width - self._width - len(" | ")
            for part in whole_words(line, room, "  "):
                self._out.print(prefixed_line(name.ljust(self._width), part), soft_wrap=True)

    # Watching

    async def _server_leads(self) -> bool:
        """Wait until the server leads. False if it exits or takes too long, or on a signal."""
        server = self._children[_SERVER].process
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and not self._stop.is_set():
            if server.returncode is not None:
                self._print(_SERVER, _ending(server.returncode))
                return False
            if await self._get("/readyz"):
                return True
            if leader := await self._other_leader():
                self._print(
                    _SERVER,
                    f"another server, {leader}, uses {self._folder}; stop that server, or choose"
                    " another directory with --data",
                )
                return False
            await asyncio.sleep(_POLL_S)
        if not self._stop.is_set():
            self._print(_SERVER, "does not lead; its messages above say why")
        return False

    async def _other_leader(self) -> str | None:
        """The address of the server that leads instead of ours."""
        answer = await self._answer("/jobs")
        return answer.headers.get("location", "").removesuffix("/jobs") if answer else None

    async def _get(self, path: str) -> httpx.Response | None:
        """The response, if it is a success."""
        answer = await self._answer(path)
        return answer if answer is not None and answer.status_code == 200 else None

    async def _answer(self, path: str, method: str = "GET") -> httpx.Response | None:
        headers = {}
        if self._tokens is not None:
            headers["Authorization"] = f"Bearer {self._tokens.admin.read_text().strip()}"
        async with httpx.AsyncClient(timeout=1, headers=headers, verify=_NO_AUTHORITIES) as client:
            with contextlib.suppress(httpx.HTTPError):
                return await client.request(method, self._url + path)
        return None

    async def _watch(self) -> int:
        """Restart workers that exit. Return when the server exits, or a worker exits before all
        have registered, or on a signal."""
        while not self._stop.is_set():
            exits = {asyncio.create_task(c.process.wait()): c for c in self._children.values()}
            stop = asyncio.create_task(self._stop.wait())
            await asyncio.wait([stop, *exits], return_when=asyncio.FIRST_COMPLETED)
            for task in (stop, *exits):
                task.cancel()
            exited = [child for child in exits.values() if child.process.returncode is not None]
            for child in () if self._stop.is_set() else exited:
                self._print(child.name, _ending(child.process.returncode or 0))
                if child.name == _SERVER or not self._is_complete:
                    return Status.UNSUCCESSFUL
                self._print(child.name, "restarting")
                await asyncio.sleep(_RESTART_PAUSE_S)
                await self._start(child.name, *self._worker_arguments(child.name))
        return Status.OK

    async def _stop_all(self) -> None:
        """Stop the workers before the server, so that the server records how their tasks ended."""
        server = self._children.pop(_SERVER, None)
        await asyncio.gather(*(_stopped(child) for child in self._children.values()))
        if server is not None:
            await _stopped(server)
        await asyncio.gather(*self._readers)

    async def _remove(self, others: set[str]) -> None:
        """Remove the workers that an earlier run started and this one does not."""
        for state in (self._folder / "workers" / name for name in others):
            if not state.is_dir():
                continue  # started by hand
            answer = await self._answer(f"/workers/{state.name}", "DELETE")
            if answer is not None and answer.is_success:
                shutil.rmtree(state)

    async def _greet(self, begun: str) -> None:
        """Print the address and the next commands when all workers have registered since `begun`:
        the store also has the workers of an earlier run."""
        listed: dict[str, str] = {}  #: when each worker registered last
        while not all(listed.get(name, "") >= begun for name in self._workers):
            await asyncio.sleep(_POLL_S)
            answer = await self._get("/workers")
            workers = answer.json() if answer else ()
            listed = {each["id"]: each["registered_at"] for each in workers}
        await self._remove(listed.keys() - self._workers)
        self._is_complete = True
        count = len(self._workers)
        gpus = f", each with {plural(self._gpus, 'simulated GPU')}" if self._gpus else ""
        request = " --gpu 1" if self._gpus else ""
        page = f"Open {self._url}/ in a browser to see it.\n" if self._has_dashboard else ""
        address = "" if self._url == DEFAULT_SERVER else f"  export PHALANX_SERVER={self._url}\n"
        if self._tokens is not None:
            address += f"  export PHALANX_TOKEN=$(cat {shlex.quote(str(self._tokens.admin))})\n"
        typer.echo(
            f"\nPhalanx is running at {self._url}\nwith {plural(count, 'worker')}{gpus}.\n"
            f"{page}Its state is in {self._folder}.\n\n"
            f"In another terminal:\n{address}"
            f"  phalanx submit --gang {max(1, count)}{request} --follow --"
            " sh -c 'echo rank $RANK'\n"
            "  phalanx top\n\n"
            "Ctrl-C stops everything.\n"
        )


def short_log_line(line: str) -> str:
    """A line of a log without its date, its padding, and its level unless that is a warning."""
    parts = _LOG_LINE.fullmatch(line)
    if parts is None:
        return line
    level = "" if parts["level"] == "info" else f"{parts['level']}: "
    event = " ".join(each for each in (parts["event"], parts["fields"]) if each)
    return f"{datetime.fromisoformat(parts['time']).astimezone():%H:%M:%S} {level}{event}"


def _ending(status: int) -> str:
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"exited with status {status}"


def _stop_with_parent() -> None:
    """In the child before it starts: receive SIGTERM when the parent dies."""
    _libc.prctl(_SET_PDEATHSIG, signal.SIGTERM)


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((_HOST, port))
        except OSError:
            return False
    return True


async def _stopped(child: _Child) -> None:
    """Stop the process: SIGTERM, and SIGKILL after the timeout."""
    if child.process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        child.process.terminate()
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await child.process.wait()
    except TimeoutError:
        child.process.kill()
        await child.process.wait()
