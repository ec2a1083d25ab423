"""Workers on a server that requires tokens: they join, renew, and stop when they are revoked."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.agent.machines import Fleet, Machine
from tests.integration.server.processes import phalanx, sqlite_at
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.worker_processes import is_alive

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """A server that requires tokens and has credentials renewed all the time."""
    folder = tmp_path_factory.mktemp("guarded")
    fleet = Fleet(folder)
    store = f"--store={sqlite_at(folder)}"
    for role in ("join", "admin"):
        _, secret, _ = await phalanx("token", "create", role, f"--role={role}", store)
        (folder / role).write_text(secret)
    fleet.client.headers["Authorization"] = f"Bearer {(folder / 'admin').read_text().strip()}"
    await fleet.serve("--loopback-open=false", "--renew-credentials=1s")
    yield fleet
    await fleet.close()


async def revoke(fleet: Fleet, name: str) -> None:
    answer = await fleet.client.delete(f"{fleet.server.url}/tokens/{name}")
    assert answer.status_code == 204, answer.text


def credential(machine: Machine) -> Path:
    return machine.state / "credential"


async def test_a_worker_joins_once_and_renews_its_credential_while_its_task_runs(
    guarded: Fleet,
) -> None:
    [machine] = await guarded.work(1, f"--token-file={guarded.folder / 'join'}", prefix="once")
    assert credential(machine).stat().st_mode & 0o777 == 0o600
    stop = guarded.folder / "stop"
    job = await guarded.submit(command=f"while [ ! -e {stop} ]; do sleep 0.1; done")
    await guarded.reach(job, "running")

    async def is_renewed_twice() -> bool:
        return len(machine.logged("renewed the credential")) >= renewed + 2

    renewed = 0
    await eventually(is_renewed_twice, PATIENCE_S, machine.log)
    # Without the join token, on the credential alone; the task is taken over.
    machine.send(signal.SIGKILL, spawner=False)
    await machine.ended()
    renewed = len(machine.logged("renewed the credential"))
    await machine.start()
    await eventually(is_renewed_twice, PATIENCE_S, machine.log)
    stop.touch()
    await guarded.reach(job, "done")
    assert not machine.logged("refused by server")
    machine.send(signal.SIGTERM, spawner=False)
    assert await machine.ended() == 0


async def test_a_revoked_worker_kills_its_tasks_and_exits(guarded: Fleet, tmp_path: Path) -> None:
    join = f"--token-file={guarded.folder / 'join'}"
    [machine] = await guarded.work(1, join, prefix="revoked")
    pid = tmp_path / "pid"
    job = await guarded.submit(
        roles={"r": {"command": f"echo $$ >{pid}; exec sleep 1000"}}, max_retries=3
    )
    await guarded.reach(job, "running")

    async def has_started() -> bool:
        return pid.exists() and bool(pid.read_text().strip())

    await eventually(has_started, PATIENCE_S, machine.log)
    await revoke(guarded, f"worker:{machine.name}")
    assert await machine.ended() == 1
    assert not is_alive(int(pid.read_text()))
    [line] = machine.logged("credential revoked")
    assert "remove the file `credential`" in line["error"]
    # It stays out, join token or not, until an operator removes the credential.
    await machine.start(join)
    assert await machine.ended() == 1
    credential(machine).unlink()
    await machine.start(join)
    await guarded.ready()
    await guarded.cancel(job)
    await guarded.reach(job, "cancelled")
    machine.send(signal.SIGTERM, spawner=False)
    assert await machine.ended() == 0


async def test_a_second_machine_cannot_take_a_name_that_has_joined(guarded: Fleet) -> None:
    join = f"--token-file={guarded.folder / 'join'}"
    [machine] = await guarded.work(1, join, prefix="name")
    twin = Machine(guarded.folder / "elsewhere", machine.name, guarded.server.url)
    guarded.machines.append(twin)
    await twin.start(join)

    async def is_refused() -> bool:
        return bool(twin.logged("refused by server"))

    await eventually(is_refused, PATIENCE_S, twin.log)
    refusal = twin.logged("refused by server")[0]["error"]
    assert f"phalanx token revoke worker:{machine.name}" in refusal
    assert not machine.logged("worker superseded")
    machine.send(signal.SIGTERM, spawner=False)
    assert await machine.ended() == 0
    await revoke(guarded, f"worker:{machine.name}")

    async def has_joined() -> bool:
        return bool(twin.logged("registered"))

    await eventually(has_joined, PATIENCE_S, twin.log)
