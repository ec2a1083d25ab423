"""The process tree of an attempt: found wherever its members have gone to, signalled, and seen off.

Every process of an attempt carries its mark, a number in a resource limit that Linux inherits and
does not use, whatever session, parent or environment the process has given itself. The spawner is
the subreaper, so once the first process has gone, every tree hangs off one of its own children.
"""

import ctypes
import os
import resource
import secrets
import signal
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
    """Whatever is started meanwhile, and all that comes of it, belongs to the attempt."""
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
    """Every living process of an attempt."""
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


def signal_all(mark: int, number: signal.Signals, but_group: int | None = None) -> int:
    """Send a signal to every process of an attempt, or to those outside of a process group; how
    many the attempt has. They may fork meanwhile: repeat it until there is none."""
    found = members(mark)
    for pid in found:
        with suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                # The number may belong to another process by now; the handle cannot.
                if _has(mark, pid) and (but_group is None or os.getpgid(pid) != but_group):
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)
    return len(found)


def signal_group(pid: int, number: signal.Signals) -> None:
    """The first process has not been reaped, so its group's number is nobody else's."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def end(marks: list[int]) -> None:
    """Kill what is left of attempts that nobody owns any more; returns when nothing is."""
    while sum(signal_all(mark, signal.SIGKILL) for mark in marks):
        time.sleep(_MOMENT_S)


class Children:
    """The spawner's own children: the first processes of tasks, and orphans that it was given."""

    def __init__(self) -> None:
        self._list = Path(f"/proc/self/task/{os.getpid()}/children")
        self._is_listed = self._list.exists()

    def left_of(self, mark: int, firsts: Container[int]) -> bool:
        """Whether anything is left of an attempt whose first process has gone.

        Nobody but us reaps our children, so the list can only grow while it is read; and whatever
        is left of the attempt hangs off one of them.
        """
        if not self._is_listed:
            return bool(members(mark))
        listed = map(int, self._list.read_bytes().split())
        return any(pid not in firsts and _has(mark, pid) for pid in listed)
