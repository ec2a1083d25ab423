"""Progress files: tasks append JSON lines with a step, values, and whether a checkpoint was taken.

The values that the job watches are checked here, line by line, because the server receives only the
latest values of each interval.
"""

import asyncio
import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator

import msgspec

from phalanx.agent.link.attempt_problems import AttemptProblems
from phalanx.agent.link.progress_format import ProgressLine, parse
from phalanx.agent.link.reports import TaskReports
from phalanx.agent.link.value_monitor import ValueMonitor
from phalanx.agent.messages import AttemptKey
from phalanx.agent.state_dir import PROGRESS, WATCH, StateDir
from phalanx.agent.task_files import TaskFile, UnusableFile
from phalanx.core.events import AbnormalValue
from phalanx.core.spec.fields import shown
from phalanx.core.spec.quantities import size_text
from phalanx.core.spec.watch import ValueRules, WatchAction, is_value_name
from phalanx.wire.sync import VALUES_LIMIT, TaskProgress

_INTERVAL_S = 0.5
_READ_BYTES = 256 * 1024
#: A file with more unread bytes is read from near its end.
_MOST_UNREAD_BYTES = 1024 * 1024
_LONGEST_LINE_BYTES = 64 * 1024
#: After so many lines that are not progress, the rest of what was read is skipped.
_BAD_LINES = 100
_QUOTED_BYTES = 100
#: Problems that are noted of one file.
_MOST_PROBLEMS = 5
_CURE = 'append lines like {"step": 3} to PHALANX_PROGRESS'

_TOO_LONG = f"has a line of more than {size_text(_LONGEST_LINE_BYTES)}; {_CURE}"
_TOO_MANY = f"has more than {VALUES_LIMIT} values; the others are ignored"
_BAD_NAME = (
    "has a value with an invalid name; use at most 40 letters, digits and _ . / -, beginning with a"
    " letter"
)
_NO_RULES = "is not checked for abnormal values, because watch.json was changed"

_decode_rules = msgspec.json.Decoder(dict[str, ValueRules]).decode


class AttemptValues:
    """The progress of one attempt, line by line: its latest values, and those that are abnormal."""

    def __init__(self, rules: dict[str, ValueRules], note: Callable[[str], None]) -> None:
        self._rules = rules
        self._note = note  #: is called with what is wrong
        self._monitors = {name: ValueMonitor(name, each) for name, each in rules.items()}
        self._names = set(rules)
        self._step = 0
        #: A value was abnormal, and what is saved from now on must not be used.
        self._is_spoiled = False

    def take(self, lines: Iterable[ProgressLine]) -> TaskProgress:
        step = total = saved_step = None
        is_safe = False
        values: dict[str, float | None] = {}
        abnormal: list[AbnormalValue] = []
        for line in lines:
            if line.step is not None:
                step = self._step = line.step
            if line.total is not None:
                total = line.total
            for name, value in line.values.items():
                if name in self._names or self._accepts(name):
                    values[name] = value if math.isfinite(value) else None
                    abnormal += self._checked(name, value)
            if line.checkpoint and not self._is_spoiled:
                is_safe, saved_step = True, self._step
        return TaskProgress(step, total, is_safe, saved_step, values, tuple(abnormal))

    def _accepts(self, name: str) -> bool:
        if not is_value_name(name):
            self._note(_BAD_NAME)
            return False
        if len(self._names) >= VALUES_LIMIT:
            self._note(_TOO_MANY)
            return False
        self._names.add(name)
        return True

    def _checked(self, name: str, value: float) -> list[AbnormalValue]:
        monitor = self._monitors.get(name)
        alarm = None if monitor is None else monitor.observe(self._step, value)
        if alarm is None:
            return []
        self._is_spoiled |= self._rules[name].action(alarm.kind) is not WatchAction.EVENT
        return [alarm]


class ProgressFile:
    def __init__(self, state_dir: StateDir, key: AttemptKey) -> None:
        self._state_dir = state_dir
        self._key = key
        self._offset = 0
        self._values: AttemptValues | None = None  #: None before the first line
        self._has_bad_line = False
        #: What was wrong with the content of the file.
        self.problems: dict[str, None] = {}

    def read(self, *, is_last: bool = False) -> TaskProgress | None:
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
        if self._values is None:
            self._values = AttemptValues(self._rules(), self._note)
        return self._values.take(lines)

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
        if partial_bytes > _LONGEST_LINE_BYTES:
            self._note(_TOO_LONG)
        self._offset += partial_bytes
        return data[partial_bytes:]

    def _parsed(self, lines: Iterable[bytes]) -> Iterator[ProgressLine]:
        bad = 0
        for line in lines:
            is_long = len(line) > _LONGEST_LINE_BYTES
            parsed = None if is_long else parse(line)
            if parsed is not None:
                yield parsed
                continue
            if is_long:
                self._note(_TOO_LONG)
            elif not self._has_bad_line:
                self._has_bad_line = True
                text = line[:_QUOTED_BYTES].decode(errors="replace")
                self._note(f"has a line that is not progress: {shown(text)}; {_CURE}")
            bad += 1
            if bad > _BAD_LINES:
                return

    def _note(self, problem: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems[f"the progress file {problem}"] = None

    def _has_nothing_new(self) -> bool:
        """Whether there is no file, or one of the size that was read: the usual case, and cheap."""
        try:
            status = os.lstat(self._state_dir.task_file(self._key, PROGRESS))
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == self._offset

    def _rules(self) -> dict[str, ValueRules]:
        """The rules that were written when the task was started."""
        try:
            file = self._state_dir.open_task_file(self._key, WATCH)
        except FileNotFoundError:
            return {}
        except UnusableFile:
            self._note(_NO_RULES)
            return {}
        try:
            return _decode_rules(file.read(0, _READ_BYTES))
        except (msgspec.MsgspecError, RecursionError, OSError):
            self._note(_NO_RULES)
            return {}
        finally:
            file.close()


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

    def unwatch(self, key: AttemptKey, *, has_files: bool) -> None:
        """Read the file for the last time, if there is one, and report what is wrong with it."""
        file = self._files.pop(key, None)
        if file is not None and has_files:
            self._read(key, file, is_last=True)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            for key, file in list(self._files.items()):
                if key in self._files and self._read(key, file):
                    await asyncio.sleep(0)

    def _read(self, key: AttemptKey, file: ProgressFile, *, is_last: bool = False) -> bool:
        """Report what is new in the file. Whether anything is."""
        progress = None
        with self._problems.contained(key, "read the progress file"):
            try:
                progress = file.read(is_last=is_last)
            except UnusableFile as error:
                self._problems.report(key, f"the progress file {error}; {_CURE}")
            for problem in file.problems:
                self._problems.report(key, problem)
            if progress is not None:
                self._reports.add_progress(key, progress)
        return progress is not None
