"""`phalanx kube scheduler` as two processes: one leads, the other stands by to take over.

They reach the API server through a proxy, so that the leader can be killed at one of its requests.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import NamedTuple

import yaml
from aiohttp import web
from tests.kubernetes.control_plane import ApiServer
from tests.kubernetes.faulty_proxy import FaultyProxy
from tests.kubernetes.pool import POOL, Pool
from tests.kubernetes.server_process import ServerProcess

from phalanx.kube.api.errors import ApiStatusError
from phalanx.kube.api.resources import LEASES
from phalanx.kube.gangs.gang_translation import PREEMPTED_BY

_LEASE = "phalanx-scheduler"
_POLL_S = 0.05
_LEAD_S = 60.0


class Write(StrEnum):
    """What a scheduler writes to bind and evict pods."""

    BIND = "bind"
    NOMINATION = "nomination"
    MARK = "mark"
    EVICTION = "eviction"


class KillPoint(NamedTuple):
    """One of the next writes of a scheduler."""

    kind: Write
    number: int
    #: False: the API server does not get this write, nor those after it.
    is_answered: bool


class SchedulerPair:
    def __init__(self, api: ApiServer, pool: Pool, folder: Path, gang_timeout_s: float) -> None:
        self.takeovers: list[float] = []  #: seconds from a kill until another process led
        self._api = api
        self._pool = pool
        self._folder = folder
        self._gang_timeout_s = gang_timeout_s
        self._names = (f"scheduler-{number}" for number in count())
        self._processes: dict[str, ServerProcess] = {}
        self._proxy = FaultyProxy(api)

    @asynccontextmanager
    async def running(self, ready_within_s: float) -> AsyncIterator[None]:
        """Run both in the block, from the moment at which one leads."""
        async with self._proxy.serving():
            self._write_kubeconfig()
            try:
                await self._start(ready_within_s)
                yield
            finally:
                for process in self._processes.values():
                    process.kill()

    def _write_kubeconfig(self) -> None:
        config = {
            "current-context": "proxy",
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "admin"}}],
            "clusters": [{"name": "proxy", "cluster": {"server": self._proxy.url}}],
            "users": [{"name": "admin", "user": {"token": self._api.token}}],
        }
        self._kubeconfig = self._folder / "proxy.kubeconfig"
        self._kubeconfig.write_text(yaml.safe_dump(config))

    async def _start(self, ready_within_s: float) -> None:
        self._start_one()
        await self._leader(ready_within_s)
        self._start_one()

    def _start_one(self) -> None:
        name = next(self._names)
        command = [sys.executable, "-m", "phalanx.cli", "kube", "scheduler"]
        command += ["--kubeconfig", str(self._kubeconfig), "--identity", name]
        command += ["--lease-namespace", self._pool.namespace]
        command += ["--scheduler-names", self._pool.namespace]
        command += ["--nodes", f"{POOL}={self._pool.namespace}"]
        command += ["--gang-timeout", str(self._gang_timeout_s)]
        self._processes[name] = ServerProcess(command, self._folder / f"{name}.log")

    async def _leader(self, within_s: float) -> str:
        """The name of the process that leads, once one does."""
        async with asyncio.timeout(within_s):
            while True:
                with suppress(ApiStatusError):
                    lease = await self._pool.api.get(LEASES, _LEASE, self._pool.namespace)
                    if lease.spec.holder_identity in self._processes:
                        return lease.spec.holder_identity
                await asyncio.sleep(_POLL_S)

    async def kill_leader_at(self, point: KillPoint, quiet_s: float) -> bool:
        """Kill the leader with SIGKILL at one of its next writes; False if it has written nothing
        for so long, and lives."""
        name = await self._leader(_LEAD_S)
        leader = self._processes[name]
        writes: list[Write] = []
        written = asyncio.Event()

        def kill(request: web.BaseRequest, body: bytes) -> None:
            kind = write_kind(request, body)
            if kind is not None and not written.is_set():
                writes.append(kind)
                if writes.count(point.kind) == point.number:
                    leader.kill()
                    written.set()
            if kind is not None and written.is_set() and not point.is_answered:
                raise web.HTTPServiceUnavailable

        if point.is_answered:
            self._proxy.on_answer = kill
        else:
            self._proxy.on_request = kill
        count = -1
        while not written.is_set() and count < len(writes):
            count = len(writes)
            with suppress(TimeoutError):
                async with asyncio.timeout(quiet_s):
                    await written.wait()
        if not written.is_set():
            self._forward()
            return False
        del self._processes[name]
        return True

    def _forward(self) -> None:
        """Let the proxy forward every request."""
        self._proxy.on_answer = self._proxy.on_request = lambda _, __: None

    async def take_over(self, within_s: float) -> None:
        """Let the other process lead, and start a further one. The lease of a dead process need not
        run out: it is deleted when the API server has answered what that process has sent."""
        killed_s = time.monotonic()
        self._forward()
        async with asyncio.timeout(within_s):
            while any(request.method != "GET" for request in self._proxy.under_way):
                await asyncio.sleep(_POLL_S)
        with suppress(ApiStatusError):
            await self._pool.api.delete(LEASES, _LEASE, self._pool.namespace)
        self._start_one()
        await self._leader(within_s)
        self.takeovers.append(time.monotonic() - killed_s)

    def check(self) -> None:
        """Raise if a process has ended by itself."""
        for name, process in self._processes.items():
            if process.ends_within(0):
                end = (self._folder / f"{name}.log").read_text()[-2000:]
                raise RuntimeError(f"{name} has ended by itself:\n{end}")


def write_kind(request: web.BaseRequest, body: bytes) -> Write | None:
    """Whether a request binds a pod, evicts it, or prepares its eviction."""
    if request.path.endswith("/binding"):
        return Write.BIND
    if request.path.endswith("/eviction"):
        return Write.EVICTION
    if request.method != "PATCH":
        return None
    if PREEMPTED_BY.encode() in body:
        return Write.MARK
    return Write.NOMINATION if b"nominatedNodeName" in body else None
