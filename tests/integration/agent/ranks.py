"""A gang whose ranks record their starts, so that a test can see which ones ran at the same time.

Each rank, with all processes it starts, holds a lock file for as long as it lives.
"""

import fcntl
import os
from pathlib import Path
from typing import Any, NamedTuple

from tests.integration.agent.machines import Fleet
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.worker_processes import environment_of, is_alive

_LOCK = """
exec 9>>"$MARKS/lock.$RANK"
flock -n 9 || { echo "$PHALANX_TASK $PHALANX_ATTEMPT" >>"$MARKS/doubles"; exit 99; }
"""
_STARTED = """
echo "$RANK $PHALANX_ATTEMPT $$" >>"$MARKS/starts"
"""
#: Works until the test creates the file `finish`.
WORK = 'while [ ! -e "$MARKS/finish" ]; do sleep 0.1; done'


class Start(NamedTuple):
    rank: int
    epoch: int
    pid: int


class Ranks:
    def __init__(self, fleet: Fleet, marks: Path, size: int = 8) -> None:
        self._fleet = fleet
        self.marks = marks
        self.size = size
        self.job = ""
        marks.mkdir()

    async def submit(self, body: str = WORK, prepare: str = "", **job: Any) -> str:
        """Submit the gang; a rank counts as started once it has run `prepare`."""
        role = {
            "replicas": self.size,
            "command": _LOCK + prepare + _STARTED + body,
            "env": {"MARKS": str(self.marks)},
            "resources": {"gpu": 1},
        }
        defaults: dict[str, Any] = {"grace": "5s", "backoff": "1s"}
        self.job = await self._fleet.submit(
            **{"name": self.marks.name, "roles": {"worker": role}} | defaults | job
        )
        return self.job

    def starts(self, epoch: int | None = None) -> list[Start]:
        path = self.marks / "starts"
        lines = path.read_text().splitlines() if path.exists() else []
        starts = [Start(*map(int, line.split())) for line in lines]
        return [start for start in starts if epoch in (None, start.epoch)]

    async def all_run(self, epoch: int, seconds: float = PATIENCE_S) -> list[Start]:
        """Wait until every rank has started in this epoch and the server knows it."""
        await self.all_started(epoch, seconds)
        await self._fleet.reach(self.job, "running")
        return sorted(self.starts(epoch))

    async def all_started(self, epoch: int, seconds: float = PATIENCE_S) -> None:
        """Wait until every rank has started in this epoch; some may have ended by then."""

        async def started() -> bool:
            return len(self.starts(epoch)) == self.size

        def state() -> str:
            return f"{self.starts()}\n{self._fleet.server.told()}"

        await eventually(started, seconds, state)

    async def finish(self) -> dict[str, Any]:
        (self.marks / "finish").touch()
        job = await self._fleet.reach(self.job, "done")
        await self.are_gone()
        return job

    async def are_gone(self) -> None:
        """Wait until no process of the gang lives; fail if a rank ever ran twice at once."""

        async def free() -> bool:
            return not any(_is_held(path) for path in self.marks.glob("lock.*"))

        await eventually(free, PATIENCE_S, lambda: f"still alive: {self.living()}")
        assert not self.living()
        assert not (self.marks / "doubles").exists(), (self.marks / "doubles").read_text()

    def living(self) -> list[Start]:
        return [start for start in self.starts() if is_alive(start.pid) and self._is_of(start)]

    def _is_of(self, start: Start) -> bool:
        """Whether the process id has not been given to another process meanwhile."""
        own = {f"MARKS={self.marks}", f"PHALANX_ATTEMPT={start.epoch}"}
        return own <= environment_of(start.pid)

    async def kinds(self) -> list[str]:
        return [event["kind"] for event in await self._fleet.events(self.job)]


def _is_held(path: Path) -> bool:
    file = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
