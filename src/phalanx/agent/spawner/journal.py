"""What a spawner must remember beyond its own death: which attempts it began, and how they ended.

One line for each fact, appended before anybody hears of it; a new spawner writes the file anew and
puts it in place by renaming. A line that was cut off by a crash is not read.
"""

import os
from pathlib import Path

import msgspec

from phalanx.agent.messages import Key, Life


class Began(msgspec.Struct, frozen=True, tag=True):
    """From here on processes with this mark may exist."""

    id: str
    epoch: int
    mark: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    life: Life


class Forgotten(msgspec.Struct, frozen=True, tag=True):
    id: str
    epoch: int


Fact = Began | Ended | Forgotten

#: A journal that has grown beyond this is written anew.
_LARGEST_BYTES = 4 * 1024**2

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Fact).decode


class Journal:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._began: dict[Key, int] = {}
        self._ended: dict[Key, Life] = {}
        self._file: int | None = None
        self._lines: list[bytes] = []
        self._size_bytes = 0

    def load(self) -> tuple[dict[Key, int], list[Life]]:
        """The marks of attempts of which no end is known, and the attempts whose end is."""
        written = self._path.read_bytes() if self._path.exists() else b""
        for line in written.split(b"\n")[:-1]:
            try:
                fact = _decode(line)
            except msgspec.MsgspecError:
                continue  # cut off by a crash of the machine
            self._know(fact)
        return dict(self._began), list(self._ended.values())

    def _know(self, fact: Fact) -> None:
        if isinstance(fact, Began):
            self._began[fact.id, fact.epoch] = fact.mark
        elif isinstance(fact, Ended):
            self._began.pop(fact.life.key, None)
            self._ended[fact.life.key] = fact.life
        else:
            self._began.pop((fact.id, fact.epoch), None)
            self._ended.pop((fact.id, fact.epoch), None)

    def add(self, fact: Fact) -> None:
        """Kept with the next `write`."""
        self._know(fact)
        self._lines.append(_encode(fact) + b"\n")

    def write(self) -> None:
        """All that was added, so that it survives us. Raises OSError; then it is tried again."""
        if self._file is None or self._size_bytes > _LARGEST_BYTES:
            self._rewrite()
        elif self._lines:
            data = b"".join(self._lines)
            try:
                written = os.write(self._file, data)
            except OSError:
                written = 0
            self._size_bytes += written
            if written < len(data):
                # Half a line must not be gone on with.
                os.close(self._file)
                self._file = None
                self._rewrite()
        self._lines.clear()

    def flush(self) -> None:
        """So that it survives the machine as well."""
        if self._file is not None:
            os.fsync(self._file)

    def _rewrite(self) -> None:
        facts: list[Fact] = [Began(*key, mark) for key, mark in self._began.items()]
        facts += [Ended(life) for life in self._ended.values()]
        new = self._path.with_suffix(".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        file = os.open(new, flags, 0o600)
        try:
            self._size_bytes = os.write(file, b"".join(_encode(fact) + b"\n" for fact in facts))
            os.fsync(file)
            new.replace(self._path)
        except OSError:
            os.close(file)
            raise
        if self._file is not None:
            os.close(self._file)
        self._file = file
