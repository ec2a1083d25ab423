"""One control group in one hierarchy: a folder whose files add, list and kill processes."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: Missing before Linux 5.14; there the group is frozen and its processes are killed one by one.
_KILL = "cgroup.kill"


class GroupFolder(NamedTuple):
    path: Path
    version: int
    spawner_group: Path  #: the group that the spawner is in

    def join(self) -> None:
        """Move this process into the group. Raises OSError."""
        self._move_to(self.path)

    def leave(self) -> None:
        """Move this process back into its own group. Raises OSError."""
        self._move_to(self.spawner_group)

    def _move_to(self, group: Path) -> None:
        # The spawner has one thread. Version 1 moves a thread without the synchronization of all
        # CPUs that a move of a process may cost, which takes milliseconds.
        write(group, "cgroup.procs" if self.version == 2 else "tasks", "0")

    def child(self, name: str) -> "GroupFolder":
        """Create a group below this one. Raises OSError."""
        path = self.path / name
        path.mkdir()
        return GroupFolder(path, self.version, self.spawner_group)

    def kill(self) -> None:
        """Kill every process in the group, or on old kernels freeze it so that none can fork."""
        with suppress(OSError):
            if (self.path / _KILL).exists():
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
            self.path.rmdir()
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
            return b"populated 1" in (self.path / "cgroup.events").read_bytes()
        except OSError:
            return False


def write(group: Path, name: str, value: str) -> None:
    """Write a file of a group in one call. Raises OSError."""
    file = os.open(f"{group}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, value.encode())
    finally:
        os.close(file)
