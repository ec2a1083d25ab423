"""Faults as they are done to the cluster. Each ends by itself and leaves the target repaired."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from chaos.cluster import Cluster, Supervised, Worker, send
from chaos.database import Database
from chaos.network_proxy import Weather
from chaos.schedule import Fault, FaultKind
from chaos.user import User

_WEATHER = {
    FaultKind.CUT_WORKER: Weather.CUT,
    FaultKind.MUTE_WORKER: Weather.MUTE,
    FaultKind.DEAFEN_WORKER: Weather.DEAF,
    FaultKind.DELAY_WORKER: Weather.SLOW,
}


def _link(worker: Worker, _: int) -> list[int]:
    return [] if worker.pid is None else [worker.pid]


def _spawner(worker: Worker, _: int) -> list[int]:
    spawner = worker.spawner
    return [] if spawner is None else [spawner]


def _guards(worker: Worker, _: int) -> list[int]:
    return worker.children()[0]


def _task(worker: Worker, pick: int) -> list[int]:
    tasks = worker.children()[1]
    return [tasks[pick % len(tasks)]] if tasks else []


def _two(worker: Worker, pick: int) -> list[int]:
    """Two of the three processes that watch the lease; the third one is enough."""
    parts = [_link(worker, pick), _spawner(worker, pick), _guards(worker, pick)]
    del parts[pick % 3]
    return [pid for part in parts for pid in part]


_Select = Callable[[Worker, int], list[int]]
_KILLS: dict[FaultKind, _Select] = {
    FaultKind.KILL_TASK: _task,
    FaultKind.KILL_LINK: _link,
    FaultKind.KILL_SPAWNER: _spawner,
    FaultKind.KILL_GUARD: _guards,
}
_FREEZES: dict[FaultKind, _Select] = {
    FaultKind.FREEZE_TASK: _task,
    FaultKind.FREEZE_LINK: _link,
    FaultKind.FREEZE_SPAWNER: _spawner,
    FaultKind.FREEZE_GUARD: _guards,
    FaultKind.FREEZE_TWO: _two,
    FaultKind.FREEZE_WORKER: lambda worker, _: worker.everything(),
}
_FILL_BYTES = 64 * 2**20


class FaultInjector:
    """Does the faults of a schedule, at most one at a time to each target."""

    def __init__(self, cluster: Cluster, database: Database, user: User) -> None:
        self._cluster = cluster
        self._database = database
        self._user = user
        self._busy: set[str] = set()
        self.done: Counter[FaultKind] = Counter()
        self.skipped = 0

    async def inject(self, fault: Fault) -> None:
        cluster = self._cluster
        if fault.kind in (FaultKind.RESTART_DATABASE, FaultKind.FREEZE_DATABASE):
            name, action = "database", self._database_fault(fault)
        elif fault.kind.endswith("server") or fault.kind is FaultKind.CUT_SERVER:
            number = fault.target % len(cluster.servers)
            name, action = f"s-{number}", self._server_fault(fault, number)
        else:
            worker = self._free_worker(fault.target)
            name, action = worker.name, self._worker_fault(fault, worker)
        if name in self._busy:
            action.close()
            self.skipped += 1
            return
        self._busy.add(name)
        try:
            self.done[fault.kind] += 1
            await action
        finally:
            self._busy.discard(name)

    # Workers

    def _free_worker(self, number: int) -> Worker:
        """The worker of that number, or the next one without a fault."""
        workers = self._cluster.workers
        ordered = [workers[(number + n) % len(workers)] for n in range(len(workers))]
        return next((each for each in ordered if each.name not in self._busy), ordered[0])

    async def _worker_fault(self, fault: Fault, worker: Worker) -> None:
        match fault.kind:
            case FaultKind.KILL_WORKER | FaultKind.RESTART_WORKER:
                await self._restart_worker(fault, worker)
            case FaultKind.DRAIN_WORKER:
                await self._user.drain(worker.name)
                await asyncio.sleep(fault.seconds)
                await self._user.uncordon(worker.name)
            case FaultKind.FILL_DISK:
                await _fill(worker, fault.seconds)
            case kind if kind in _WEATHER:
                await self._weather(worker, _WEATHER[kind], fault.seconds)
            case kind if kind in _KILLS:
                _send_all(self._chosen(_KILLS[kind], fault, worker), signal.SIGKILL)
            case kind:
                await _freeze(self._chosen(_FREEZES[kind], fault, worker), fault.seconds)

    def _chosen(self, select: _Select, fault: Fault, worker: Worker) -> list[int]:
        pids = select(worker, fault.target)
        if not pids:
            self.done[fault.kind] -= 1
            self.skipped += 1
        return pids

    async def _restart_worker(self, fault: Fault, worker: Worker) -> None:
        """Kill everything of a worker at once, or ask its agent to leave, and start it again."""
        worker.hold()
        if fault.kind is FaultKind.RESTART_WORKER:
            send(worker.pid, signal.SIGTERM)
        else:
            _send_all(worker.everything(), signal.SIGKILL)
            _send_all(worker.everything(), signal.SIGKILL)  # started meanwhile
        await self._resume(worker, fault.seconds)

    async def _resume(self, process: Supervised, seconds: float) -> None:
        await process.ended()
        await asyncio.sleep(seconds)
        process.start()

    async def _weather(self, worker: Worker, weather: Weather, seconds: float) -> None:
        for proxy in self._cluster.proxies:
            proxy.set(worker.name, weather)
        await asyncio.sleep(seconds)
        for proxy in self._cluster.proxies:
            proxy.set(worker.name, Weather.CLEAR)

    # Servers and the database

    async def _server_fault(self, fault: Fault, number: int) -> None:
        server, proxy = self._cluster.servers[number], self._cluster.proxies[number]
        if fault.kind is FaultKind.FREEZE_SERVER:
            await _freeze([server.pid] if server.pid else [], fault.seconds)
        elif fault.kind is FaultKind.CUT_SERVER:
            proxy.cut_off(is_cut=True)
            await asyncio.sleep(fault.seconds)
            proxy.cut_off(is_cut=False)
        else:
            kills = fault.kind is FaultKind.KILL_SERVER
            server.hold()
            send(server.pid, signal.SIGKILL if kills else signal.SIGTERM)
            await self._resume(server, fault.seconds)

    async def _database_fault(self, fault: Fault) -> None:
        if fault.kind is FaultKind.RESTART_DATABASE:
            await self._database.restart()
            return
        self._database.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            self._database.signal(signal.SIGCONT)


def _send_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        send(pid, number)


async def _freeze(pids: list[int], seconds: float) -> None:
    if not pids:
        return
    _send_all(pids, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        _send_all(pids, signal.SIGCONT)


async def _fill(worker: Worker, seconds: float) -> None:
    """Fill the disk of a worker, if it has one of its own."""
    if not worker.has_disk:
        return
    filler = worker.state / "filler"
    with suppress(OSError), filler.open("wb") as file:
        for _ in range(_FILL_BYTES // 2**16):
            file.write(bytes(2**16))
            file.flush()
    try:
        await asyncio.sleep(seconds)
    finally:
        filler.unlink(missing_ok=True)
