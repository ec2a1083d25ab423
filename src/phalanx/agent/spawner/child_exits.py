"""The exits of the spawner's children: SIGCHLD wakes the loop, `waitid` reaps them."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

_READ_BYTES = 4096
#: A task that starts processes without end must not keep the spawner from its other work.
_AT_ONCE = 256


class ChildExit(NamedTuple):
    pid: int
    code: int  #: CLD_EXITED, CLD_KILLED or CLD_DUMPED
    status: int  #: the exit code, or the signal that killed it


class ChildExits:
    def __init__(self) -> None:
        self._wakeups, self._wakeup = socket.socketpair()
        self._wakeups.setblocking(False)
        self._wakeup.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)

    def fileno(self) -> int:
        """The file that becomes readable after an exit."""
        return self._wakeups.fileno()

    def reap(self) -> Iterator[ChildExit]:
        """Reap children that have exited, orphans of tasks included; the rest in the next call."""
        self._wakeups.recv(_READ_BYTES)
        for _ in range(_AT_ONCE):
            try:
                child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                return
            if child is None:
                return
            yield ChildExit(child.si_pid, child.si_code, child.si_status)
        with suppress(BlockingIOError):  # then the loop is woken in any case
            self._wakeup.send(b"\0")
