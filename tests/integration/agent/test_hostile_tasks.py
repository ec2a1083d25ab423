"""Tasks that try to bring their worker down: it serves other jobs, and the events say why."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.agent.hostile_tasks import HOSTILE_TASKS
from tests.integration.agent.machines import Fleet, Machine
from tests.integration.server.processes import phalanx
from tests.integration.server.waiting import PATIENCE_S, eventually

TO_STATE_DIR = 'cd "$(dirname "$PHALANX_PROGRESS")/../.."'
_FOLDERS = ("attempts", "output", "trash")
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """One worker, which all tests of this module share: none may bring it down."""
    fleet = Fleet(tmp_path_factory.mktemp("hostile"))
    await fleet.serve("--checkpoint-limit=1Mi")
    await fleet.work(1)
    yield fleet
    await fleet.close()


@pytest.fixture
def machine(fleet: Fleet) -> Machine:
    return fleet.machines[0]


async def problems(fleet: Fleet, job: str) -> str:
    """What the events of a job say about its files."""
    events = await fleet.events(job)
    return "\n".join(each["message"] for each in events if each["kind"] == "TaskProblemReported")


def kept_output_bytes(machine: Machine) -> int:
    size_bytes = 0
    for file in (machine.state / "output").glob("*/*"):
        with suppress(FileNotFoundError):  # it was the oldest, and has been removed meanwhile
            size_bytes += file.stat().st_size
    return size_bytes


async def submit(fleet: Fleet, name: str, command: str, marks: Path) -> str:
    role = {"replicas": 1, "command": command, "env": {"MARKS": str(marks)}}
    return await fleet.submit(name=name.replace(" ", "-"), roles={"worker": role}, grace="1s")


async def serves(fleet: Fleet, machine: Machine) -> None:
    """Fail unless the worker runs another job, has had no error, and keeps nothing of its tasks."""
    await fleet.reach(await fleet.submit(command="true"), "done")
    assert machine.is_up
    assert not machine.logged("error with a task"), machine.log()
    assert not machine.logged("spawner died"), machine.log()
    assert "Traceback" not in (machine.state / "spawner.log").read_text()

    async def is_clean() -> bool:
        # A folder that a task has removed is there again when the worker needs it.
        return not any(any((machine.state / name).glob("*")) for name in _FOLDERS)

    await eventually(is_clean, PATIENCE_S, machine.log)


async def test_what_tasks_leave_is_said_in_events_and_does_not_disturb_their_worker(
    fleet: Fleet, machine: Machine, tmp_path: Path
) -> None:
    is_root = os.geteuid() == 0
    hostile = {name: each for name, each in HOSTILE_TASKS.items() if is_root or not each.needs_root}
    jobs = {
        name: await submit(fleet, name, task.script, tmp_path) for name, task in hostile.items()
    }

    async def are_up() -> bool:
        return all((tmp_path / job).exists() for job in jobs.values())

    def missing() -> str:
        return str([name for name, job in jobs.items() if not (tmp_path / job).exists()])

    await eventually(are_up, 120, missing)
    assert 0 < kept_output_bytes(machine) <= 128 * 1024**2, "output without a newline is bounded"
    await fleet.reach(await fleet.submit(command="true"), "done")
    link, spawner = machine.link, machine.spawner
    await asyncio.gather(*map(fleet.cancel, jobs.values()))
    for name, job in jobs.items():
        await fleet.reach(job, "cancelled")
        reported = await problems(fleet, job)
        expected = hostile[name].problem
        assert (expected in reported) if expected else not reported, f"{name}: {reported}"
    await serves(fleet, machine)
    assert (machine.link, machine.spawner) == (link, spawner)


async def test_a_job_that_made_a_directory_of_its_files_is_done_and_says_so(
    fleet: Fleet, machine: Machine
) -> None:
    job = await fleet.submit(command='mkdir "$PHALANX_CHECKPOINT_OUT" "$PHALANX_PROGRESS"')
    await fleet.reach(job, "done")
    expected = "checkpoint not saved: it is a directory; write a file to PHALANX_CHECKPOINT_OUT"
    for command in ("events", "job"):
        status, out, err = await phalanx(command, job, PHALANX_SERVER=fleet.server.url)
        assert status == 0, err
        assert expected in " ".join(out.split())
    await serves(fleet, machine)


async def test_a_task_that_removes_the_folders_of_its_worker_does_not_end_it(
    fleet: Fleet, machine: Machine
) -> None:
    for wreck in ("rm -r attempts output trash", "rm -r attempts; ln -s /etc attempts"):
        job = await fleet.submit(command=f"{TO_STATE_DIR}; {wreck}; echo 1")
        await fleet.reach(job, "done")
        await serves(fleet, machine)


async def test_a_worker_whose_files_were_replaced_starts_again(
    fleet: Fleet, machine: Machine
) -> None:
    names = "journal journal.new cgroup cluster-id spawner.sock spawner.log attempts"
    folders = " ".join(f"{name}/x" for name in names.split()[:-1])
    command = f"{TO_STATE_DIR}; rm -rf {names}; mkdir -p {folders}; ln -s /etc attempts"
    await fleet.reach(await fleet.submit(command=command), "done")
    for target in (signal.SIGKILL, signal.SIGTERM):
        machine.send(target)
        await machine.ended()
        await machine.start()
        await fleet.ready()
        await fleet.reach(await fleet.submit(command="true"), "done")


async def test_a_task_that_kills_the_spawner_fails_and_the_worker_continues(
    fleet: Fleet, machine: Machine
) -> None:
    role = {"replicas": 1, "command": "kill -9 $PPID; sleep 1000"}
    job = await fleet.submit(name="killer", roles={"worker": role}, max_retries=1)
    ended = await fleet.reach(job, "failed")
    assert ended["cause"] == "task 0 vanished from w-0"
    await fleet.ready()
    await fleet.reach(await fleet.submit(command="true"), "done")
    assert machine.is_up
