"""Progress files: tasks append JSON lines with a step, and whether a checkpoint was taken."""

import asyncio
import stat
from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple

import msgspec

from phalanx.agent.link.attempt_problems import AttemptProblems
from phalanx.agent.link.reports import TaskReports
from phalanx.agent.messages import AttemptKey
from phalanx.agent.state_dir import PROGRESS, StateDir
from phalanx.agent.task_files import TaskFile, UnusableFile
from phalanx.core.spec.fields import shown
from phalanx.core.spec.quantities import size_text

_READ_BYTES = 64 * 1024
#: A file with more unread bytes is read from near its end.
_MOST_UNREAD_BYTES = 1024 * 1024
_INTERVAL_S = 0.5
#: After so many lines that are not progress, the rest of what was read is skipped.
_BAD_LINES = 100
_LARGEST_STEP = 2**53
_QUOTED_BYTES = 100
_CURE = 'append lines like {"step": 3} to PHALANX_PROGRESS'


class _Line(msgspec.Struct):
    step: Annotated[int, msgspec.Meta(ge=-_LARGEST_STEP, le=_LARGEST_STEP)] | None = None
    checkpoint: bool = False


_decode = msgspec.json.Decoder(_Line).decode


class Progress(NamedTuple):
    step: int | None  #: the latest step in the file
    safe: bool  #: a checkpoint was taken, so work up to now survives a stop


class ProgressFile:
    def __init__(self, state_dir: StateDir, key: AttemptKey) -> None:
        self._state_dir = state_dir
        self._key = key
        self._offset = 0
        #: What was first wrong with the content of the file; empty if nothing was.
        self.problem = ""

    def read(self, *, is_last: bool = False) -> Progress | None:
        """The progress since the last call, from complete lines; other lines are skipped.

        The last call reads a last line without a newline too. Raises UnusableFile, OSError.
        """
        if self._has_nothing_new():
            return None
        try:
            file = self._state_dir.open_task_file(self._key, PROGRESS)
        except FileNotFoundError:
            return None
        try:
            if file.size_bytes < self._offset:
                self._offset = 0  # the task has written the file anew
            data = self._unread(file)
        finally:
            file.close()
        complete = data[: data.rfind(b"\n") + 1]
        if is_last or (len(data) == _READ_BYTES and not complete):
            complete = data  # in the second case not a progress line: skip it
        self._offset += len(complete)
        lines = list(self._parsed(complete.splitlines()))
        if not lines:
            return None
        steps = [line.step for line in lines if line.step is not None]
        return Progress(steps[-1] if steps else None, any(line.checkpoint for line in lines))

    def _unread(self, file: TaskFile) -> bytes:
        """The next bytes of the file, or those at its end if it is far ahead. Raises OSError."""
        unread_bytes = file.size_bytes - self._offset
        if unread_bytes <= _MOST_UNREAD_BYTES:
            return file.read(self._offset, _READ_BYTES)
        if self._offset:  # otherwise the worker may have started again in a long attempt
            self._note(
                f"grew by {size_text(unread_bytes)} within {_INTERVAL_S} s, the limit is"
                f" {size_text(_MOST_UNREAD_BYTES)}; lines were skipped"
            )
        self._offset = file.size_bytes - _READ_BYTES
        data = file.read(self._offset, _READ_BYTES)
        partial_bytes = data.find(b"\n") + 1
        self._offset += partial_bytes
        return data[partial_bytes:]

    def _parsed(self, lines: Iterable[bytes]) -> Iterator[_Line]:
        bad = 0
        for line in lines:
            try:
                yield _decode(line)
            except msgspec.MsgspecError:
                text = line[:_QUOTED_BYTES].decode(errors="replace")
                self._note(f"has a line that is not progress: {shown(text)}; {_CURE}")
                bad += 1
                if bad > _BAD_LINES:
                    return

    def _note(self, problem: str) -> None:
        self.problem = self.problem or f"the progress file {problem}"

    def _has_nothing_new(self) -> bool:
        """Whether there is no file, or one of the size that was read: the usual case, and cheap."""
        try:
            status = self._state_dir.task_file(self._key, PROGRESS).lstat()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == self._offset


class ProgressWatcher:
    """Reads the progress files of running attempts at a fixed interval."""

    def __init__(
        self, state_dir: StateDir, reports: TaskReports, problems: AttemptProblems
    ) -> None:
        self._state_dir = state_dir
        self._reports = reports
        self._problems = problems
        self._files: dict[AttemptKey, ProgressFile] = {}

    def watch(self, key: AttemptKey) -> None:
        if key not in self._files:
            self._files[key] = ProgressFile(self._state_dir, key)

    def unwatch(self, key: AttemptKey) -> None:
        """Read the file for the last time, and report what is wrong with it."""
        file = self._files.pop(key, None)
        if file is not None:
            self._read(key, file, is_last=True)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            for key, file in list(self._files.items()):
                self._read(key, file)

    def _read(self, key: AttemptKey, file: ProgressFile, *, is_last: bool = False) -> None:
        with self._problems.contained(key, "read the progress file"):
            try:
                progress = file.read(is_last=is_last)
            except UnusableFile as error:
                self._problems.report(key, f"the progress file {error}; {_CURE}")
                return
            if file.problem:
                self._problems.report(key, file.problem)
            if progress is not None:
                self._reports.add_progress(key, progress.step, safe=progress.safe)
