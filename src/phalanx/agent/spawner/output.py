"""What an attempt writes: moved by the kernel from its pipe into files of bounded size.

Offsets count the bytes that were written. What a full disk cannot take is dropped and counted, so
that the attempt never waits for the disk; once there is room, a line says how much is missing.
"""

import fcntl
import os
import select
from contextlib import suppress

from phalanx.agent.messages import Key
from phalanx.agent.state_dir import Segment, StateDir

_SEGMENT_BYTES = 64 * 1024**2
_KEPT = 2
_PIPE_BYTES = 1024**2
_AT_ONCE_BYTES = 1024**2
#: After a failure the disk is left alone this long.
_PAUSE_S = 1.0


class Output:
    def __init__(self, places: StateDir, key: Key, pipe: int, nowhere: int) -> None:
        self.pipe = pipe
        self.total_bytes = 0
        self._places = places
        self._key = key
        self._nowhere = nowhere
        self._file: int | None = None
        self._room = 0
        self._segments: list[Segment] = []
        self._lost_bytes = 0
        self._why = ""
        self._again_at = 0.0

    def take(self, now: float) -> bool:
        """Take some of what is there; False at the end of it."""
        try:
            return bool(self._move(now))
        except BlockingIOError:
            return True

    def close(self, now: float) -> None:
        """Take the rest: nobody is left to write more."""
        self._again_at = now
        with suppress(BlockingIOError):  # somebody else was given the pipe
            while self._move(now):
                pass
        if self._lost_bytes:
            with suppress(OSError):
                self._begin()
        os.close(self.pipe)
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _move(self, now: float) -> int:
        """How much was moved; none at the end. Raises BlockingIOError where there is nothing."""
        if now >= self._again_at:
            try:
                if self._file is None or self._room <= 0:
                    if not self._has_some():
                        return 0
                    self._begin()
                return self._count(self._splice(self._file, min(self._room, _AT_ONCE_BYTES)))
            except BlockingIOError:
                raise
            except OSError as error:
                self._why = error.strerror or str(error)
                self._again_at = now + _PAUSE_S
                self._close_file()
        lost = self._splice(self._nowhere, _AT_ONCE_BYTES)
        self._lost_bytes += lost
        self.total_bytes += lost
        return lost

    def _has_some(self) -> bool:
        """Whether there is something to make a file for."""
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        found = poll.poll(0)
        if not found:
            raise BlockingIOError
        return bool(found[0][1] & select.POLLIN)

    def _splice(self, target: int | None, most: int) -> int:
        if target is None:
            raise AssertionError("bug: output without a file")
        return os.splice(self.pipe, target, most, flags=os.SPLICE_F_NONBLOCK)

    def _count(self, moved: int) -> int:
        self._room -= moved
        self.total_bytes += moved
        return moved

    def _begin(self) -> None:
        """Raises OSError, and then there is no file."""
        self._close_file()
        if not self._segments:
            with suppress(OSError):  # a small pipe does as well
                fcntl.fcntl(self.pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        segment = Segment(self._places.output(self._key, self.total_bytes), self.total_bytes)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file, self._room = os.open(segment.path, flags, 0o600), _SEGMENT_BYTES
        if self._lost_bytes:
            note = f"[phalanx: {self._lost_bytes} bytes of output were lost: {self._why}]\n"
            try:
                self._count(os.write(self._file, note.encode()))
            except OSError:
                segment.path.unlink(missing_ok=True)
                raise
            self._lost_bytes = 0
        self._segments.append(segment)
        while len(self._segments) > _KEPT:
            self._segments.pop(0).path.unlink(missing_ok=True)
