"""Progress files: tasks append JSON lines with a step, and whether a checkpoint was taken."""

import asyncio
from pathlib import Path
from typing import NamedTuple

import msgspec

from phalanx.agent.link.reports import TaskReports
from phalanx.agent.messages import AttemptKey
from phalanx.agent.state_dir import StateDir

_READ_BYTES = 1024**2
_INTERVAL_S = 0.5


class _Line(msgspec.Struct):
    step: int | None = None
    checkpoint: bool = False


_decode = msgspec.json.Decoder(_Line).decode


class Progress(NamedTuple):
    step: int | None  #: the latest step in the file
    safe: bool  #: a checkpoint was taken, so work up to now survives a stop


class ProgressFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> Progress | None:
        """The progress since the last call, from complete lines; other lines are skipped."""
        try:
            if self._path.stat().st_size <= self._offset:
                return None
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_READ_BYTES)
        except OSError:
            return None
        complete = data[: data.rfind(b"\n") + 1]
        if len(data) == _READ_BYTES and not complete:
            complete = data  # not a progress line: skip it
        self._offset += len(complete)
        lines = [line for line in map(_parse, complete.splitlines()) if line is not None]
        if not lines:
            return None
        steps = [line.step for line in lines if line.step is not None]
        return Progress(steps[-1] if steps else None, any(line.checkpoint for line in lines))


def _parse(line: bytes) -> _Line | None:
    try:
        return _decode(line)
    except msgspec.MsgspecError:
        return None


class ProgressWatcher:
    """Reads the progress files of running attempts at a fixed interval."""

    def __init__(self, state_dir: StateDir, reports: TaskReports) -> None:
        self._state_dir = state_dir
        self._reports = reports
        self._files: dict[AttemptKey, ProgressFile] = {}

    def watch(self, key: AttemptKey) -> None:
        if key not in self._files:
            self._files[key] = ProgressFile(self._state_dir.progress(key))

    def unwatch(self, key: AttemptKey) -> None:
        self._files.pop(key, None)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            for key, file in self._files.items():
                progress = file.read()
                if progress is not None:
                    self._reports.add_progress(key, progress.step, safe=progress.safe)
