"""A worker whose disk is full: it loses no report, runs nothing twice, and continues afterwards."""

import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.agent.machines import Fleet, Machine
from tests.integration.agent.ranks import Ranks
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.requirements import require_root

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Records each run, so that a second one would be seen.
WORK = 'echo "$PHALANX_TASK" >>"$MARKS/runs"; while [ ! -e "$MARKS/finish" ]; do sleep 0.1; done'


@pytest_asyncio.fixture(loop_scope="module")
async def disk(tmp_path: Path) -> AsyncIterator[Path]:
    """A file system of 1 MiB."""
    require_root("only root can mount a file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    options = "size=1m,nr_inodes=300"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    subprocess.run(mount, check=True)  # noqa: S603
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)  # noqa: S603, S607


@pytest_asyncio.fixture(loop_scope="module")
async def machine(disk: Path, small: Fleet) -> AsyncIterator[Machine]:
    """A worker of the fleet with its state on that file system."""
    machine = Machine(disk, "full", small.server.url)
    small.machines.append(machine)
    await machine.start()
    await small.ready()
    yield machine
    await machine.kill()
    small.machines.remove(machine)


def fill(disk: Path) -> Path:
    """Leave no space on the file system, for bytes or for files; return what to remove again."""
    filler = disk / "filler"
    filler.mkdir()
    with (filler / "bytes").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 64 * 1024):
            pass
    with suppress(OSError):
        for number in range(1000):
            (filler / str(number)).touch()
    return filler


async def test_ends_are_reported_and_nothing_runs_twice_while_the_disk_is_full(
    small: Fleet, machine: Machine, disk: Path, tmp_path: Path
) -> None:
    ranks = Ranks(small, tmp_path / "gang", size=1)
    running = [await submit(small, ranks.marks, f"running-{n}") for n in range(60)]

    async def are_up() -> bool:
        return len(runs(ranks.marks)) == len(running)

    await eventually(are_up, PATIENCE_S, machine.log)
    filler = fill(disk)
    late = await submit(small, ranks.marks, "late")
    events: list[str] = []

    async def is_refused() -> bool:
        events[:] = [str(each) for each in await small.events(late)]
        return any("No space left on device" in each for each in events)

    await eventually(is_refused, PATIENCE_S, lambda: f"{events}\n{machine.log()}")
    (ranks.marks / "finish").touch()
    for job in running:
        await small.reach(job, "done")
    machine.send(signal.SIGKILL)
    await machine.ended()
    await machine.start()
    shutil.rmtree(filler)
    await small.ready()
    await small.reach(late, "done")
    machine.send(signal.SIGKILL)
    await machine.ended()
    await machine.start()
    await small.ready()
    await small.reach(await submit(small, ranks.marks, "after"), "done")
    assert sorted(runs(ranks.marks)) == sorted(set(runs(ranks.marks)))
    assert len(runs(ranks.marks)) == len(running) + 2
    assert {(await small.get(f"/jobs/{job}"))["phase"] for job in running} == {"done"}


async def submit(fleet: Fleet, marks: Path, name: str) -> str:
    role = {"replicas": 1, "command": WORK, "env": {"MARKS": str(marks)}}
    return await fleet.submit(name=name, roles={"worker": role}, backoff="1s", max_retries=100)


def runs(marks: Path) -> list[str]:
    file = marks / "runs"
    return file.read_text().split() if file.exists() else []
