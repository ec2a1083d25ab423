"""The output of an attempt: moved by the kernel from a pipe into files of limited size.

The output of a task with secrets is copied instead, with their values masked.

An attempt never waits for the disk: output that a full disk cannot take is dropped and counted, and
a line in the output says how much is missing. Offsets count the bytes that the attempt has written.
"""

import fcntl
import os
import select
from contextlib import suppress

from phalanx.agent.messages import AttemptKey
from phalanx.agent.spawner.redaction import Redactor
from phalanx.agent.state_dir import OutputFile, StateDir
from phalanx.host.file_replacement import write_all

_FILE_BYTES = 64 * 1024**2
_KEPT_FILES = 2
_PIPE_BYTES = 1024**2
_MOVE_BYTES = 1024**2
#: After a failed write the disk is not tried again for this long.
_RETRY_S = 1.0


class OutputWriter:
    def __init__(
        self,
        state_dir: StateDir,
        key: AttemptKey,
        pipe: int,
        null_device: int,
        redactor: Redactor | None = None,
    ) -> None:
        self.pipe = pipe
        self._redactor = redactor
        self.total_bytes = 0
        self._state_dir = state_dir
        self._key = key
        self._null_device = null_device
        self._file: int | None = None
        self._file_left_bytes = 0
        self._files: list[OutputFile] = []
        self._lost_bytes = 0
        self._disk_error = ""
        self._retry_at = 0.0

    def move_some(self, now: float) -> bool:
        """Move some output from the pipe to the file; False at the end of the output."""
        try:
            return bool(self._move(now))
        except BlockingIOError:
            return True

    def close(self, now: float) -> None:
        """Move the rest, after all processes of the attempt have ended: what is in the pipe.

        A process outside of the attempt may have the pipe open too, and write without end.
        """
        self._retry_at = now
        left = fcntl.fcntl(self.pipe, fcntl.F_GETPIPE_SZ)
        with suppress(BlockingIOError):
            while left > 0 and (moved := self._move(now)):
                left -= moved
        if self._redactor is not None and self._file is not None:
            with suppress(OSError):
                self._write_masked(self._redactor.rest())
        if self._lost_bytes:
            with suppress(OSError):
                self._open_file()
        os.close(self.pipe)
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _move(self, now: float) -> int:
        """Move some bytes and return how many; 0 at the end. Raises BlockingIOError if empty."""
        if now >= self._retry_at:
            try:
                if self._file is None or self._file_left_bytes <= 0:
                    if not self._is_readable():
                        return 0
                    self._open_file()
                limit_bytes = min(self._file_left_bytes, _MOVE_BYTES)
                if self._redactor is not None:
                    return self._copy_masked(self._redactor, limit_bytes)
                return self._count(self._splice(self._file, limit_bytes))
            except BlockingIOError:
                raise
            except OSError as error:
                self._disk_error = error.strerror or str(error)
                self._retry_at = now + _RETRY_S
                self._close_file()
        lost = self._splice(self._null_device, _MOVE_BYTES)
        self._lost_bytes += lost
        self.total_bytes += lost
        return lost

    def _is_readable(self) -> bool:
        """Whether the pipe has output; False at its end. Raises BlockingIOError if empty."""
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        ready = poll.poll(0)
        if not ready:
            raise BlockingIOError
        return bool(ready[0][1] & select.POLLIN)

    def _copy_masked(self, redactor: Redactor, limit_bytes: int) -> int:
        """Copy some output without the values of secrets; the bytes that were read."""
        data = os.read(self.pipe, limit_bytes)
        self._write_masked(redactor.mask(data) if data else redactor.rest())
        return len(data)

    def _write_masked(self, masked: bytes) -> None:
        if self._file is None:
            raise AssertionError("bug: output without a file")
        try:
            write_all(self._file, masked)
        except OSError:
            self._lost_bytes += len(masked)
            self.total_bytes += len(masked)
            raise
        self._count(len(masked))

    def _splice(self, target: int | None, limit_bytes: int) -> int:
        if target is None:
            raise AssertionError("bug: output without a file")
        return os.splice(self.pipe, target, limit_bytes, flags=os.SPLICE_F_NONBLOCK)

    def _count(self, moved: int) -> int:
        self._file_left_bytes -= moved
        self.total_bytes += moved
        return moved

    def _open_file(self) -> None:
        """Open the next file and remove the oldest. Raises OSError, and then there is no file."""
        self._close_file()
        if not self._files:
            with suppress(OSError):  # a smaller pipe works as well
                fcntl.fcntl(self.pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        file, self._file = self._state_dir.create_output_file(self._key, self.total_bytes)
        self._file_left_bytes = _FILE_BYTES
        if self._lost_bytes:
            lost = f"lost {self._lost_bytes} bytes of output: {self._disk_error}"
            note = f"[phalanx: {lost}]\n".encode()
            try:
                write_all(self._file, note)
            except OSError:
                file.path.unlink(missing_ok=True)
                raise
            self._count(len(note))
            self._lost_bytes = 0
        self._files.append(file)
        while len(self._files) > _KEPT_FILES:
            with suppress(OSError):
                self._files.pop(0).path.unlink()
