"""A worker of root that runs the tasks of each namespace as a user of its own."""

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.agent.machines import Fleet
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.requirements import require_root

pytestmark = pytest.mark.asyncio(loop_scope="module")

_UIDS = (200_000_000, 299_999_999)
_VICTIM = """
echo '{"step": 7}' >>"$PHALANX_PROGRESS"
trap 'echo saved >"$PHALANX_CHECKPOINT_OUT"; exit 0' TERM
echo "$$ $(id -u) $HOME $USER $(pwd)" >"$SHARED/victim.new"
mv "$SHARED/victim.new" "$SHARED/victim"
while :; do sleep 0.1; done
"""
_ATTACKER = """
exec >"$SHARED/attack" 2>&1
read victim uid home rest <"$SHARED/victim"
cat "/proc/$victim/environ" && echo "read the environment"
kill -9 "$victim" && echo "killed the victim"
cat "$home/progress" && echo "read the progress"
ls "$STATE" && echo "listed the state directory"
echo >/dev/stdout && echo "opened its output"
grep -E "^(NoNewPrivs|CapEff|CapPrm|Groups|Uid):" /proc/self/status
"""

#: Tries to kill the spawner while others start, until they are done, for at most 20 s.
_KILLER = """
import os, pathlib, time
shared = pathlib.Path(os.environ["SHARED"])
(shared / "killing").touch()
until = time.monotonic() + 20
while time.monotonic() < until and not (shared / "finish").exists():
    for _ in range(1000):
        try:
            os.kill(os.getppid(), 9)
        except PermissionError:
            pass
"""


@pytest_asyncio.fixture(loop_scope="module")
async def shared(tmp_path: Path) -> AsyncIterator[Path]:
    """A folder that every user can enter and write to."""
    folder = Path(tempfile.mkdtemp(prefix="phalanx-users-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest_asyncio.fixture(loop_scope="module")
async def mapped(shared: Path) -> AsyncIterator[Fleet]:
    require_root("only root can run tasks as other users")
    fleet = Fleet(shared)
    await fleet.serve("--run-as-users=default=nobody")
    await fleet.work(1, f"--task-uids={_UIDS[0]}-{_UIDS[1]}", "--resources=gpu=2,cpu=2")
    yield fleet
    await fleet.close()


def a_job(command: str | list[str], shared: Path, **fields: Any) -> dict[str, Any]:
    env = {"SHARED": str(shared), "STATE": str(shared / "w-0"), "SECRET": "hidden"}
    return {"roles": {"worker": {"command": command, "env": env}}, "restart": "never"} | fields


async def test_a_task_cannot_reach_the_tasks_of_another_namespace(
    mapped: Fleet, shared: Path
) -> None:
    victim = await mapped.submit(**a_job(_VICTIM, shared, namespace="a", checkpoint="each"))

    async def runs() -> bool:
        return (shared / "victim").exists()

    await eventually(runs, PATIENCE_S, mapped.machines[0].log)
    pid, uid, home, user, folder = (shared / "victim").read_text().split()
    assert _UIDS[0] <= int(uid) <= _UIDS[1]
    assert user == uid
    assert home == folder == str(shared / "w-0" / "attempts" / f"{victim}.0.1")
    attacker = await mapped.submit(**a_job(_ATTACKER, shared, namespace="b"))
    await mapped.reach(attacker, "done", "failed")
    seen = (shared / "attack").read_text()
    for harm in ("read the environment", "killed the victim", "read the progress", "listed the"):
        assert harm not in seen, seen
    assert "opened its output" in seen
    status = dict(line.split(":\t") for line in seen.splitlines() if ":\t" in line)
    assert status["NoNewPrivs"] == "1"
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
    assert len(set(status["Uid"].split())) == 1
    assert status["Uid"].split()[0] not in ("0", uid)
    assert "0" not in status["Groups"].split()
    assert Path(f"/proc/{pid}").exists()
    requeued = await mapped.client.post(f"{mapped.server.url}/jobs/{victim}/requeue")
    assert requeued.status_code < 300, requeued.text

    async def is_saved() -> bool:
        return "TaskCheckpointSaved" in [e["kind"] for e in await mapped.events(victim)]

    await eventually(is_saved, PATIENCE_S)


async def test_tasks_start_after_the_folder_of_the_attempts_was_removed(
    mapped: Fleet, shared: Path
) -> None:
    shutil.rmtree(shared / "w-0" / "attempts")
    job = await mapped.submit(**a_job('pwd >"$SHARED/folder"', shared, namespace="a"))
    await mapped.reach(job, "done")
    assert (shared / "folder").read_text().strip().endswith(f"/attempts/{job}.0.1")


async def test_a_job_chooses_its_user_within_what_the_operator_permits(
    mapped: Fleet, shared: Path
) -> None:
    job = a_job('id -un >"$SHARED/name"; echo "$HOME" >>"$SHARED/name"', shared)
    await mapped.reach(await mapped.submit(**job, run_as_user="nobody"), "done")
    assert (shared / "name").read_text().split()[0] == "nobody"
    for refused in (
        job | {"run_as_user": "root"},
        job | {"run_as_user": "nobody", "namespace": "a"},
    ):
        answer = await mapped.client.post(f"{mapped.server.url}/jobs", json=refused)
        assert answer.status_code == 400
        assert "run_as_users" in answer.text


async def test_a_task_cannot_kill_the_spawner_while_other_tasks_of_its_user_start(
    mapped: Fleet, shared: Path
) -> None:
    spawner = mapped.machines[0].spawner
    (shared / "killer.py").write_text(_KILLER)
    program = ["python3", str(shared / "killer.py")]  # without a shell, the spawner is its parent
    killer = await mapped.submit(**a_job(program, shared, namespace="a"))

    async def kills() -> bool:
        return (shared / "killing").exists()

    await eventually(kills, PATIENCE_S, mapped.machines[0].log)
    others = [await mapped.submit(**a_job("true", shared, namespace="a")) for _ in range(10)]
    for other in others:
        await mapped.reach(other, "done")
    (shared / "finish").touch()
    await mapped.reach(killer, "done")
    assert mapped.machines[0].spawner == spawner
