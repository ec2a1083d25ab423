"""For programs that run as tasks: rank, checkpoint, progress, and a request to stop.

Imports only the standard library. A program that Phalanx did not start is rank 0 of 1, and its
checkpoints and progress are discarded.
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
from typing import SupportsFloat

#: The exit status of a program that SIGTERM ended, as shells report it.
_STOPPED_STATUS = 128 + signal.SIGTERM
#: How long the server may be silent while a checkpoint is downloaded.
_DOWNLOAD_S = 60.0


def rank() -> int:
    """The task's rank in its gang, from 0."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """The number of tasks with which the gang started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """The task's rank among the tasks of the gang on the same worker."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def node_rank() -> int:
    """The rank of the task's worker among the workers of the gang."""
    return int(os.environ.get("NODE_RANK", "0"))


def peers() -> list[str]:
    """The hosts of the gang's tasks, in order of rank, with ports if their workers registered some.

    Raises LookupError in a gang of more than 1,000 tasks, which gets no such list.
    """
    hosts = os.environ.get("GANG_PEERS")
    if hosts is not None:
        return hosts.split(",")
    if job() is not None:
        why = f"a gang of {world_size()} tasks has no list of hosts"
        raise LookupError(f"{why}; exchange them through MASTER_ADDR")
    return ["localhost"]


def job() -> str | None:
    """The id of the task's job; None outside of Phalanx."""
    return os.environ.get("PHALANX_JOB")


def role() -> str | None:
    """The name of the task's role; None outside of Phalanx."""
    return os.environ.get("PHALANX_ROLE")


def attempt() -> int:
    """The number of the attempt, as in `phalanx events` and `phalanx logs --attempt`."""
    return int(os.environ.get("PHALANX_ATTEMPT", "1"))


class CheckpointTooLarge(ValueError):  # noqa: N818
    """The checkpoint is larger than the server accepts. Nothing was saved."""


class _Checkpoint:
    """Bytes that one attempt of a task passes to the next."""

    def load(self) -> bytes | None:
        """The bytes that the previous attempt saved, or None.

        Raises OSError if they cannot be read, so that the work does not begin again unnoticed.
        """
        path = os.environ.get("PHALANX_CHECKPOINT_IN")
        if path:
            with contextlib.suppress(FileNotFoundError):
                return Path(path).read_bytes()
        data = os.environ.get("CHECKPOINT_DATA")
        if data:
            return base64.b64decode(data)
        url = os.environ.get("CHECKPOINT_URL", "")
        if not url.startswith(("http://", "https://")):
            return None
        from urllib.request import urlopen  # noqa: PLC0415, it would slow down every start

        with urlopen(url, timeout=_DOWNLOAD_S) as reply:  # noqa: S310
            saved: bytes = reply.read()
        return saved or None

    @property
    def limit(self) -> int | None:
        """The size of the largest checkpoint that can be saved, in bytes; None without a limit."""
        limit = os.environ.get("PHALANX_CHECKPOINT_LIMIT")
        return int(limit) if limit else None

    def save(self, data: bytes) -> None:
        """Save bytes for the next attempt, atomically. They replace those saved before.

        Raises CheckpointTooLarge for more than `limit` bytes, and keeps what was saved before.
        """
        target = os.environ.get("PHALANX_CHECKPOINT_OUT")
        if not target:
            return
        if self.limit is not None and len(data) > self.limit:
            raise CheckpointTooLarge(
                f"the checkpoint has {len(data)} bytes, the limit is {self.limit} bytes (server"
                " setting checkpoint_limit); write the data to a shared file system, and save its"
                " path"
            )
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


def progress(
    step: int, total: int | None = None, *, checkpoint: bool = False, **values: SupportsFloat
) -> None:
    """Report a step, the last step if it is known, and values like `loss=0.25`; with `checkpoint`,
    that the work so far has been saved elsewhere.

    Values are shown by `phalanx job` and `phalanx progress`, and checked by the `watch` rules of
    the job. Anything that `float()` accepts is a value, a tensor of one element too.
    """
    numbers = {name: float(value) for name, value in values.items()}
    path = os.environ.get("PHALANX_PROGRESS")
    if not path:
        return
    report: dict[str, object] = {"step": int(step)}
    if total is not None:
        report["total"] = int(total)
    if checkpoint:
        report["checkpoint"] = True
    if numbers:
        report["values"] = numbers
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(report) + "\n")


def resume_step() -> int | None:
    """After a value was abnormal: the last step saved before it. Later saves must not be used.

    It is the last step that was reported with `progress(step, checkpoint=True)`. None if no value
    was abnormal, or if no step was reported as saved.
    """
    step = os.environ.get("PHALANX_RESUME_STEP")
    return int(step) if step else None


class _Stop:
    """Whether SIGTERM has arrived, and what to do then."""

    def __init__(self) -> None:
        self.is_installed = False
        self.is_requested = False
        self.exits = False
        self.callbacks: list[Callable[[], object]] = []

    def install(self) -> None:
        if not self.is_installed:
            signal.signal(signal.SIGTERM, self._on_sigterm)
            self.is_installed = True

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        # A second SIGTERM must not interrupt the callbacks.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.is_requested = True
        for callback in self.callbacks:
            callback()
        if self.exits:
            sys.exit(_STOPPED_STATUS)


_stop = _Stop()


def should_stop() -> bool:
    """Whether the task was asked to stop.

    Call it once before the work begins: from then on SIGTERM no longer ends the program but makes
    this true, and the program should save and exit within its grace period.
    """
    _stop.install()
    return _stop.is_requested


def on_stop(callback: Callable[[], object], *, leave: bool = True) -> None:
    """Call a function once in the main thread when the task is asked to stop, then exit.

    With `leave=False` the program continues after the call and exits by itself, for example when
    `should_stop()` is true. Call this from the main thread.
    """
    _stop.install()
    _stop.callbacks.append(callback)
    _stop.exits = _stop.exits or leave
