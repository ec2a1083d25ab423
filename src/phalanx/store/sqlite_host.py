"""Requirements of SQLite: a local file system, a private file, and a lock that ends with its
process."""

import fcntl
import os
import re
from pathlib import Path

from phalanx.store.protocol import StoreError

#: File systems on which locks or shared memory do not work between machines.
NETWORK_FILE_SYSTEMS: frozenset[str] = frozenset(
    {
        "9p", "acfs", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "coda", "davfs", "dvs",
        "fuse.ceph", "fuse.ceph-fuse", "fuse.cephfs", "fuse.davfs2", "fuse.gcsfuse",
        "fuse.glusterfs", "fuse.juicefs", "fuse.mount-s3", "fuse.mountpoint-s3", "fuse.rclone",
        "fuse.s3fs", "fuse.sshfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
        "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs",
    }
)  # fmt: skip

_MOUNTS = Path("/proc/self/mounts")


def file_system_of(path: Path, mounts: str) -> str | None:
    """The type of the file system of an absolute path, from the text of /proc/self/mounts."""
    file_system = None
    depth = -1
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[1]))
        # A later mount on the same point hides an earlier one.
        if path.is_relative_to(point) and len(point.parts) >= depth:
            file_system, depth = fields[2], len(point.parts)
    return file_system


def require_local_file_system(path: Path, mounts: str | None = None) -> None:
    """Raise StoreError if two machines could open the same SQLite file."""
    if mounts is None:
        if not _MOUNTS.exists():
            return
        mounts = _MOUNTS.read_text("utf-8", "surrogateescape")
    file_system = file_system_of(path, mounts)
    if file_system in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{path} is on a network file system ({file_system}), where SQLite can lose data; use a"
            " local disk, or use PostgreSQL"
        )


def make_private(path: Path) -> None:
    """Create an SQLite file that only its owner can read, or make it so. Raises StoreError.

    It has the environment of every job. SQLite gives its journals the permissions of the file.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for each in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
            if each.exists() and each.stat().st_mode & 0o077:
                each.chmod(0o600)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be opened for this user alone: {error.strerror};"
            " make this user its owner, or choose another file"
        ) from error


class HostLock:
    """An flock: at most one process on this host holds it, and only while it lives."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    @property
    def held(self) -> bool:
        return self._file is not None

    def acquire(self) -> bool:
        """Whether the lock is held now. It does not wait."""
        if self._file is not None:
            return True
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._file = file
        return True

    def release(self) -> None:
        # The file stays: if it were removed, two processes could lock two files of the same name.
        if self._file is not None:
            os.close(self._file)
            self._file = None
