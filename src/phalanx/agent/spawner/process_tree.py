"""The process tree of an attempt: finds all its processes, and signals them.

Every process of an attempt carries the attempt's tag, whatever session, parent or environment the
process has given itself: a number in a resource limit that Linux passes on to children and does not
enforce. Where control groups are available, the processes are also in the attempt's group.
"""

import ctypes
import os
import resource
import secrets
import signal
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

from phalanx.agent.spawner.cgroups import ControlGroup

_PR_SET_CHILD_SUBREAPER = 36
#: Tags are larger than any memory limit that a user would set.
_LOWEST_TAG = 1 << 62

_READ_BYTES = 64 * 1024
#: How long to wait between two rounds of killing.
_KILL_INTERVAL_S = 0.01

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Make orphaned processes of tasks children of this process. Raises OSError."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def new_tag() -> int:
    return _LOWEST_TAG | secrets.randbits(60) << 1


def monitor_tag(tag: int) -> int:
    """The tag of the processes that run a container, which are not processes of its task."""
    return tag | 1


@contextmanager
def tagged(tag: int) -> Iterator[None]:
    """Give the tag to every process started in the block, and so to all their descendants."""
    before = resource.getrlimit(resource.RLIMIT_RSS)
    resource.setrlimit(resource.RLIMIT_RSS, (tag, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_RSS, before)


def _has_tag(tag: int, pid: int) -> bool:
    try:
        return resource.prlimit(pid, resource.RLIMIT_RSS)[0] == tag
    except OSError:
        return False


def _is_monitor(pid: int) -> bool:
    """Whether the process runs a container of some attempt."""
    try:
        tag = resource.prlimit(pid, resource.RLIMIT_RSS)[0]
    except OSError:
        return True  # it has ended
    return tag >= _LOWEST_TAG and tag == monitor_tag(tag)


def tagged_pids(tag: int) -> list[int]:
    """The living processes that carry the tag."""
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    return [pid for pid in pids if _has_tag(tag, pid) and not _is_zombie(pid)]


def _is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return True
    return stat.rpartition(b") ")[2][:1] in (b"Z", b"X")


def _levels(pid: int) -> list[str]:
    """The number of a process in each pid namespace that it is in, from this one on."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes().decode(errors="replace")
    except OSError:
        return []
    return next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])


class ProcessTree(NamedTuple):
    tag: int
    group: ControlGroup | None = None

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Every process started in the block belongs to the tree, with all its descendants."""
        group = self.group.joined() if self.group is not None else nullcontext()
        with group, tagged(self.tag):
            yield

    def signal(
        self,
        number: signal.Signals,
        except_process_group: int | None = None,
        except_pid: int | None = None,
    ) -> int:
        """Send a signal to the processes of the tree, and return how many there are.

        Processes may fork meanwhile: repeat a SIGKILL until it returns zero.
        """
        pids = {*tagged_pids(self.tag), *self._group_pids()} - {except_pid}
        for pid in pids:
            with suppress(OSError):
                pidfd = os.pidfd_open(pid)
                try:
                    # The pid may have been reused since it was listed; the pidfd cannot change.
                    is_addressed = (
                        except_process_group is None or os.getpgid(pid) != except_process_group
                    )
                    if self.contains(pid) and is_addressed:
                        signal.pidfd_send_signal(pidfd, number)
                finally:
                    os.close(pidfd)
        return len(pids)

    def first_pid(self) -> int | None:
        """The first process of a container whose processes the tree has."""
        levels = {pid: _levels(pid) for pid in {*tagged_pids(self.tag), *self._group_pids()}}
        firsts = [pid for pid, inside in levels.items() if inside[-1:] == ["1"]]
        return min(firsts, key=lambda pid: len(levels[pid]), default=None)

    def _group_pids(self) -> set[int]:
        return self.group.pids() if self.group is not None else set()

    def contains(self, pid: int) -> bool:
        return _has_tag(self.tag, pid) or pid in self._group_pids()

    def kill(self) -> int:
        """Kill the control group, then every tagged process; return how many were left by then."""
        if self.group is not None:
            self.group.kill()
        return self.signal(signal.SIGKILL)

    def remove_group(self) -> bool:
        """Remove the control group, if there is one; False if a process still lives in it."""
        return self.group is None or self.group.remove()


def signal_process_group(pid: int, number: signal.Signals) -> None:
    """Signal the process group of a main process that has not been reaped yet.

    Until it is reaped, its number cannot be given to another process group.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def kill_all(trees: Iterable[ProcessTree]) -> None:
    """Kill every process of the trees and remove their groups; return when none is left."""
    trees = list(trees)
    while sum(tree.kill() or not tree.remove_group() for tree in trees):
        time.sleep(_KILL_INTERVAL_S)


class OwnChildren:
    """The children of this process: main processes of attempts, and orphans it was given."""

    def __init__(self) -> None:
        self._list: int | None = None
        with suppress(OSError):  # a kernel without the list
            flags = os.O_RDONLY | os.O_CLOEXEC
            self._list = os.open(f"/proc/self/task/{os.getpid()}/children", flags)
        self._pids: list[int] = []

    def read(self) -> None:
        """Read the list that the other methods use, after the last exit was reaped."""
        if self._list is not None:
            listed = b""
            while part := os.pread(self._list, _READ_BYTES, len(listed)):
                listed += part
            self._pids = list(map(int, listed.split()))

    def has_orphans(self, tag: int, main_pids: Container[int]) -> bool:
        """Whether a process with the tag is left of an attempt whose main process has been reaped.

        This process is the subreaper, so such a process descends from one of its children. Nothing
        else reaps them, so none can leave the list while it is read.
        """
        if self._list is None:
            return bool(tagged_pids(tag))
        return any(pid not in main_pids and _has_tag(tag, pid) for pid in self._pids)

    def outside(self, trees: Sequence[ProcessTree], known_pids: Container[int]) -> list[int]:
        """Other children that belong to none of the trees: they have changed their own tag."""
        others = [pid for pid in self._pids if pid not in known_pids and not _is_zombie(pid)]
        return [
            pid
            for pid in others
            if not _is_monitor(pid) and not any(tree.contains(pid) for tree in trees)
        ]
