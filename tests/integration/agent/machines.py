"""Real workers on a real server, which can be killed and frozen."""

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from tests.integration.server.processes import Process, ServerProcess, sqlite_at
from tests.integration.server.waiting import PATIENCE_S, eventually, within
from tests.plain_http import async_http_client
from tests.ports import free_port
from tests.worker_processes import spawner_and_guard, spawner_of

#: Longer than a worker takes to start again on a busy machine.
LOST_AFTER_S = 60


class Machine:
    """One `phalanx worker` and its spawner."""

    def __init__(self, folder: Path, name: str, url: str) -> None:
        self.name = name
        self.state = folder / name
        self.url = url
        self.lines: list[dict[str, Any]] = []
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._registrations = 0  #: in the log before the last start

    async def start(self, *flags: str, before: tuple[str, ...] = (), **variables: str) -> None:
        self._registrations = len(self.logged("registered"))
        self._process = Process.start(
            *("worker", f"--server={self.url}", f"--id={self.name}"),
            *(f"--state-dir={self.state}", "--resources=gpu=1,cpu=2", "--log-format=json"),
            *flags,
            before=before,
            **variables,
        )
        self._reading = asyncio.create_task(self._read(self._process))

    async def _read(self, process: Process) -> None:
        async for line in process.lines():
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                self.lines.append({"event": line.decode()})

    def log(self) -> str:
        """The last lines of its log."""
        return "\n".join(map(str, self.lines[-30:]))

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]

    @property
    def link(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def spawner(self) -> int:
        spawner = spawner_of(self.state)
        assert spawner is not None, f"no spawner\n{self.log()}"
        return spawner

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def has_registered(self) -> bool:
        """Whether the server has accepted it since its last start."""
        return len(self.logged("registered")) > self._registrations

    def send(self, number: signal.Signals, *, link: bool = True, spawner: bool = True) -> None:
        spawner_pid = spawner_of(self.state) if spawner else None
        for pid in (self.link if link and self.is_up else None, spawner_pid):
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    async def ended(self) -> int:
        assert self._process is not None
        assert self._reading is not None
        status = await within(PATIENCE_S, self._process.wait(), self.log)
        await self._reading
        return status

    async def kill(self) -> None:
        """Kill link and spawner, and with it the tasks, whatever state they are in."""
        if self._process is None:
            return
        # The link first: it would start another spawner.
        self.send(signal.SIGKILL, spawner=False)
        await self.ended()
        self.send(signal.SIGKILL, link=False)

    async def cleaned_up(self) -> None:
        """Wait until its guard, too, has ended, after `kill`: it kills the tasks."""

        async def is_gone() -> bool:
            return not spawner_and_guard(self.state)

        await eventually(is_gone, PATIENCE_S, self.log)


class Fleet:
    """A server with workers, and the actions of a user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder  #: of the workers
        self.store = sqlite_at(folder)
        self.machines: list[Machine] = []
        self.server: ServerProcess
        self.client = async_http_client(timeout=PATIENCE_S)
        self._flags: tuple[str, ...] = ()
        self._port = free_port()

    async def serve(self, *flags: str) -> None:
        self._flags = flags or self._flags
        given = (f"--lost-after={LOST_AFTER_S}s", "--sync-wait=5s", "--image-pinning=off")
        self.server = await ServerProcess.start(
            self.store, "s", f"--port={self._port}", *given, *self._flags
        )
        await self.server.line("leading")

    async def work(
        self, count: int, *flags: str, prefix: str = "w", url: str = ""
    ) -> list[Machine]:
        """Start so many more workers."""
        url = url or self.server.url
        workers = [Machine(self.folder, f"{prefix}-{n}", url) for n in range(count)]
        self.machines += workers
        await asyncio.gather(*(machine.start(*flags) for machine in workers))
        await self.ready()
        return workers

    async def ready(self) -> None:
        """Wait until all running workers have registered since their start, and are active."""

        async def are_active() -> bool:
            listed = {each["id"]: each for each in await self.get("/workers")}
            up = [machine for machine in self.machines if machine.is_up]
            names = [machine.name for machine in up]
            return all(machine.has_registered for machine in up) and all(
                name in listed and listed[name]["status"] == "active" for name in names
            )

        await eventually(are_active, PATIENCE_S, lambda: "\n".join(m.log() for m in self.machines))

    async def clear(self) -> None:
        """End all jobs and workers, and keep the server."""
        await self._end_machines()
        self.machines.clear()
        for job in (await self.get("/jobs?finished=false"))["jobs"]:
            # It may have ended by now.
            await self.client.delete(f"{self.server.url}/jobs/{job['id']}")
        for worker in await self.get("/workers"):
            await self.client.delete(f"{self.server.url}/workers/{worker['id']}")

        async def is_empty() -> bool:
            return not (await self.get("/jobs?finished=false"))["jobs"]

        await eventually(is_empty, PATIENCE_S, self.server.told)

    async def _end_machines(self) -> None:
        await asyncio.gather(*(machine.kill() for machine in self.machines))
        for machine in self.machines:
            await machine.cleaned_up()

    async def close(self) -> None:
        await self._end_machines()
        await self.client.aclose()
        await self.server.kill()

    async def get(self, path: str) -> Any:
        answer = await self.client.get(self.server.url + path)
        assert answer.status_code in (200, 204), answer.text
        return answer.json() if answer.status_code == 200 else None

    async def submit(self, **job: Any) -> str:
        answer = await self.client.post(f"{self.server.url}/jobs", json=job)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def cancel(self, job: str) -> None:
        answer = await self.client.delete(f"{self.server.url}/jobs/{job}")
        assert answer.status_code < 300, answer.text

    async def reach(self, job: str, *phases: str, seconds: float = PATIENCE_S) -> dict[str, Any]:
        seen: list[dict[str, Any]] = [{}]

        async def is_in_phase() -> bool:
            with suppress(httpx.HTTPError):
                seen[0] = await self.get(f"/jobs/{job}")
            return seen[0].get("phase") in phases

        await eventually(is_in_phase, seconds, lambda: f"{seen[0]}\n{self.server.told()}")
        return seen[0]

    async def events(self, job: str) -> list[dict[str, Any]]:
        """The events of a job, oldest first."""
        events: list[dict[str, Any]] = (await self.get(f"/jobs/{job}/events"))["events"]
        return events


def guard_of(spawner: int) -> int:
    """The guard of a spawner: its child that runs the same program."""
    children = Path(f"/proc/{spawner}/task/{spawner}/children").read_text().split()
    command = Path(f"/proc/{spawner}/cmdline").read_bytes()
    [guard] = [pid for pid in children if Path(f"/proc/{pid}/cmdline").read_bytes() == command]
    return int(guard)
