"""What the tasks wrote, read back: one `TaskRun` for each process."""

import json
from pathlib import Path
from typing import Any, NamedTuple


class TaskRun(NamedTuple):
    """One process of a task, from its first line to its last."""

    task: str
    attempt: int
    worker: str
    devices: tuple[str, ...]
    pid: int
    world: int
    resumed: dict[str, Any] | None  #: the checkpoint that it started from
    began_at: float
    last_at: float
    code: int | None  #: with which it exited by itself; None if it was stopped or killed
    lines: tuple[dict[str, Any], ...]

    @property
    def job(self) -> str:
        return self.task.rpartition(".")[0]

    @property
    def is_success(self) -> bool:
        return self.code == 0

    def complaints(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["kind"] == kind]


def read_runs(folder: Path) -> list[TaskRun]:
    """Every process that got as far as its first line, in the order of their starts."""
    runs = [run for path in folder.iterdir() if (run := _read(path)) is not None]
    return sorted(runs, key=lambda run: run.began_at)


def _read(path: Path) -> TaskRun | None:
    lines = []
    for text in path.read_text("utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            break  # it was killed while it wrote
    if not lines:
        return None
    first = lines[0]
    ends = [line["code"] for line in lines if line["kind"] == "end"]
    return TaskRun(
        task=first["task"],
        attempt=first["attempt"],
        worker=first["worker"],
        devices=tuple(first["devices"]),
        pid=first["pid"],
        world=first["world"],
        resumed=first["resumed"],
        began_at=first["at"],
        last_at=lines[-1]["at"],
        code=ends[0] if ends else None,
        lines=tuple(lines),
    )
