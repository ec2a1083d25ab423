"""A lock that ends with the process that took it: of each kind of process a worker has only one."""

import fcntl
import os
from pathlib import Path


class Lock:
    def __init__(self, file: int) -> None:
        self._file = file

    @classmethod
    def take(cls, path: Path) -> "Lock | None":
        """None if another process has it."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        os.ftruncate(file, 0)
        os.write(file, str(os.getpid()).encode())
        return cls(file)

    def release(self) -> None:
        os.close(self._file)


def holder(path: Path) -> str:
    """The number of the process that has the lock, as far as is known."""
    return path.read_text() if path.exists() else ""
