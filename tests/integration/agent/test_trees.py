"""Tasks that try to outlive their end, with control groups and without them."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.agent.messages import TaskLimits
from phalanx.agent.spawner import cgroups, group_folder, process_tree
from tests.integration.agent.machines import Fleet, Machine, guard_of
from tests.integration.agent.ranks import WORK, Ranks
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.requirements import leave_out
from tests.worker_processes import is_alive

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Sixteen chains of processes: in each, the parent exits as soon as it has forked a child.
_FORKING = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for family in range(16):
    if os.fork() == 0:
        if family % 2:
            os.setsid()
        open(os.environ["MARKS"] + f"/up.{family}", "w").close()
        while True:
            time.sleep(0.002)
            if os.fork():
                os._exit(0)
while True:
    signal.pause()
"""
#: A daemon that has removed its tag; it records every SIGTERM, and exits then with "obey".
_HIDING = """
import os, resource, signal, sys
marks = os.environ["MARKS"]
def record(*_):
    with open(marks + "/terms", "a") as file:
        file.write("term\\n")
    if "obey" in sys.argv:
        os._exit(0)
signal.signal(signal.SIGTERM, record)
none = resource.RLIM_INFINITY
if os.fork():
    sys.exit()
resource.setrlimit(resource.RLIMIT_RSS, (none, none))
os.setsid()
if os.fork():
    sys.exit()
with open(marks + "/hidden.new", "w") as file:
    file.write(str(os.getpid()))
os.rename(marks + "/hidden.new", marks + "/hidden")
while True:
    signal.pause()
"""


@pytest.fixture
def forking(tmp_path: Path) -> str:
    (tmp_path / "forking.py").write_text(_FORKING)
    return f"exec python3 {tmp_path / 'forking.py'}"


@pytest.fixture
def hiding(tmp_path: Path) -> str:
    (tmp_path / "hiding.py").write_text(_HIDING)
    return f"python3 {tmp_path / 'hiding.py'}"


async def there_is(path: Path) -> None:
    async def is_there() -> bool:
        return path.exists()

    await eventually(is_there, PATIENCE_S, lambda: f"no {path}")


def group_of(machine: Machine) -> Path:
    """The control group of a worker, below which each attempt has its own."""
    file = machine.state / "cgroup"
    path = Path(file.read_text().partition("\n")[0]) if file.exists() else None
    if path is None or not path.is_dir():
        leave_out("the worker cannot create control groups here; that needs root or delegation")
    return path


def below(group: Path) -> list[str]:
    return [each.name for each in group.iterdir() if each.is_dir()]


async def test_processes_that_fork_all_the_time_are_killed_with_their_task(
    small: Fleet, tmp_path: Path, forking: str
) -> None:
    [machine] = await small.work(1)
    group = group_of(machine)
    ranks = Ranks(small, tmp_path / "gang", size=1)
    await ranks.submit(forking, grace="1s")
    for family in range(16):
        await there_is(ranks.marks / f"up.{family}")
    assert below(group) == [f"{ranks.job}.0.1"]
    await small.cancel(ranks.job)
    await small.reach(ranks.job, "cancelled")
    await ranks.are_gone()
    assert below(group) == []


async def test_a_process_without_a_tag_gets_sigterm_and_is_killed_with_its_task(
    small: Fleet, tmp_path: Path, hiding: str
) -> None:
    [machine] = await small.work(1)
    group = group_of(machine)
    ranks = Ranks(small, tmp_path / "gang", size=1)
    # Far more than it needs, also on a busy machine: it is not killed before it has its signal.
    await ranks.submit(f"{hiding} obey; {WORK}", grace="10m")
    await there_is(ranks.marks / "hidden")
    await small.cancel(ranks.job)
    await small.reach(ranks.job, "cancelled")
    await ranks.are_gone()
    assert (ranks.marks / "terms").read_text() == "term\n"
    stubborn = Ranks(small, tmp_path / "stubborn", size=1)
    await stubborn.submit(f"{hiding}; {WORK}", grace="1s")
    await there_is(stubborn.marks / "hidden")
    await small.cancel(stubborn.job)
    await small.reach(stubborn.job, "cancelled")
    await stubborn.are_gone()
    assert below(group) == []


async def test_a_process_without_a_tag_does_not_outlive_a_task_that_exits(
    small: Fleet, tmp_path: Path, hiding: str
) -> None:
    [machine] = await small.work(1)
    group_of(machine)
    ranks = Ranks(small, tmp_path / "gang", size=1)
    await ranks.submit(hiding + '; while [ ! -e "$MARKS/hidden" ]; do sleep 0.1; done')
    await small.reach(ranks.job, "done")
    await ranks.are_gone()


