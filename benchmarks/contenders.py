"""The schedulers that are compared, as real processes on this machine; this file has Phalanx."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import phalanx
from phalanx.client import PhalanxError
from phalanx.client.submission import one_role

READY_S = 120.0
POLL_S = 0.03
BATCH = 500
TICKS = os.sysconf("SC_CLK_TCK")


class Contender(Protocol):
    name: str
    server: int  #: the pid of its server

    def tasks(self, count: int, command: Sequence[str]) -> None:
        """Submit the tasks in the fastest way, and return when all are done."""

    def gangs(self, count: int, size: int, command: Sequence[str]) -> None: ...

    def ranks(self, size: int, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Run one gang in which every rank runs the command."""

    def submit_pending(self, count: int) -> None:
        """Submit separate jobs that can never start."""

    def cpu_s(self) -> dict[str, float]:
        """CPU time of each part so far, the tasks included."""


class Phalanx:
    name = "Phalanx"

    def __init__(self, server: int, workers: list[int], client: phalanx.Client) -> None:
        self.server = server
        self._workers = workers
        self._client = client

    def tasks(self, count: int, command: Sequence[str]) -> None:
        self.gangs(count, 1, command)

    def gangs(self, count: int, size: int, command: Sequence[str]) -> None:
        self._submit([_gang(size, command)] * count)
        self._finish()

    def ranks(self, size: int, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._client.submit(_gang(size, command, env=env))
        self._finish()

    def start_ms(self, role: dict[str, Any]) -> float:
        """Run a job of one role; the time from its submission until all its tasks had started."""
        job = self._client.submit({"roles": {"worker": role}}).id
        ended = self._client.wait(job, timeout_s=READY_S)
        started = [task.started_at for task in ended.tasks if task.started_at is not None]
        if len(started) < ended.size:
            raise RuntimeError(f"job {job} has not started: {ended.cause}")
        times = map(datetime.fromisoformat, (max(started), ended.created_at))
        return (next(times) - next(times)).total_seconds() * 1000

    @contextmanager
    def running_gang(self, size: int, command: Sequence[str], stamps: str) -> Iterator[None]:
        job = self._client.submit(_gang(size, command, env={"STAMPS": stamps})).id
        yield
        self._client.cancel(job)
        self._finish()

    def submit_pending(self, count: int) -> None:
        self._submit([one_role(["true"], resources={"gpu": 1})] * count)

    def _submit(self, jobs: list[dict[str, Any]]) -> None:
        for first in range(0, len(jobs), BATCH):
            reply = self._client.submit_all(jobs[first : first + BATCH])
            if reply.refused:
                raise RuntimeError(f"{reply.refused} jobs were refused: {reply.results[0].error}")

    def _finish(self) -> None:
        """Wait until all jobs have ended."""
        while next(self._client.jobs(finished=False, page=1), None) is not None:
            time.sleep(POLL_S)

    def cpu_s(self) -> dict[str, float]:
        spawners = [pid for worker in self._workers for pid in _children(worker)]
        parts = {
            "server": cpu_s(self.server),
            "links": sum(map(cpu_s, self._workers)),
            "spawners and tasks": sum(map(cpu_s, spawners)),
        }
        return {"total": sum(parts.values())} | parts


def _gang(size: int, command: Sequence[str], **fields: Any) -> dict[str, Any]:
    return one_role(command, gang=size, resources={"cpu": 1}, **fields)


def cpu_s(pid: int) -> float:
    """CPU time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def phalanx_cluster(folder: Path, workers: int) -> Iterator[Phalanx]:
    """Run a server and its workers in the block."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with ExitStack() as stack, (folder / "log").open("wb") as log:

        def start(*words: str) -> int:
            command = [sys.executable, "-m", "phalanx.cli", *words]
            process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process.pid

        server = start("serve", f"--port={port}", f"--store=sqlite:{folder / 'db'}")
        client = stack.enter_context(phalanx.Client(url))
        pids = []
        for number in range(workers):
            given = f"--id=w{number}", "--resources=cpu=1", f"--state-dir={folder / str(number)}"
            pids.append(start("worker", f"--server={url}", *given))
        _wait_for(client, workers, folder / "log")
        cluster = Phalanx(server, pids, client)
        cluster.ranks(workers, ["true"], {})
        yield cluster


def _wait_for(client: phalanx.Client, workers: int, log: Path) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        try:
            if len(client.workers()) == workers:
                return
        except PhalanxError:
            pass  # the server does not listen yet
        time.sleep(0.1)
    sys.exit(f"the cluster did not start within {READY_S:.0f} s:\n{log.read_text()}")
