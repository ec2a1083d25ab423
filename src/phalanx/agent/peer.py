"""The process at the other end of a Unix socket: whether it may be the link of this spawner."""

import os
import socket
import struct
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def may_be_link(connection: socket.socket) -> bool:
    """Whether the peer is of this process's user, or root, and is not started by this process.

    All processes of tasks descend from the spawner, which adopts those that are orphaned.
    """
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return uid in (0, os.geteuid()) and not _descends_from(pid, os.getpid())


def _descends_from(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            return True  # it has exited, or cannot be seen: then it is not the link
        pid = int(stat.rpartition(b") ")[2].split()[1])
    return False
