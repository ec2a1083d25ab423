"""The processes of a worker, as the kernel shows them. A process id alone does not name a process:
it is given again."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: Flags of the kernel: the process runs no more instruction; it was forked and has not called exec.
_EXITING, _NOT_EXECUTED = 0x4, 0x40


class _Status(NamedTuple):
    state: str
    flags: int

    @property
    def has_ended(self) -> bool:
        return self.state in "ZX"


def is_alive(pid: int) -> bool:
    """Whether a process runs instructions. One that exits may have open files and sockets."""
    status = _status(pid)
    return status is not None and not status.has_ended and not status.flags & _EXITING


def has_ended(pid: int) -> bool:
    """Whether a process has ended, and its files and sockets are closed."""
    status = _status(pid)
    return status is None or status.has_ended


def _status(pid: int) -> _Status | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return None
    return _Status(fields[0], int(fields[6]))


def environment_of(pid: int) -> set[str]:
    """The variables that a process was started with, as NAME=VALUE; empty if there is none."""
    try:
        return set(os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes()).split("\0"))
    except OSError:
        return set()


def spawner_of(state_dir: Path) -> int | None:
    """The spawner of a worker, if it lives."""
    for pid in spawner_and_guard(state_dir):
        status = _status(pid)
        if status is not None and not status.flags & _NOT_EXECUTED:
            return pid
    return None


def spawner_and_guard(state_dir: Path) -> list[int]:
    """What lives of both: the guard is forked from the spawner, and outlives it for the cleanup."""
    program = os.fsencode(f"phalanx.agent.spawner\0{state_dir}\0")
    pids = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                if (folder / "cmdline").read_bytes().endswith(program):
                    pids.append(int(folder.name))
    return [pid for pid in pids if is_alive(pid)]
