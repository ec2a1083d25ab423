"""Opens files in folders that tasks write to. A task is not trusted: it may leave anything there.

No symbolic link is followed below the state directory, also not in a folder that a task could have
replaced, and nothing but a regular file is opened: a FIFO or a device can block, or never end.
"""

import os
import stat
from pathlib import Path
from typing import NamedTuple

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SHORT_BYTES = 4096
_KINDS = {
    stat.S_IFDIR: "is a directory",
    stat.S_IFLNK: "is a symbolic link",
    stat.S_IFIFO: "is a FIFO",
    stat.S_IFSOCK: "is a socket",
    stat.S_IFBLK: "is a device",
    stat.S_IFCHR: "is a device",
}


class UnusableFile(Exception):  # noqa: N818
    """A task has left something that is not a readable file; the message is "is a directory"."""


class TaskFile(NamedTuple):
    """An open regular file. Close its descriptor."""

    descriptor: int
    size_bytes: int

    def read(self, offset: int, limit_bytes: int) -> bytes:
        """At most so many bytes from the offset on. Raises OSError."""
        return os.pread(self.descriptor, limit_bytes, offset)

    def close(self) -> None:
        os.close(self.descriptor)


def open_folder(root: Path, *names: str) -> int:
    """A descriptor of the folder below the root, which is trusted. Raises OSError."""
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in names:
        try:
            inner = os.open(name, _FOLDER, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


def open_file(root: Path, *names: str) -> TaskFile:
    """Open a file below the root, which is trusted, for reading.

    Raises FileNotFoundError if there is none, UnusableFile if it is not a regular file.
    """
    try:
        folder = open_folder(root, *names[:-1])
        try:
            owner = os.fstat(folder).st_uid
            handle = os.open(names[-1], os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            return _opened(handle, owner)
        finally:
            os.close(handle)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnusableFile(f"cannot be read: {error.strerror}") from None


def read_short(path: Path) -> str:
    """The content of a short file; empty if there is none, or something else in its place."""
    try:
        file = open_file(path.parent, path.name)
    except (FileNotFoundError, UnusableFile):
        return ""
    try:
        return os.fsdecode(file.read(0, _SHORT_BYTES))
    finally:
        file.close()


def _opened(handle: int, owner: int) -> TaskFile:
    """The file that the handle refers to, whatever has its name by now.

    In the folder of another user's task, root reads only what that user could read.
    """
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        raise UnusableFile(_KINDS.get(stat.S_IFMT(status.st_mode), "is not a file"))
    if status.st_nlink > 1:
        raise UnusableFile("is a hard link")  # possibly to a file that the task may not read
    if owner not in (os.geteuid(), status.st_uid):
        raise UnusableFile("belongs to another user")
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    return TaskFile(os.open(f"/proc/self/fd/{handle}", flags), status.st_size)
