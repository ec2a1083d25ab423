"""Checkpoint transfers: a task gets the one that its last attempt saved, and may save another."""

import asyncio
import base64
from pathlib import Path
from urllib.parse import quote

from phalanx.agent.link.http_client import HttpReply
from phalanx.agent.link.leader_client import LeaderClient, Unreachable
from phalanx.agent.messages import AttemptKey
from phalanx.agent.state_dir import StateDir

#: A checkpoint that is larger, in base64 and with the variable's name, is passed in the file only.
_INLINE_BYTES = 96 * 1024 - 16
_CALL_S = 120.0
_RETRY_S = 0.5


class CheckpointRefused(Exception):  # noqa: N818
    """The server refused the checkpoint, or does not have it; a retry would not help."""


class Checkpoints:
    """Both transfers are retried until the server answers."""

    def __init__(self, server: LeaderClient, state_dir: StateDir) -> None:
        self._server = server
        self._state_dir = state_dir

    async def fetch(self, key: AttemptKey) -> dict[str, str]:
        """Write the last checkpoint to the attempt's file; return the variables that refer to it.

        Raises CheckpointRefused, OSError.
        """
        reply = await self._call("GET", _path(key[0]))
        if reply.status != 200:
            raise CheckpointRefused(
                f"the server has no checkpoint for {key[0]} (status {reply.status})"
            )
        path = self._state_dir.checkpoint_in(key)
        path.write_bytes(reply.body)
        variables = {"PHALANX_CHECKPOINT_IN": str(path)}
        if len(reply.body) <= _INLINE_BYTES:
            variables["CHECKPOINT_DATA"] = base64.b64encode(reply.body).decode()
        return variables

    def is_written(self, key: AttemptKey) -> bool:
        """Whether an attempt has written a checkpoint for the next one."""
        try:
            return self._path_out(key).stat().st_size > 0
        except OSError:
            return False

    async def save(self, key: AttemptKey) -> None:
        """Send the checkpoint that an attempt has written. Raises CheckpointRefused, OSError."""
        data = self._path_out(key).read_bytes()
        reply = await self._call("POST", f"{_path(key[0])}?epoch={key[1]}", data)
        if reply.status != 200:
            text = reply.body.decode(errors="replace")[:300]
            raise CheckpointRefused(f"status {reply.status}: {text}")

    def _path_out(self, key: AttemptKey) -> Path:
        return self._state_dir.checkpoint_out(key)

    async def _call(self, method: str, path: str, body: bytes = b"") -> HttpReply:
        while True:
            try:
                return await self._server.call(
                    method, path, body, timeout_s=_CALL_S, media_type="application/octet-stream"
                )
            except Unreachable:
                await asyncio.sleep(_RETRY_S)


def _path(task: str) -> str:
    return f"/jobs/{quote(task)}/checkpoint"
