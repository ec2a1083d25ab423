"""The program of every task: works in steps, and writes down what it is and that it lives.

It runs with `python -I -S` and imports nothing of Phalanx. Its lines are the only evidence that the
checker accepts. Locks that it holds while it lives show at once if something runs twice.
"""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

_STEP_S = 0.25
_STOPPED_STATUS = 143


class Program:
    def __init__(self) -> None:
        env = os.environ
        self.folder = Path(env["CHAOS_DIR"])
        self.task, self.attempt = env["PHALANX_TASK"], int(env["PHALANX_ATTEMPT"])
        self.job, _, index = self.task.rpartition(".")
        self.index = int(index)
        self.worker = Path(env["PHALANX_PROGRESS"]).relative_to(self.folder).parts[0]
        self.devices = [d for d in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if d]
        self.steps = int(env["CHAOS_STEPS"]) + self.index * int(env["CHAOS_STAGGER"])
        self.step = 0
        self.is_stopping = False
        name = f"{self.task}.{self.attempt}.{os.getpid()}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(self.folder / "journal" / name, flags, 0o644)
        self._locks: list[int] = []

    def write(self, kind: str, **fields: object) -> None:
        line = {"kind": kind, "at": time.clock_gettime(time.CLOCK_BOOTTIME), **fields}
        os.write(self._file, (json.dumps(line) + "\n").encode())

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._on_sigterm)
        saved = self._load()
        self.write(
            "start",
            task=self.task,
            attempt=self.attempt,
            worker=self.worker,
            devices=self.devices,
            pid=os.getpid(),
            world=int(os.environ["WORLD_SIZE"]),
            resumed=saved,
        )
        self._lock_all()
        while self.step < self.steps:
            if self.is_stopping:
                self._save()
                self.write("stop", step=self.step)
                return _STOPPED_STATUS
            time.sleep(_STEP_S)
            self.step += 1
            self.write("beat", step=self.step)
        code = int(os.environ.get("CHAOS_CODE", "0"))
        self.write("end", code=code)
        return code

    def _on_sigterm(self, *_: object) -> None:
        self.is_stopping = True

    # Locks

    def _lock_all(self) -> None:
        if not self._lock(f"{self.job}/task.{self.index}"):
            self.write("double", what="task")
        for device in self.devices:
            if not self._lock(f"devices/{self.worker}.{device}"):
                self.write("double", what=f"device {device} of {self.worker}")
        self._lock(f"{self.job}/attempt.{self.attempt}.{self.index}", fcntl.LOCK_EX)
        if os.environ["CHAOS_RESTART"] == "gang":
            for path in (self.folder / "locks" / self.job).glob("attempt.*"):
                other = int(path.name.split(".")[1])
                if other != self.attempt and _is_held(path):
                    self.write("mixed", other=other)

    def _lock(self, name: str, how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> bool:
        path = self.folder / "locks" / name
        path.parent.mkdir(exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._locks.append(file)
        try:
            fcntl.flock(file, how)
        except BlockingIOError:
            return False
        return True

    # Checkpoints

    def _load(self) -> dict[str, object] | None:
        path = os.environ.get("PHALANX_CHECKPOINT_IN")
        if not path or not Path(path).exists():
            return None
        saved: dict[str, object] = json.loads(Path(path).read_bytes())
        self.step = int(str(saved["step"]))
        return saved

    def _save(self) -> None:
        if os.environ["CHAOS_CHECKPOINT"] == "none":
            return
        state = {"task": self.task, "attempt": self.attempt, "step": self.step}
        target = Path(os.environ["PHALANX_CHECKPOINT_OUT"])
        try:
            temporary = target.with_name(target.name + ".tmp")
            temporary.write_text(json.dumps(state), "utf-8")
            temporary.replace(target)
        except OSError as error:
            self.write("unsaved", error=str(error))


def _is_held(path: Path) -> bool:
    """Whether a process has locked the file. Processes that ask at the same time share the lock."""
    file = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


if __name__ == "__main__":
    sys.exit(Program().run())
