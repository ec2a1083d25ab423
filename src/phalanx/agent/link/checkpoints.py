"""Checkpoint transfers: a task gets the one that its last attempt saved, and may save another."""

import asyncio
import base64
from urllib.parse import quote

from phalanx.agent.link.attempt_problems import AttemptProblems
from phalanx.agent.link.http_client import BodyUnreadable, FileBody, HttpReply
from phalanx.agent.link.leader_client import LeaderClient, Unreachable
from phalanx.agent.messages import AttemptKey, AttemptStatus
from phalanx.agent.state_dir import CHECKPOINT_IN, CHECKPOINT_OUT, StateDir
from phalanx.agent.task_files import TaskFile, UnusableFile
from phalanx.core.spec.quantities import size_text

#: A checkpoint that is larger, in base64 and with the variable's name, is passed in the file only.
_INLINE_BYTES = 96 * 1024 - 16
_CALL_S = 120.0
_RETRY_S = 0.5


class CheckpointRefused(Exception):  # noqa: N818
    """The checkpoint cannot be saved, or the server has none; a retry would not help."""


class Checkpoints:
    """Both transfers are retried until the server answers."""

    def __init__(self, server: LeaderClient, state_dir: StateDir) -> None:
        self._server = server
        self._state_dir = state_dir
        self.limit_bytes = 0  #: the largest checkpoint that the server takes; set by each sync

    async def fetch(self, key: AttemptKey) -> dict[str, str]:
        """Write the last checkpoint to the attempt's file; return the variables that refer to it.

        Raises CheckpointRefused, OSError.
        """
        reply = await self._call("GET", _path(key[0]))
        if reply.status != 200:
            raise CheckpointRefused(
                f"the server has no checkpoint for {key[0]} (status {reply.status})"
            )
        self._state_dir.write_task_file(key, CHECKPOINT_IN, reply.body)
        variables = {"PHALANX_CHECKPOINT_IN": self._state_dir.task_file(key, CHECKPOINT_IN)}
        if len(reply.body) <= _INLINE_BYTES:
            variables["CHECKPOINT_DATA"] = base64.b64encode(reply.body).decode()
        return variables

    def written(self, key: AttemptKey) -> TaskFile | None:
        """The checkpoint that an attempt has written, to be closed; None if there is none.

        Raises CheckpointRefused.
        """
        try:
            file = self._state_dir.open_task_file(key, CHECKPOINT_OUT)
        except FileNotFoundError:
            if not self._state_dir.attempt(key).exists():
                raise CheckpointRefused("the folder of the task was removed") from None
            return None
        except UnusableFile as error:
            raise CheckpointRefused(f"it {error}; write a file to PHALANX_CHECKPOINT_OUT") from None
        if file.size_bytes:
            return file
        file.close()
        return None

    async def save(self, key: AttemptKey, file: TaskFile) -> None:
        """Send the checkpoint that an attempt has written. Raises CheckpointRefused."""
        if self.limit_bytes and file.size_bytes > self.limit_bytes:
            raise CheckpointRefused(too_large(file.size_bytes, self.limit_bytes))
        body = FileBody(file.read, file.size_bytes)
        try:
            reply = await self._call("POST", f"{_path(key[0])}?epoch={key[1]}&stopped=true", body)
        except BodyUnreadable as error:
            raise CheckpointRefused(f"it cannot be read: {error}") from None
        if reply.status != 200:
            text = reply.body.decode(errors="replace")[:200]
            raise CheckpointRefused(f"the server refused it with status {reply.status}: {text}")

    async def _call(self, method: str, path: str, body: bytes | FileBody = b"") -> HttpReply:
        while True:
            try:
                return await self._server.call(
                    method, path, body, timeout_s=_CALL_S, media_type="application/octet-stream"
                )
            except Unreachable:
                await asyncio.sleep(_RETRY_S)


def too_large(size_bytes: int, limit_bytes: int) -> str:
    size, limit = size_text(size_bytes), size_text(limit_bytes)
    if size == limit:
        size, limit = f"{size_bytes} bytes", f"{limit_bytes} bytes"
    return f"{size}, the limit is {limit}"


class CheckpointSaver:
    """Saves the checkpoints of attempts that have ended, and reports what prevents it."""

    def __init__(self, checkpoints: Checkpoints, problems: AttemptProblems) -> None:
        self._checkpoints = checkpoints
        self._problems = problems

    def open(self, status: AttemptStatus) -> TaskFile | None:
        """The checkpoint of an attempt that was asked to stop; a checkpoint counts only then."""
        with self._problems.contained(status.key, "open the checkpoint"):
            try:
                file = self._checkpoints.written(status.key)
            except CheckpointRefused as error:
                self._not_saved(status.key, error)
                return None
            if file is None or status.signalled:
                return file
            file.close()
        return None

    async def save(self, key: AttemptKey, file: TaskFile) -> None:
        """Send the checkpoint to the server, and close its file."""
        try:
            with self._problems.contained(key, "save the checkpoint"):
                try:
                    await self._checkpoints.save(key, file)
                except CheckpointRefused as error:
                    self._not_saved(key, error)
        finally:
            file.close()

    def _not_saved(self, key: AttemptKey, error: CheckpointRefused) -> None:
        self._problems.report(key, f"checkpoint not saved: {error}")


def _path(task: str) -> str:
    return f"/jobs/{quote(task)}/checkpoint"
