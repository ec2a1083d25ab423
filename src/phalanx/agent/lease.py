"""The worker's lease: when the server may consider the worker lost, and start its tasks elsewhere.

The link writes the end of the lease to a file with every answer of the server. Link, spawner and
guard each read it there, so that any one of them can end fenced tasks in time without the others.
"""

import os
import struct
from pathlib import Path

_FORMAT = struct.Struct("<d")
_NONE = 0.0

#: A fenced attempt must have ended this long before the end of the lease.
FENCE_MARGIN_S = 2.0


class LeaseFile:
    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)

    def fileno(self) -> int:
        return self._file

    def renew(self, ends_at: float) -> None:
        """Set the end of the lease, on the boot-time clock. Raises OSError."""
        os.pwrite(self._file, _FORMAT.pack(ends_at), 0)

    def drop(self) -> None:
        """Forget a lease of an earlier spawner, or of the time before a restart of the machine."""
        self.renew(_NONE)

    def ends_at(self) -> float:
        """The end of the lease; in the past if there is none."""
        data = os.pread(self._file, _FORMAT.size, 0)
        return float(_FORMAT.unpack(data)[0]) if len(data) == _FORMAT.size else _NONE

    def close(self) -> None:
        os.close(self._file)
