"""A server and workers as real processes, and programs on them that end when they are told to."""

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from phalanx.client import Client
from phalanx.wire.jobs import JobDetail
from tests.acceptance.terminal import PATIENCE_S, Server, Terminal, until
from tests.worker_processes import spawner_and_guard, spawner_of


class Fleet:
    """Workers join it one by one. All of it ends with the block."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self._flags = flags
        self._stack = ExitStack()

    def __enter__(self) -> "Fleet":
        self.server = self._stack.enter_context(Server(self.folder, *self._flags))
        self.url = self.server.url
        self.terminal = Terminal(self.url)
        self.client = self._stack.enter_context(Client(self.url))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def work(self, name: str, *flags: str) -> None:
        """A worker that is there when this returns."""
        state = self.folder / name
        process = self.terminal.start("worker", f"--id={name}", f"--state-dir={state}", *flags)
        self._stack.callback(_end, process, state)

        def is_there() -> bool:
            assert process.poll() is None, process.communicate()
            return name in {worker.id for worker in self.client.workers()}

        until(is_there)

    def submit(self, text: str, *flags: str) -> list[str]:
        """The ids of the jobs of a file."""
        said = self.terminal.type("submit", "-f", "-", *flags, stdin=text)
        assert said.status == 0, said.err
        return said.out.split()

    def until(self, job: str, holds: Callable[[JobDetail], object]) -> JobDetail:
        """The job, when this is so."""
        for seen in self.client.watch(job, timeout_s=PATIENCE_S):
            if holds(seen):
                return seen
        raise AssertionError(f"it ended before: {seen}")

    def runs(self, job: str) -> JobDetail:
        return self.until(job, lambda seen: states(seen) == {"running"})

    def waits(self, job: str, why: str) -> JobDetail:
        """When a plan has found that it waits for this reason."""
        seen = self.until(job, lambda seen: seen.reason and seen.reason["type"] == why)
        assert states(seen) <= {"blocked", "pending"}, "nothing of it has started"
        return seen

    def ends(self, job: str) -> JobDetail:
        return self.client.wait(job, timeout_s=PATIENCE_S)

    # What programs do

    @property
    def program(self) -> list[str]:
        """Runs until its job or task may end, or until its task is to fail, which it does once."""
        fail, end = f"{self.folder}/fail-$PHALANX_TASK", f"{self.folder}/end"
        until = f"[ -e {end}-$PHALANX_JOB ] || [ -e {end}-$PHALANX_TASK ]"
        loop = f"until {until}; do [ -e {fail} ] && rm {fail} && exit 1; sleep 0.1; done"
        return ["sh", "-c", loop]

    def fail(self, task: str) -> None:
        (self.folder / f"fail-{task}").touch()

    def end(self, *names: str) -> None:
        """Jobs or tasks."""
        for name in names:
            (self.folder / f"end-{name}").touch()


def files_with(folder: Path, *values: str) -> list[str]:
    """The files below the folder that contain a value. Some may be removed meanwhile."""
    found = []
    for root, _, names in os.walk(folder):  # which ignores folders that are gone
        for path in (Path(root, name) for name in names):
            with suppress(OSError):
                content = path.read_bytes() if path.is_file() else b""
                if any(value.encode() in content for value in values):
                    found.append(str(path))
    return found


def states(job: JobDetail) -> set[str]:
    return {task.state for task in job.tasks}


def _end(process: "subprocess.Popen[str]", state: Path) -> None:
    """The link first: it would begin another spawner. What that runs ends with it."""
    process.kill()
    process.wait()
    spawner = spawner_of(state)
    if spawner is not None:
        os.kill(spawner, signal.SIGKILL)
    until(lambda: not spawner_and_guard(state))
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
