"""The limits of a task, as files of its control groups, and what the kernel says of their use."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from phalanx.agent.messages import TaskLimits
from phalanx.agent.spawner.group_folder import GroupFolder, write
from phalanx.core.model import Limit

#: By controller: the limit that is set with it.
LIMITS = {"memory": Limit.MEMORY, "cpu": Limit.CPU, "pids": Limit.PROCESSES}

#: The spawner is in the group while it starts the program, and must not be killed with it.
_LEAST_MEMORY_BYTES = 16 * 1024**2
_PERIOD_US = 100_000
#: A smaller share of a period than this makes a program unusable.
_LEAST_QUOTA_US = 10_000
#: The weight of one CPU, and the weights that the kernel accepts, by version.
_CPU_WEIGHTS = {1: ("cpu.shares", 1024, 2, 262_144), 2: ("cpu.weight", 100, 1, 10_000)}


class LimitsReached(NamedTuple):
    """How often the kernel enforced the limits of a group."""

    memory_kills: int = 0  #: processes that were killed because memory was short
    memory_peak_bytes: int = 0  #: the most memory that the group has used
    refused_processes: int = 0  #: processes and threads that could not be started


def limit_before_start(groups: Mapping[str, GroupFolder], limits: TaskLimits) -> None:
    """Set the limits that the program must never exceed. Raises OSError."""
    memory, processes = groups.get("memory"), groups.get("pids")
    if memory is not None and limits.memory is not None:
        _limit_memory(memory, max(limits.memory, _LEAST_MEMORY_BYTES))
    if processes is not None and limits.processes is not None:
        write(processes.path, "pids.max", str(limits.processes))


def _limit_memory(group: GroupFolder, size_bytes: int) -> None:
    if group.version == 2:
        write(group.path, "memory.max", str(size_bytes))
        optional = {"memory.swap.max": "0", "memory.oom.group": "1"}
    else:
        write(group.path, "memory.limit_in_bytes", str(size_bytes))
        optional = {"memory.memsw.limit_in_bytes": str(size_bytes), "memory.swappiness": "0"}
    for name, value in optional.items():
        with suppress(OSError):  # the kernel was built or started without it
            write(group.path, name, value)


def limit_after_start(groups: Mapping[str, GroupFolder], limits: TaskLimits) -> None:
    """Set the share of the CPUs. Earlier it would slow down the spawner. Raises OSError."""
    group = groups.get("cpu")
    if group is None:
        return
    set_cpu_weight(group, limits.cpu or 0)
    if limits.cpu_quota and limits.cpu:
        quota_us = max(limits.cpu * _PERIOD_US // 1000, _LEAST_QUOTA_US)
        if group.version == 2:
            write(group.path, "cpu.max", f"{quota_us} {_PERIOD_US}")
        else:
            write(group.path, "cpu.cfs_period_us", str(_PERIOD_US))
            write(group.path, "cpu.cfs_quota_us", str(quota_us))


def set_cpu_weight(group: GroupFolder, cpu: int) -> None:
    """Weigh a group by a number of CPUs, in thousandths. Raises OSError."""
    name, of_one, least, most = _CPU_WEIGHTS[group.version]
    weight = min(max(cpu * of_one // 1000, least), most)
    if weight != of_one:  # which the kernel gives to every group
        write(group.path, name, str(weight))


def limits_reached(groups: Mapping[str, GroupFolder]) -> LimitsReached:
    """Which limits were reached since the groups were created."""
    memory, processes = groups.get("memory"), groups.get("pids")
    kills = peak_bytes = refused = 0
    if memory is not None:
        is_v2 = memory.version == 2
        kills = _count(memory, "memory.events" if is_v2 else "memory.oom_control", "oom_kill")
        peak_bytes = _number(memory, "memory.peak" if is_v2 else "memory.max_usage_in_bytes")
    if processes is not None:
        refused = _count(processes, "pids.events", "max")
    return LimitsReached(kills, peak_bytes, refused)


def _count(group: GroupFolder, name: str, key: str) -> int:
    with suppress(OSError):
        for line in Path(group.path, name).read_text().splitlines():
            if line.startswith(f"{key} "):
                return int(line.split(" ")[1])
    return 0


def _number(group: GroupFolder, name: str) -> int:
    with suppress(OSError, ValueError):
        return int(Path(group.path, name).read_text())
    return 0
