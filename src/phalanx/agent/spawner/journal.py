"""The spawner's journal: which attempts it started and how they ended, kept beyond its own death.

One JSON line for each entry, appended before the link learns of it. A new spawner rewrites the file
and puts it in place by renaming it. A line that a crash cut off is skipped.
"""

import os
from pathlib import Path

import msgspec

from phalanx.agent.messages import AttemptKey, AttemptStatus
from phalanx.host.file_replacement import replace_file, write_all


class StartEntry(msgspec.Struct, frozen=True, tag=True):
    """Written before the attempt is started: from here on processes with this tag may exist."""

    id: str
    epoch: int
    process_tag: int
    fence: bool = False  #: it must not outlive the worker's lease
    #: It is a container. Its monitor and the commands of its runtime have another tag: see
    #: `monitor_tag`.
    container: bool = False
    #: The program of the container was not started: the attempt can be prepared again.
    waiting: bool = False
    #: The command after which the daemon of its runtime does not start it; see `ContainerCalls`.
    remove: tuple[str, ...] = ()


class EndEntry(msgspec.Struct, frozen=True, tag=True):
    status: AttemptStatus


class ForgetEntry(msgspec.Struct, frozen=True, tag=True):
    id: str
    epoch: int


Entry = StartEntry | EndEntry | ForgetEntry

#: A journal that has grown beyond this is rewritten without the attempts that were forgotten.
_REWRITE_BYTES = 4 * 1024**2

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Entry).decode


class Journal:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: dict[AttemptKey, StartEntry] = {}
        self._ended: dict[AttemptKey, AttemptStatus] = {}
        self._file: int | None = None
        self._unwritten: list[bytes] = []
        self._size_bytes = 0
        self._rewrite_at_bytes = _REWRITE_BYTES

    def load(self) -> None:
        """Read the file that an earlier spawner has written, if there is one."""
        written = self._path.read_bytes() if self._path.is_file() else b""
        for line in written.split(b"\n")[:-1]:
            try:
                entry = _decode(line)
            except msgspec.MsgspecError:
                continue  # cut off by a crash of the machine
            self._apply(entry)

    def open_starts(self, *, fenced: bool = False) -> dict[AttemptKey, StartEntry]:
        """The attempts, or only the fenced ones, that have no recorded end."""
        return {key: start for key, start in self._open.items() if start.fence or not fenced}

    def ended(self) -> list[AttemptStatus]:
        """The attempts that have ended and were not forgotten."""
        return list(self._ended.values())

    def _apply(self, entry: Entry) -> None:
        if isinstance(entry, StartEntry):
            self._open[entry.id, entry.epoch] = entry
        elif isinstance(entry, EndEntry):
            self._open.pop(entry.status.key, None)
            self._ended[entry.status.key] = entry.status
        else:
            self._open.pop((entry.id, entry.epoch), None)
            self._ended.pop((entry.id, entry.epoch), None)

    def add(self, entry: Entry) -> None:
        """Add an entry, to be written by the next `write`."""
        self._apply(entry)
        self._unwritten.append(_encode(entry) + b"\n")

    def write(self) -> None:
        """Write what was added, so that it survives this process.

        Raises OSError; then the file has every entry that it had before, and the next call writes
        the others.
        """
        if self._file is None:
            self._rewrite()
        elif self._size_bytes > self._rewrite_at_bytes:
            try:
                self._rewrite()
            except OSError:
                if self._file is None:
                    raise
                # The disk has no space for a second file; the present one can grow further.
                self._rewrite_at_bytes = self._size_bytes + _REWRITE_BYTES
                self._append()
        elif self._unwritten:
            self._append()
        self._unwritten.clear()

    def flush(self) -> None:
        """Flush the file to disk, so that it survives a crash of the machine. Raises OSError."""
        if self._file is not None:
            os.fsync(self._file)

    def _append(self) -> None:
        if self._file is None:
            raise AssertionError("bug: the journal is appended to before it was opened")
        data = b"".join(self._unwritten)
        try:
            write_all(self._file, data)
        except OSError:
            # Nothing may be appended to half a line.
            os.ftruncate(self._file, self._size_bytes)
            raise
        self._size_bytes += len(data)

    def _rewrite(self) -> None:
        """Write only the entries that still count, to a new file."""
        entries: list[Entry] = list(self._open.values())
        entries += [EndEntry(status) for status in self._ended.values()]
        data = b"".join(_encode(entry) + b"\n" for entry in entries)
        try:
            replace_file(self._path, data, durable=True)
        except OSError:
            if self._file is not None:
                self._open_file()
            raise
        self._open_file()
        self._rewrite_at_bytes = max(_REWRITE_BYTES, 2 * len(data))

    def _open_file(self) -> None:
        """Open the file that is in place, instead of the one that may have been replaced."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._size_bytes = os.fstat(self._file).st_size
