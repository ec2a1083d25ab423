"""Tasks that do what they can to outlive their end, with control groups and without them."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.agent.spawner import cgroups, process_tree
from tests.integration.agent.machines import Fleet, Machine, guard_of, is_alive
from tests.integration.agent.ranks import WORK, Ranks
from tests.integration.server.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Sixteen families, in each of which the parent dies as soon as it has a child.
_BREEDING = """
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
#: A process that has taken its mark off and belongs to nobody; it says what it hears.
_HIDING = """
import os, resource, signal, sys
marks = os.environ["MARKS"]
def told(*_):
    with open(marks + "/told", "a") as file:
        file.write("told\\n")
signal.signal(signal.SIGTERM, told)
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
def breeding(tmp_path: Path) -> str:
    (tmp_path / "breeding.py").write_text(_BREEDING)
    return f"exec python3 {tmp_path / 'breeding.py'}"


@pytest.fixture
def hiding(tmp_path: Path) -> str:
    (tmp_path / "hiding.py").write_text(_HIDING)
    return f"python3 {tmp_path / 'hiding.py'}; "


async def there_is(path: Path) -> None:
    async def is_there() -> bool:
        return path.exists()

    await eventually(is_there, 60, lambda: f"no {path}")


def group_of(machine: Machine) -> Path:
    """Where the groups of its attempts are."""
    note = machine.state / "cgroup"
    path = Path(note.read_text()) if note.exists() else None
    if path is None or not path.is_dir():
        pytest.skip("its worker may make no control groups here; that needs root or delegation")
    return path


def below(group: Path) -> list[str]:
    return [each.name for each in group.iterdir() if each.is_dir()]


async def test_families_that_fork_faster_than_one_can_look_are_ended_with_their_task(
    small: Fleet, tmp_path: Path, breeding: str
) -> None:
    [machine] = await small.work(1)
    group = group_of(machine)
    ranks = Ranks(small, tmp_path / "gang", size=1)
    await ranks.submit(breeding, grace="1s")
    for family in range(16):
        await there_is(ranks.marks / f"up.{family}")
    assert below(group) == [f"{ranks.job}.0.1"]
    await small.cancel(ranks.job)
    await small.reach(ranks.job, "cancelled")
    await ranks.are_gone()
    assert below(group) == []


async def test_a_process_without_a_mark_is_told_to_stop_and_ended_with_its_task(
    small: Fleet, tmp_path: Path, hiding: str
) -> None:
    [machine] = await small.work(1)
    group = group_of(machine)
    ranks = Ranks(small, tmp_path / "gang", size=1)
    await ranks.submit(hiding + WORK, grace="2s")
    await there_is(ranks.marks / "hidden")
    await small.cancel(ranks.job)
    await small.reach(ranks.job, "cancelled")
    await ranks.are_gone()
    assert (ranks.marks / "told").read_text() == "told\n"
    assert below(group) == []


async def test_a_process_without_a_mark_does_not_outlive_a_task_that_ends_by_itself(
    small: Fleet, tmp_path: Path, hiding: str
) -> None:
    [machine] = await small.work(1)
    group_of(machine)
    ranks = Ranks(small, tmp_path / "gang", size=1)
    await ranks.submit(hiding + 'while [ ! -e "$MARKS/hidden" ]; do sleep 0.1; done')
    await small.reach(ranks.job, "done")
    await ranks.are_gone()


@pytest.mark.parametrize("guarded", [True, False], ids=["by its guard", "by the next spawner"])
async def test_what_a_dead_spawner_has_left_is_ended_with_its_group(
    small: Fleet, tmp_path: Path, hiding: str, guarded: bool
) -> None:
    [machine] = await small.work(1)
    group = group_of(machine)
    ranks = Ranks(small, tmp_path / "gang", size=1)
    await ranks.submit(hiding + WORK, restart="never")
    await there_is(ranks.marks / "hidden")
    await small.reach(ranks.job, "running")
    dying = machine.spawner
    if guarded:
        # Nobody is there to begin another spawner.
        machine.send(signal.SIGKILL, spawner=False)
        await machine.ended()
    else:
        os.kill(dying, signal.SIGSTOP)
        os.kill(guard_of(dying), signal.SIGKILL)
    os.kill(dying, signal.SIGKILL)
    await ranks.are_gone()

    async def is_removed() -> bool:
        return not group.exists()

    await eventually(is_removed, 30)


async def test_a_worker_that_leaves_takes_its_group_along(small: Fleet) -> None:
    [machine] = await small.work(1)
    group = group_of(machine)
    spawner = machine.spawner
    machine.send(signal.SIGTERM, spawner=False)
    assert await machine.ended() == 0

    async def has_left() -> bool:
        return not is_alive(spawner)

    await eventually(has_left, 30)
    assert not group.exists()


@pytest.mark.parametrize("taken_away", ["umount -l", "mount -o remount,bind,ro"])
async def test_where_groups_are_not_allowed_marks_do(
    small: Fleet, tmp_path: Path, breeding: str, taken_away: str
) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.call([unshare, "-m", "true"]):  # noqa: S603
        pytest.skip("mounts of its own cannot be given to a worker here; that needs root")
    each = f'for at in $(findmnt -nrt cgroup2 -o TARGET); do {taken_away} "$at"; done; exec "$@"'
    machine = Machine(small.folder, "bare", small.server.url)
    small.machines.append(machine)
    await machine.start(before=(unshare, "-m", "sh", "-ec", each, "sh"))
    await small.ready()
    note = machine.state / "cgroup"
    assert not (note.exists() and Path(note.read_text()).exists())
    ranks = Ranks(small, tmp_path / "gang", size=1)
    await ranks.submit(breeding, grace="1s")
    for family in range(16):
        await there_is(ranks.marks / f"up.{family}")
    await small.cancel(ranks.job)
    await small.reach(ranks.job, "cancelled")
    await ranks.are_gone()
    assert not machine.seen("spawner died")


# Groups by themselves


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[cgroups.ControlGroups]:
    made = cgroups.ControlGroups(tmp_path / "path")
    yield made
    made.close()


@pytest.mark.parametrize("killing", ["cgroup.kill", "cgroup.none"])
async def test_a_group_ends_also_where_the_kernel_can_only_freeze_it(
    killing: str, groups: cgroups.ControlGroups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "_KILL", killing)
    group = groups.create(("j-1.0", 1))
    if group is None:
        pytest.skip("no control groups can be made here; that needs root or delegation")
    with group.joined():
        first = subprocess.Popen(["/bin/sh", "-c", "sleep 1000 & sleep 1000 & wait"])
    # A task may make groups of its own, and they may be empty by then.
    (group.path / "own").mkdir()
    assert first.pid in group.pids()
    assert os.getpid() not in group.pids()
    assert not group.remove()
    process_tree.kill_all([], cgroups.leftover_group(tmp_path / "path"))
    assert first.wait() == -signal.SIGKILL
    assert not group.path.exists()
    assert cgroups.leftover_group(tmp_path / "path") is None
