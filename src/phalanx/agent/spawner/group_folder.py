"""One control group in one hierarchy: a folder whose files add, list and kill processes."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: Missing before Linux 5.14; there the group is frozen and its processes are killed one by one.
_KILL = "cgroup.kill"


class SpawnerGroup:
    """The group that the spawner is in, and returns to after every start of a task."""

    def __init__(self, path: str, version: int) -> None:
        self.path = path
        # The spawner has one thread. Version 1 moves a thread without the synchronization of all
        # CPUs that a move of a process may cost, which takes milliseconds.
        self.members_file = "cgroup.procs" if version == 2 else "tasks"
        self._file: int | None = None

    def enter(self) -> None:
        """Move this process into the group. Raises OSError."""
        if self._file is None:
            self._file = os.open(f"{self.path}/{self.members_file}", os.O_WRONLY | os.O_CLOEXEC)
        os.write(self._file, b"0")


class GroupFolder(NamedTuple):
    path: str
    version: int
    spawner_group: SpawnerGroup

    def join(self) -> None:
        """Move this process into the group. Raises OSError."""
        write(self.path, self.spawner_group.members_file, "0")

    def leave(self) -> None:
        """Move this process back into its own group. Raises OSError."""
        self.spawner_group.enter()

    def child(self, name: str) -> "GroupFolder":
        """Create a group below this one. Raises OSError."""
        path = f"{self.path}/{name}"
        os.mkdir(path)  # noqa: PTH102 - for every task, where a Path takes a third of the time
        return GroupFolder(path, self.version, self.spawner_group)

    def kill(self) -> None:
        """Kill every process in the group, or on old kernels freeze it so that none can fork."""
        with suppress(OSError):
            if Path(self.path, _KILL).exists():
                write(self.path, _KILL, "1")
            elif self.version == 2:
                write(self.path, "cgroup.freeze", "1")

    def pids(self) -> set[int]:
        """The living processes in the group and in groups that they have created below it."""
        pids: set[int] = set()
        for folder, _, _ in os.walk(self.path):
            with suppress(OSError):
                pids.update(map(int, Path(folder, "cgroup.procs").read_bytes().split()))
        return pids - {0}  # 0 stands for processes of another pid namespace

    def remove(self) -> bool:
        """Remove the group; False if a process still lives in it."""
        try:
            os.rmdir(self.path)  # noqa: PTH106 - as in `child`
        except OSError:
            if self._is_populated():
                return False
            for folder, _, _ in os.walk(self.path, topdown=False):
                with suppress(OSError):
                    Path(folder).rmdir()
        return True

    def _is_populated(self) -> bool:
        if self.version == 1:
            return bool(self.pids())
        try:
            return b"populated 1" in Path(self.path, "cgroup.events").read_bytes()
        except OSError:
            return False


def write(group: str, name: str, value: str) -> None:
    """Write a file of a group in one call. Raises OSError."""
    file = os.open(f"{group}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, value.encode())
    finally:
        os.close(file)