@pytest.mark.parametrize("guarded", [True, False], ids=["by its guard", "by the next spawner"])
async def test_processes_of_a_killed_spawner_are_killed_with_its_control_group(
    small: Fleet, tmp_path: Path, hiding: str, guarded: bool
) -> None:
    [machine] = await small.work(1)
    group = group_of(machine)
    ranks = Ranks(small, tmp_path / "gang", size=1)
    await ranks.submit(f"{hiding}; {WORK}", restart="never")
    await there_is(ranks.marks / "hidden")
    await small.reach(ranks.job, "running")
    dying = machine.spawner
    if guarded:
        # Without a link there is no new spawner: only the guard can clean up.
        machine.send(signal.SIGKILL, spawner=False)
        await machine.ended()
    else:
        os.kill(dying, signal.SIGSTOP)
        os.kill(guard_of(dying), signal.SIGKILL)
    os.kill(dying, signal.SIGKILL)
    await ranks.are_gone()

    async def is_removed() -> bool:
        return not group.exists()

    await eventually(is_removed, PATIENCE_S)


async def test_a_worker_that_shuts_down_removes_its_control_group(small: Fleet) -> None:
    [machine] = await small.work(1)
    group = group_of(machine)
    spawner = machine.spawner
    machine.send(signal.SIGTERM, spawner=False)
    assert await machine.ended() == 0

    async def has_exited() -> bool:
        return not is_alive(spawner)

    await eventually(has_exited, PATIENCE_S)
    assert not group.exists()


@pytest.mark.parametrize("taken_away", ["umount -l", "mount -o remount,bind,ro"])
async def test_without_control_groups_the_processes_of_a_task_are_found_by_their_tag(
    small: Fleet, tmp_path: Path, forking: str, hiding: str, taken_away: str
) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.call([unshare, "-m", "true"]):  # noqa: S603
        leave_out("a worker cannot have its own mounts here; that needs root")
    mounts = "$(findmnt -nrt cgroup2,cgroup -o TARGET)"
    each = f'for at in {mounts}; do {taken_away} "$at"; done; exec "$@"'
    machine = Machine(small.folder, "bare", small.server.url)
    small.machines.append(machine)
    await machine.start(before=(unshare, "-m", "sh", "-ec", each, "sh"))
    await small.ready()
    file = machine.state / "cgroup"
    groups = file.read_text().splitlines() if file.exists() else []
    assert not any(Path(group).is_dir() for group in groups)
    ranks = Ranks(small, tmp_path / "gang", size=1)
    await ranks.submit(forking, grace="1s")
    for family in range(16):
        await there_is(ranks.marks / f"up.{family}")
    await small.cancel(ranks.job)
    await small.reach(ranks.job, "cancelled")
    await ranks.are_gone()
    assert not machine.logged("spawner died")
    # A process without its tag cannot be told from others. The log of the spawner names it.
    ranks = Ranks(small, tmp_path / "hidden", size=1)
    await ranks.submit(hiding + '; while [ ! -e "$MARKS/hidden" ]; do sleep 0.1; done')
    await small.reach(ranks.job, "done")
    hidden = int((ranks.marks / "hidden").read_text())
    try:
        log, line = machine.state / "spawner.log", f"process {hidden} is left of a task that has"

        async def is_named() -> bool:
            return log.read_text().count(line) == 1

        await eventually(is_named, PATIENCE_S, log.read_text)
    finally:
        os.kill(hidden, signal.SIGKILL)


# Control groups alone


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[cgroups.ControlGroups]:
    groups = cgroups.ControlGroups(tmp_path / "path")
    yield groups
    groups.close()


@pytest.mark.parametrize("killing", ["cgroup.kill", "cgroup.none"])
async def test_a_control_group_is_killed_also_where_the_kernel_can_only_freeze_it(
    killing: str, groups: cgroups.ControlGroups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_folder, "_KILL", killing)
    group = groups.create(("j-1.0", 1), TaskLimits(memory=1 << 30, cpu=500, processes=100))
    if group is None:
        leave_out("control groups cannot be created here; that needs root or delegation")
    with group.joined():
        first = subprocess.Popen(["/bin/sh", "-c", "sleep 1000 & sleep 1000 & wait"])
    # A task may create groups of its own, which may be empty by then.
    for folder in group.folders:
        Path(folder.path, "own").mkdir()
    assert first.pid in group.pids()
    assert os.getpid() not in group.pids()
    assert not group.remove()
    left = cgroups.leftover_group(tmp_path / "path")
    process_tree.kill_all([process_tree.ProcessTree(process_tree.new_tag(), left)])
    assert first.wait() == -signal.SIGKILL
    assert not any(Path(folder.path).exists() for folder in group.folders)
    assert cgroups.leftover_group(tmp_path / "path") is None
