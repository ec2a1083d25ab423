"""Counts how often the kernel ran out of memory below a control group of version 1.

There the kernel counts a kill only for the group of the process that was killed. For a container
that is a group below the attempt's own, and it is removed with the container.
"""

import os
from contextlib import suppress

from phalanx.agent.spawner.cgroups import ControlGroup
from phalanx.agent.spawner.group_folder import write


class MemoryKills:
    def __init__(self, group: ControlGroup | None) -> None:
        """Begin to count, before the processes of the group are started."""
        self._counter: int | None = None
        folder = None if group is None else group.by_controller.get("memory")
        if folder is None or folder.version == 2:
            return
        counter = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            file = os.open(f"{folder.path}/memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
            try:
                write(folder.path, "cgroup.event_control", f"{counter} {file}")
            finally:
                os.close(file)
        except OSError:  # a kernel without these events
            os.close(counter)
            return
        self._counter = counter

    def count(self) -> int:
        """The kills since the last call; 0 where the group counts them by itself."""
        if self._counter is None:
            return 0
        with suppress(BlockingIOError):
            return os.eventfd_read(self._counter)
        return 0

    def close(self) -> None:
        if self._counter is not None:
            os.close(self._counter)
            self._counter = None
