"""Control groups: where the kernel lets a worker make them, each attempt has one of its own.

Whatever a process does, it stays in its group, and the kernel kills a group as a whole. Where
groups are not allowed there are none, and attempts are known by their marks alone.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from uuid import uuid4

from phalanx.agent.messages import Key

_PREFIX = "phalanx-"
#: Kernels before 5.14 have none; there a group is frozen, and its processes are killed singly.
_KILL = "cgroup.kill"


class ControlGroup(NamedTuple):
    path: Path
    home: Path  #: the group that the spawner is in

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What is started meanwhile begins in the group: there is no moment in which it is not."""
        try:
            _write(self.path, "cgroup.procs", b"0")
        except OSError:
            yield  # then only its mark shows whose it is
            return
        try:
            yield
        finally:
            try:
                _write(self.home, "cgroup.procs", b"0")
            except OSError as error:
                # We must not go on: the end of the attempt would be ours.
                why = f"the spawner cannot go back to its group {self.home}: {error.strerror}"
                raise RuntimeError(why) from error

    def kill(self) -> None:
        """End all that is in it, or at least keep it from forking."""
        with suppress(OSError):
            if (self.path / _KILL).exists():
                _write(self.path, _KILL, b"1")
            else:
                _write(self.path, "cgroup.freeze", b"1")

    def pids(self) -> set[int]:
        """The living processes in it and in groups that they have made below."""
        found: set[int] = set()
        for folder, _, _ in os.walk(self.path):
            with suppress(OSError):
                found.update(map(int, Path(folder, "cgroup.procs").read_bytes().split()))
        return found - {0}  # processes that cannot be seen from here

    def remove(self) -> bool:
        """Whether nothing lives in it; then the group is gone as well."""
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
    """The groups of a worker's attempts, below one of its own."""

    def __init__(self, note: Path, proc: Path = Path("/proc/self")) -> None:
        """In the note stands where they are, for whoever comes after us."""
        self._note = note
        self._worker = self._make_worker(proc)

    def _make_worker(self, proc: Path) -> ControlGroup | None:
        home = find_home(proc)
        if home is None:
            return None
        worker = ControlGroup(home / f"{_PREFIX}{uuid4().hex[:12]}", home)
        try:
            self._note.write_text(str(worker.path))
            worker.path.mkdir()
            # Whoever may make a group may still not be allowed to enter it, or to come back.
            for group in (worker.path, home):
                _write(group, "cgroup.procs", b"0")
        except OSError:
            worker.remove()
            return None
        return worker

    def make(self, key: Key) -> ControlGroup | None:
        if self._worker is None:
            return None
        group = ControlGroup(self._worker.path / f"{key[0]}.{key[1]}", self._worker.home)
        try:
            group.path.mkdir()
        except OSError:
            return None
        return group

    def close(self) -> None:
        """All attempts are over."""
        if self._worker is not None:
            self._worker.remove()


def left_by(note: Path) -> ControlGroup | None:
    """The group of the attempts of a worker that is dead, if it is there and ours to end."""
    path = Path(note.read_text()) if note.exists() else None
    if path is None or not path.name.startswith(_PREFIX):
        return None
    return ControlGroup(path, path.parent) if os.access(path / "cgroup.procs", os.W_OK) else None


def find_home(proc: Path) -> Path | None:
    """The folder of the group that we are in, wherever the second version is mounted."""
    try:
        groups, mounts = ((proc / name).read_text() for name in ("cgroup", "mountinfo"))
    except OSError:
        return None
    of_second = re.search(r"^0::(/.*)$", groups, re.MULTILINE)
    own = PurePosixPath(of_second[1]) if of_second is not None else None
    if own is None or ".." in own.parts:
        return None
    for line in mounts.splitlines():
        mount, _, kind = line.partition(" - ")
        root, point = mount.split(" ")[3:5]
        if kind.startswith("cgroup2 ") and own.is_relative_to(root):
            # Blanks in names are written as octal numbers.
            point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point)
            return Path(point, own.relative_to(root))
    return None


def _write(group: Path, name: str, data: bytes) -> None:
    file = os.open(group / name, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, data)
    finally:
        os.close(file)
