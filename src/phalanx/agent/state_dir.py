"""Where things lie in a worker's state directory."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from phalanx.agent.messages import Key

_FILE = re.compile(
    r"(?P<task>.+\.\d+)\.(?P<epoch>\d+)\."
    r"(?:progress|checkpoint\.in|checkpoint\.out|out\.(?P<base>\d+))"
)


class Segment(NamedTuple):
    """A file with a part of an attempt's output, from the offset in its name on."""

    path: Path
    base: int


class StateDir:
    def __init__(self, state: Path) -> None:
        self.state = state
        self.attempts = state / "attempts"
        self.socket = state / "spawner.sock"
        self.spawner_lock = state / "spawner.lock"
        self.link_lock = state / "link.lock"
        self.journal = state / "journal"
        self.group = state / "group"
        self.cluster = state / "cluster"
        self.spawner_log = state / "spawner.log"

    def create(self) -> None:
        """Nobody else may read what tasks write, or give orders to the spawner."""
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.state.chmod(0o700)
        self.attempts.mkdir(exist_ok=True)

    def progress(self, key: Key) -> Path:
        return self._of(key, "progress")

    def checkpoint_in(self, key: Key) -> Path:
        return self._of(key, "checkpoint.in")

    def checkpoint_out(self, key: Key) -> Path:
        return self._of(key, "checkpoint.out")

    def output(self, key: Key, base: int) -> Path:
        return self._of(key, f"out.{base}")

    def _of(self, key: Key, what: str) -> Path:
        return self.attempts / f"{key[0]}.{key[1]}.{what}"

    def outputs(self) -> dict[Key, list[Segment]]:
        """The files with output that are still there, oldest first."""
        found: dict[Key, list[Segment]] = {}
        with os.scandir(self.attempts) as entries:
            files = [_FILE.fullmatch(entry.name) for entry in entries]
        for file in files:
            if file is not None and file["base"] is not None:
                segment = Segment(self.attempts / file.string, int(file["base"]))
                found.setdefault((file["task"], int(file["epoch"])), []).append(segment)
        for segments in found.values():
            segments.sort(key=lambda segment: segment.base)
        return found

    def remove(self, key: Key, *, output: bool) -> None:
        """Everything that lies here of an attempt that is forgotten."""
        for path in (self.progress(key), self.checkpoint_in(key), self.checkpoint_out(key)):
            path.unlink(missing_ok=True)
        if output:
            for segment in self.outputs().get(key, ()):
                segment.path.unlink(missing_ok=True)

    def sweep(self, known: set[Key]) -> None:
        """Remove what crashes have left of attempts that nobody knows any more."""
        for path in self.attempts.iterdir():
            found = _FILE.fullmatch(path.name)
            if found is None or (found["task"], int(found["epoch"])) not in known:
                path.unlink(missing_ok=True)


@contextmanager
def near(path: Path) -> Iterator[str]:
    """A short name for a socket, which may have no long one."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
