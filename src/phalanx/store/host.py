"""What SQLite asks of its host: a local file system, and a lock that dies with its process."""

import fcntl
import os
import re
from pathlib import Path

from phalanx.store.protocol import StoreError

#: Kinds of file systems on which locks or shared memory do not work between machines.
NETWORK_KINDS: frozenset[str] = frozenset(
    {
        "9p", "acfs", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "coda", "davfs", "dvs",
        "fuse.ceph", "fuse.ceph-fuse", "fuse.cephfs", "fuse.davfs2", "fuse.gcsfuse",
        "fuse.glusterfs", "fuse.juicefs", "fuse.mount-s3", "fuse.mountpoint-s3", "fuse.rclone",
        "fuse.s3fs", "fuse.sshfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
        "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs",
    }
)  # fmt: skip

_MOUNTS = Path("/proc/self/mounts")


def file_system_kind(path: Path, mounts: str) -> str | None:
    """The kind of file system that an absolute path lies on, by the text of /proc/self/mounts."""
    kind = None
    depth = -1
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[1]))
        # Of two mounts on one point the later line hides the earlier.
        if path.is_relative_to(point) and len(point.parts) >= depth:
            kind, depth = fields[2], len(point.parts)
    return kind


def refuse_network(path: Path, mounts: str | None = None) -> None:
    """Raises StoreError where two machines could open the same SQLite file."""
    if mounts is None:
        if not _MOUNTS.exists():
            return
        mounts = _MOUNTS.read_text("utf-8", "surrogateescape")
    kind = file_system_kind(path, mounts)
    if kind in NETWORK_KINDS:
        raise StoreError(
            f"{path} lies on a network file system ({kind}), where SQLite loses data; put it on a "
            "local disk, or use PostgreSQL"
        )


class HostLock:
    """An flock: of all holders on this host at most one, and none that is dead."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    @property
    def held(self) -> bool:
        return self._file is not None

    def acquire(self) -> bool:
        """Take it if it is free; never waits."""
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
        # The file stays: whoever removed it would let two processes lock two files of one name.
        if self._file is not None:
            os.close(self._file)
            self._file = None
