"""The process tree of an attempt: found wherever its members have gone to, signalled, and seen off.

Every process of an attempt carries its mark, a number in a resource limit that Linux inherits and
does not use, whatever session, parent or environment the process has given itself; and it is in the
attempt's group, where there are groups. The spawner is the subreaper, so once the first process has
gone, every tree hangs off one of its own children.
"""

import ctypes
import os
import resource
import secrets
import signal
import time
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

from phalanx.agent.spawner.cgroups import ControlGroup

_SET_SUBREAPER = 36
#: Marks are so large that nobody means them as a limit.
_MARKED = 1 << 62

#: How long killed processes are given before they are looked for again.
_MOMENT_S = 0.01

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphans of our tasks become our children. Raises OSError."""
    if _libc.prctl(_SET_SUBREAPER, 1, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def new_mark() -> int:
    return _MARKED | secrets.randbits(61)


@contextmanager
def marked(mark: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_RSS)
    resource.setrlimit(resource.RLIMIT_RSS, (mark, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_RSS, before)


def _has(mark: int, pid: int) -> bool:
    try:
        return resource.prlimit(pid, resource.RLIMIT_RSS)[0] == mark
    except OSError:
        return False


def members(mark: int) -> list[int]:
    """Every living process that carries it."""
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    return [pid for pid in pids if _has(mark, pid) and not _is_zombie(pid)]


def _is_zombie(pid: int) -> bool:
    """Dead, though perhaps nobody will ever reap it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return True
    return stat.rpartition(b") ")[2][:1] in (b"Z", b"X")


class ProcessTree(NamedTuple):
    mark: int
    group: ControlGroup | None = None

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Whatever is started meanwhile, and all that comes of it, belongs to the tree."""
        group = self.group.entered() if self.group is not None else nullcontext()
        with group, marked(self.mark):
            yield

    def signal(self, number: signal.Signals, but_group: int | None = None) -> int:
        """Send a signal to every process of it, or to those outside of a process group; how many
        there are. They may fork meanwhile: repeat it until there is none."""
        found = {*members(self.mark), *self._grouped()}
        for pid in found:
            with suppress(OSError):
                handle = os.pidfd_open(pid)
                try:
                    # The number may belong to another process by now; the handle cannot.
                    if self._has(pid) and (but_group is None or os.getpgid(pid) != but_group):
                        signal.pidfd_send_signal(handle, number)
                finally:
                    os.close(handle)
        return len(found)

    def _grouped(self) -> set[int]:
        return self.group.pids() if self.group is not None else set()

    def _has(self, pid: int) -> bool:
        return _has(self.mark, pid) or pid in self._grouped()

    def kill(self) -> int:
        """What the kernel has not killed with the group is found by the mark; how many it was."""
        if self.group is not None:
            self.group.kill()
        return self.signal(signal.SIGKILL)

    def remove_group(self) -> bool:
        """Whether nothing lives in it, if there is one."""
        return self.group is None or self.group.remove()


def signal_group(pid: int, number: signal.Signals) -> None:
    """The first process has not been reaped, so its group's number is nobody else's."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def end(marks: Iterable[int], group: ControlGroup | None) -> None:
    """Kill what is left of attempts that nobody owns any more; returns when nothing is."""
    # The group is that of all of them, so its mark is one that nobody has.
    trees = [ProcessTree(new_mark(), group), *map(ProcessTree, marks)]
    while sum(tree.kill() or not tree.remove_group() for tree in trees):
        time.sleep(_MOMENT_S)


class Children:
    """The spawner's own children: the first processes of tasks, and orphans that it was given."""

    def __init__(self) -> None:
        self._list = Path(f"/proc/self/task/{os.getpid()}/children")
        self._is_listed = self._list.exists()

    def left_of(self, mark: int, firsts: Container[int]) -> bool:
        """Whether anything with the mark is left of an attempt whose first process has gone.

        Nobody but us reaps our children, so the list can only grow while it is read; and whatever
        is left of the attempt hangs off one of them.
        """
        if not self._is_listed:
            return bool(members(mark))
        listed = map(int, self._list.read_bytes().split())
        return any(pid not in firsts and _has(mark, pid) for pid in listed)
