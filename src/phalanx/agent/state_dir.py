"""The layout of a worker's state directory."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from phalanx.agent.messages import AttemptKey

_ATTEMPT_FILE = re.compile(
    r"(?P<task>.+\.\d+)\.(?P<epoch>\d+)\."
    r"(?:progress|checkpoint\.in|checkpoint\.out|out\.(?P<offset>\d+))"
)


class OutputFile(NamedTuple):
    """A file with a part of an attempt's output."""

    path: Path
    offset: int  #: where the part begins in the whole output; it is in the file's name


class StateDir:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.attempts = path / "attempts"
        self.socket = path / "spawner.sock"
        self.spawner_lock = path / "spawner.lock"
        self.link_lock = path / "link.lock"
        self.journal = path / "journal"
        self.cgroup_file = path / "cgroup"
        self.credential_file = path / "credential"
        self.cluster_id_file = path / "cluster-id"
        self.spawner_log = path / "spawner.log"

    def create(self) -> None:
        """Create the directory, closed to other users: it holds output and the spawner's socket."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)
        self.attempts.mkdir(exist_ok=True)

    def progress(self, key: AttemptKey) -> Path:
        return self._attempt_file(key, "progress")

    def checkpoint_in(self, key: AttemptKey) -> Path:
        return self._attempt_file(key, "checkpoint.in")

    def checkpoint_out(self, key: AttemptKey) -> Path:
        return self._attempt_file(key, "checkpoint.out")

    def output(self, key: AttemptKey, offset: int) -> OutputFile:
        return OutputFile(self._attempt_file(key, f"out.{offset}"), offset)

    def _attempt_file(self, key: AttemptKey, suffix: str) -> Path:
        return self.attempts / f"{key[0]}.{key[1]}.{suffix}"

    def outputs(self) -> dict[AttemptKey, list[OutputFile]]:
        """The output files of every attempt, ordered by their offset."""
        files: dict[AttemptKey, list[OutputFile]] = {}
        with os.scandir(self.attempts) as entries:
            names = [_ATTEMPT_FILE.fullmatch(entry.name) for entry in entries]
        for name in names:
            if name is not None and name["offset"] is not None:
                file = OutputFile(self.attempts / name.string, int(name["offset"]))
                files.setdefault((name["task"], int(name["epoch"])), []).append(file)
        for of_attempt in files.values():
            of_attempt.sort(key=lambda file: file.offset)
        return files

    def remove(self, key: AttemptKey, *, output: bool) -> None:
        """Remove the files of an attempt, and its output files if it has written any."""
        for path in (self.progress(key), self.checkpoint_in(key), self.checkpoint_out(key)):
            path.unlink(missing_ok=True)
        if output:
            for file in self.outputs().get(key, ()):
                file.path.unlink(missing_ok=True)

    def remove_all_except(self, known: set[AttemptKey]) -> None:
        """Remove the files that a crash has left of attempts that the spawner does not know."""
        for path in self.attempts.iterdir():
            name = _ATTEMPT_FILE.fullmatch(path.name)
            if name is None or (name["task"], int(name["epoch"])) not in known:
                path.unlink(missing_ok=True)


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A short name for a path, valid in the block: socket names are limited to 108 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
