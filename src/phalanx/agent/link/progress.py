"""What tasks write to their progress files: JSON lines with a step, and whether work is safe."""

from pathlib import Path
from typing import NamedTuple

import msgspec

_MOST_BYTES = 1024**2


class _Line(msgspec.Struct):
    step: int | None = None
    checkpoint: bool = False


_decode = msgspec.json.Decoder(_Line).decode


class ProgressReport(NamedTuple):
    step: int | None  #: the last one that was reported
    safe: bool  #: work up to now would survive a stop


class ProgressFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> ProgressReport | None:
        """What is new in it; a line counts once it is whole, and one that is not ours never."""
        try:
            if self._path.stat().st_size <= self._offset:
                return None
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_MOST_BYTES)
        except OSError:
            return None
        whole = data[: data.rfind(b"\n") + 1]
        if len(data) == _MOST_BYTES and not whole:
            whole = data  # nobody writes a line like that; go on behind it
        self._offset += len(whole)
        lines = [line for line in map(_read, whole.splitlines()) if line is not None]
        if not lines:
            return None
        steps = [line.step for line in lines if line.step is not None]
        return ProgressReport(steps[-1] if steps else None, any(line.checkpoint for line in lines))


def _read(line: bytes) -> _Line | None:
    try:
        return _decode(line)
    except msgspec.MsgspecError:
        return None
