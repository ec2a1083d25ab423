"""For the program that a task runs: who it is in its gang, its checkpoint, its progress, its end.

Needs nothing but Python, so that any program may import it. Where Phalanx did not start the
program, it is rank 0 of 1, and what would be reported goes nowhere.
"""

import base64
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType

#: What a shell says of a program that SIGTERM ended.
_STOPPED = 128 + signal.SIGTERM


def rank() -> int:
    """Its place in the gang, from 0."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many the gang has started with."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """Its place among those of the gang on the same worker."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def node_rank() -> int:
    """The place of its worker among those of the gang."""
    return int(os.environ.get("NODE_RANK", "0"))


def peers() -> list[str]:
    """The hosts of the gang, by rank."""
    return os.environ.get("GANG_PEERS", "localhost").split(",")


def job() -> str | None:
    """The id of its job; None outside of Phalanx."""
    return os.environ.get("PHALANX_JOB")


def role() -> str | None:
    """The name of its role; None outside of Phalanx."""
    return os.environ.get("PHALANX_ROLE")


def attempt() -> int:
    """How often it has been started, this time included."""
    return int(os.environ.get("PHALANX_ATTEMPT", "1"))


class _Checkpoint:
    """What an attempt leaves to the next one."""

    def load(self) -> bytes | None:
        """What the last attempt saved, or None."""
        path = os.environ.get("PHALANX_CHECKPOINT_IN")
        if path:
            with contextlib.suppress(FileNotFoundError):
                return Path(path).read_bytes()
        data = os.environ.get("CHECKPOINT_DATA")
        return base64.b64decode(data) if data else None

    def save(self, data: bytes) -> None:
        """Leave this to the next attempt. It is there whole or not at all."""
        target = os.environ.get("PHALANX_CHECKPOINT_OUT")
        if not target:
            return
        folder = Path(target).parent
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(target)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise


checkpoint = _Checkpoint()


def progress(step: int, *, checkpoint: bool = False) -> None:
    """Say how far it is; with `checkpoint`, that the work up to now would survive a stop."""
    path = os.environ.get("PHALANX_PROGRESS")
    if not path:
        return
    said: dict[str, int | bool] = {"step": step}
    if checkpoint:
        said["checkpoint"] = True
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(said) + "\n")


class _Stop:
    """What has become of SIGTERM."""

    def __init__(self) -> None:
        self.is_watched = False
        self.is_told = False
        self.leaves = False
        self.callbacks: list[Callable[[], object]] = []

    def watch(self) -> None:
        if not self.is_watched:
            signal.signal(signal.SIGTERM, self._be_told)
            self.is_watched = True

    def _be_told(self, number: int, frame: FrameType | None) -> None:
        # It is stopping already, and a second one must not end what the first one began.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.is_told = True
        for callback in self.callbacks:
            callback()
        if self.leaves:
            sys.exit(_STOPPED)


_stop = _Stop()


def should_stop() -> bool:
    """Whether it was told to stop. Ask first before the work begins: from then on SIGTERM only
    makes this true, and the program is to save and leave within its grace."""
    _stop.watch()
    return _stop.is_told


def on_stop(callback: Callable[[], object], *, leave: bool = True) -> None:
    """Call this once when it is told to stop, in the main thread, and leave.

    With `leave=False` the program goes on after it, and is to leave by itself, for example when
    `should_stop()` is true. Like any handler of a signal, this is set from the main thread.
    """
    _stop.watch()
    _stop.callbacks.append(callback)
    _stop.leaves = _stop.leaves or leave
