"""A lock on a file that one process holds until it exits: a state directory has one link and one
spawner at a time.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from phalanx.agent.task_files import read_short


class ProcessLock:
    def __init__(self, file: int) -> None:
        self._file = file

    @classmethod
    def acquire(cls, path: Path) -> "ProcessLock | None":
        """The lock, or None if another process holds it."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        with suppress(OSError):  # a full disk has no space for the pid, which is only shown
            os.ftruncate(file, 0)
            os.write(file, str(os.getpid()).encode())
        return cls(file)

    def release(self) -> None:
        os.close(self._file)


def holder_pid(path: Path) -> str:
    """The process id that the last holder wrote into the lock file, or an empty string."""
    return read_short(path)
