"""Limits of memory, CPU and processes, with real control groups."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.agent.machines import Fleet
from tests.requirements import leave_out

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Takes memory until it is killed, at the latest at 1 GiB.
_GREEDY = "import time; taken = [bytearray(8 << 20) for _ in range(128)]; time.sleep(600)"
#: Starts processes until the kernel refuses, at the latest after 500.
_FORKING = """
import os, sys, time
for _ in range(500):
    try:
        child = os.fork()
    except BlockingIOError:
        sys.exit(3)
    if child == 0:
        time.sleep(600)
"""
#: Prints the files of its own groups.
_SHOW = """
limits="memory.limit_in_bytes memory.max cpu.shares cpu.weight cpu.cfs_quota_us cpu.max pids.max"
for file in $limits; do
  for group in $(find /sys/fs/cgroup -path "*/$PHALANX_TASK.$PHALANX_ATTEMPT/$file"); do
    echo "$file $(cat "$group")" >>"$SHOWN"
  done
done
"""


async def worker_with_limits(fleet: Fleet, *flags: str) -> dict[str, Any]:
    await fleet.work(1, *flags)
    [worker] = await fleet.get("/workers")
    if worker.get("limits") != ["memory", "cpu", "processes"]:
        leave_out("limits need root, or a delegated control group with all controllers")
    return dict(worker)


async def test_a_task_that_exceeds_its_memory_is_killed_and_the_job_says_so(small: Fleet) -> None:
    await worker_with_limits(small)
    role = {"command": ["python3", "-c", _GREEDY], "resources": {"memory": "64Mi"}}
    job = await small.submit(name="greedy", restart="never", roles={"worker": role})
    failed = await small.reach(job, "failed")
    assert failed["cause"] == (
        "task 0 was killed for memory on w-0: used 64.0 MiB, asked for 64.0 MiB"
    )
    assert failed["tasks"][0]["exit"] == {"signal": 9, "out_of_memory": True}
    [event] = [each for each in await small.events(job) if each["kind"] == "TaskFailed"]
    assert event["how"] == "out-of-memory"
    [stop] = [each for each in await small.events(job) if each["kind"] == "GangStopping"]
    assert stop["cause"] == "out-of-memory"


async def test_a_fork_bomb_is_held_to_the_limit_and_the_worker_serves_others(small: Fleet) -> None:
    await worker_with_limits(small, "--task-processes=50")
    role = {"command": ["python3", "-c", _FORKING]}
    job = await small.submit(name="bomb", restart="never", roles={"worker": role})
    failed = await small.reach(job, "failed")
    assert failed["cause"] == (
        "task 0 exited with code 3 on w-0: reached its limit of 50 processes and threads"
    )
    await small.reach(await small.submit(command="true"), "done")


async def test_the_limits_of_a_task_follow_from_what_it_asks_for(
    small: Fleet, tmp_path: Path
) -> None:
    await worker_with_limits(small, "--cpu-quota")

    async def shown(**resources: object) -> set[str]:
        path = tmp_path / f"shown-{len(resources)}"
        role = {"command": _SHOW, "env": {"SHOWN": str(path)}, "resources": resources}
        await small.reach(await small.submit(roles={"worker": role}), "done")
        return set(path.read_text().splitlines())

    limited = await shown(cpu=1.5, memory="256Mi")
    assert limited & {"memory.limit_in_bytes 268435456", "memory.max 268435456"}
    assert limited & {"cpu.shares 1536", "cpu.weight 150"}
    assert limited & {"cpu.cfs_quota_us 150000", "cpu.max 150000 100000"}
    unlimited = await shown()
    assert not any(line.startswith("memory.limit") for line in unlimited)
    assert unlimited & {"cpu.shares 2", "cpu.weight 1"}
    assert unlimited & {"cpu.cfs_quota_us -1", "cpu.max max 100000"}
    assert "pids.max 4096" in unlimited
