"""Control groups (version 2): one for each attempt, where the kernel allows it.

A process cannot leave its group, and the kernel kills a group as a whole. Where the worker may not
create groups, there are none, and the processes of an attempt are found by their tag alone.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from uuid import uuid4

from phalanx.agent.messages import AttemptKey

_PREFIX = "phalanx-"
#: Missing before Linux 5.14; there the group is frozen and its processes are killed one by one.
_KILL = "cgroup.kill"


class ControlGroup(NamedTuple):
    path: Path
    spawner_group: Path  #: the group that the spawner is in

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Processes that are started in the block are members of the group from their start."""
        try:
            _write(self.path, "cgroup.procs", b"0")
        except OSError:
            yield  # the processes can still be found by their tag
            return
        try:
            yield
        finally:
            try:
                _write(self.spawner_group, "cgroup.procs", b"0")
            except OSError as error:
                # Killing the attempt would kill the spawner, so it must not continue.
                why = f"the spawner cannot return to its control group {self.spawner_group}"
                raise RuntimeError(f"{why}: {error.strerror}") from error

    def kill(self) -> None:
        """Kill every process in the group, or on old kernels freeze it so that none can fork."""
        with suppress(OSError):
            if (self.path / _KILL).exists():
                _write(self.path, _KILL, b"1")
            else:
                _write(self.path, "cgroup.freeze", b"1")

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
        try:
            return b"populated 1" in (self.path / "cgroup.events").read_bytes()
        except OSError:
            return False


class ControlGroups:
    """The groups of a worker's attempts, below one group for the worker.

    The path of the worker's group is written to a file, so that a later spawner can clean it up.
    """

    def __init__(self, path_file: Path, proc: Path = Path("/proc/self")) -> None:
        self._path_file = path_file
        self._worker_group = self._create_worker_group(proc)

    def _create_worker_group(self, proc: Path) -> ControlGroup | None:
        spawner_group = current_group(proc)
        if spawner_group is None:
            return None
        group = ControlGroup(spawner_group / f"{_PREFIX}{uuid4().hex[:12]}", spawner_group)
        try:
            self._path_file.write_text(str(group.path))
            group.path.mkdir()
            # The right to create a group does not include the right to join it, or to leave it.
            for path in (group.path, spawner_group):
                _write(path, "cgroup.procs", b"0")
        except OSError:
            group.remove()
            return None
        return group

    def create(self, key: AttemptKey) -> ControlGroup | None:
        """A new group for an attempt, or None where the worker may not create groups."""
        if self._worker_group is None:
            return None
        path = self._worker_group.path / f"{key[0]}.{key[1]}"
        try:
            path.mkdir()
        except OSError:
            return None
        return ControlGroup(path, self._worker_group.spawner_group)

    def close(self) -> None:
        """Remove the worker's group, after all attempts have ended."""
        if self._worker_group is not None:
            self._worker_group.remove()


def leftover_group(path_file: Path) -> ControlGroup | None:
    """The worker group that a dead spawner has left, if it still exists and may be killed."""
    path = Path(path_file.read_text()) if path_file.exists() else None
    if path is None or not path.name.startswith(_PREFIX):
        return None
    return ControlGroup(path, path.parent) if os.access(path / "cgroup.procs", os.W_OK) else None


def current_group(proc: Path) -> Path | None:
    """The folder of this process's group, wherever version 2 is mounted; None if it is not."""
    try:
        groups, mounts = ((proc / name).read_text() for name in ("cgroup", "mountinfo"))
    except OSError:
        return None
    version_2 = re.search(r"^0::(/.*)$", groups, re.MULTILINE)
    own = PurePosixPath(version_2[1]) if version_2 is not None else None
    if own is None or ".." in own.parts:
        return None
    for line in mounts.splitlines():
        mount, _, kind = line.partition(" - ")
        root, point = mount.split(" ")[3:5]
        if kind.startswith("cgroup2 ") and own.is_relative_to(root):
            # Spaces in paths are escaped as octal numbers.
            point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point)
            return Path(point, own.relative_to(root))
    return None


def _write(group: Path, name: str, data: bytes) -> None:
    file = os.open(group / name, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, data)
    finally:
        os.close(file)
