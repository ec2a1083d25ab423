"""Fenced jobs on workers whose processes are frozen and killed: attempts never overlap.

A worker has three processes: link, spawner and guard. Any one of them is enough.
"""

import asyncio
import os
import signal
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.agent.machines import Fleet, Machine, guard_of
from tests.integration.agent.ranks import WORK, Ranks

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Longer than a healthy worker is silent on a busy machine.
_LOST_AFTER_S = 25
_FREEZE, _KILL = signal.SIGSTOP, signal.SIGKILL


class Cable:
    """A connection to the server that can be unplugged."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self._is_plugged = True
        self._writers: list[StreamWriter] = []
        self._server: asyncio.Server

    async def plug(self) -> str:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _connect(self, reader: StreamReader, writer: StreamWriter) -> None:
        if not self._is_plugged:
            writer.close()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, far_writer]
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    def unplug(self) -> None:
        self._is_plugged = False
        for writer in self._writers:
            writer.transport.abort()

    def close(self) -> None:
        self.unplug()
        self._server.close()


async def _copy(reader: StreamReader, writer: StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()


class Fault:
    """What happens to the processes of one worker."""

    def __init__(self, **signals: signal.Signals) -> None:
        self._signals = signals

    def strike(self, machine: Machine) -> Callable[[], None]:
        """Send the signals; the function that is returned kills the link and what is frozen."""
        spawner = machine.spawner
        pids = {"link": machine.link, "spawner": spawner, "guard": guard_of(spawner)}
        # The link first, which would start another spawner, then what would restart the guard.
        for name in ("link", "spawner", "guard"):
            if name in self._signals:
                os.kill(pids[name], self._signals[name])

        def clean_up() -> None:
            machine.send(_KILL, spawner=False)  # the link would start another spawner
            for name, number in self._signals.items():
                if number is _FREEZE:
                    with suppress(ProcessLookupError):
                        os.kill(pids[name], _KILL)

        return clean_up


#: By worker. The last one is cut off from the server too.
_FAULTS = (
    Fault(link=_FREEZE, spawner=_FREEZE),
    Fault(link=_FREEZE, guard=_FREEZE),
    Fault(link=_KILL, spawner=_FREEZE),
    Fault(link=_KILL, spawner=_KILL),
    Fault(spawner=_FREEZE, guard=_FREEZE),
)
#: Does not stop when it is asked to, and neither does its child, which leaves its session.
_STUBBORN = "trap '' TERM; setsid sh -c 'while :; do sleep 1; done' & "


async def test_one_process_of_a_worker_is_enough_to_end_fenced_tasks_in_time(
    small: Fleet, tmp_path: Path
) -> None:
    await small.server.kill()
    await small.serve("--brake-count=100", f"--lost-after={_LOST_AFTER_S}s")
    cable = Cable(small.server.url)
    await small.work(len(_FAULTS) - 1)
    await small.work(1, prefix="cut", url=await cable.plug())
    gangs = [Ranks(small, tmp_path / f"gang-{n}", size=1) for n in range(len(_FAULTS))]
    for gang in gangs:
        await gang.submit(_STUBBORN + WORK, fence=True, grace="1s")
    await asyncio.gather(*(gang.all_run(1) for gang in gangs))
    faulty = list(small.machines)
    await small.work(len(_FAULTS), prefix="spare")
    clean_ups: list[Callable[[], None]] = []
    try:
        for fault, machine in zip(_FAULTS, faulty, strict=True):
            clean_ups.append(fault.strike(machine))
        cable.unplug()
        # A rank that starts while its earlier attempt lives writes to `doubles` and exits.
        await asyncio.gather(*(gang.all_run(2, 6 * _LOST_AFTER_S) for gang in gangs))
        for gang in gangs:
            assert [start.epoch for start in gang.living()] == [2]
            assert not (gang.marks / "doubles").exists()
    finally:
        cable.close()
        for clean_up in clean_ups:
            clean_up()
    await asyncio.gather(*(gang.finish() for gang in gangs))
