"""The bytes a task is given by its last attempt, and those it leaves for the next one."""

import base64
from pathlib import Path
from urllib.parse import quote

from phalanx.agent.link.leader_client import LeaderClient
from phalanx.agent.messages import Key
from phalanx.agent.state_dir import StateDir

#: Larger ones do not fit into a variable, with its name and as base64; they are in the file only.
_INLINE_BYTES = 96 * 1024 - 16
_SECONDS = 120.0


class Refused(Exception):  # noqa: N818
    """The server does not take it, or does not have it; asking again would not help."""


class Checkpoints:
    def __init__(self, servers: LeaderClient, places: StateDir) -> None:
        self._servers = servers
        self._places = places

    async def fetch(self, key: Key) -> dict[str, str]:
        """Put the last checkpoint into its file; the variables that tell of it.

        Raises Unreachable, Refused.
        """
        answer = await self._servers.call("GET", _path(key[0]), seconds=_SECONDS)
        if answer.status != 200:
            raise Refused(f"the checkpoint of {key[0]} cannot be had: {answer.status}")
        path = self._places.checkpoint_in(key)
        path.write_bytes(answer.body)
        variables = {"PHALANX_CHECKPOINT_IN": str(path)}
        if len(answer.body) <= _INLINE_BYTES:
            variables["CHECKPOINT_DATA"] = base64.b64encode(answer.body).decode()
        return variables

    def left_by(self, key: Key) -> Path | None:
        """What a task that has ended left for its next attempt, if it did."""
        path = self._places.checkpoint_out(key)
        try:
            return path if path.stat().st_size else None
        except OSError:
            return None

    async def save(self, key: Key, path: Path) -> None:
        """Raises Unreachable, Refused."""
        answer = await self._servers.call(
            "POST",
            f"{_path(key[0])}?epoch={key[1]}",
            path.read_bytes(),
            seconds=_SECONDS,
            media="application/octet-stream",
        )
        if answer.status != 200:
            raise Refused(f"{answer.status}: {answer.body.decode(errors='replace')[:300]}")


def _path(task: str) -> str:
    return f"/jobs/{quote(task)}/checkpoint"
