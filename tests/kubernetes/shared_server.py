"""Servers that all processes of a test run share. They end with the last process that uses them.

A supervisor process owns each server. Every user holds a shared lock on a file for as long as it
lives, and the supervisor waits for the exclusive lock. The kernel releases the lock of a process
that is killed, so nothing remains after a run that was killed.

`python -m tests.kubernetes.shared_server KIND FOLDER` is such a supervisor.
"""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from tests.kubernetes.binaries import CONTROL_PLANE, KWOK, ROOT
from tests.kubernetes.control_plane import (
    ApiServer,
    ControlPlane,
    start_controllers,
    start_kwok,
    start_scheduler,
)

#: The locks of this process; the operating system releases them when it ends, however it ends.
_held: list[IO[str]] = []


def shared_api_server(folder: Path) -> ApiServer:
    """The run's API server, with the files of the run in the folder."""
    ready = _join("api-server", folder)
    return msgspec.json.decode(ready.read_bytes(), type=ApiServer)


def shared_server(kind: str, api: ApiServer) -> None:
    """Start `controllers`, `scheduler` or `kwok` beside the API server, unless it runs."""
    _join(kind, Path(api.folder))


def _join(kind: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    ready = folder / f"{kind}.ready"
    with (folder / f"{kind}.start").open("w") as start:
        fcntl.flock(start, fcntl.LOCK_EX)
        users = (folder / f"{kind}.users").open("w")
        fcntl.flock(users, fcntl.LOCK_SH)  # waits for a supervisor that is just ending
        _held.append(users)
        if _is_free(folder / f"{kind}.runs"):
            ready.unlink(missing_ok=True)
            _start_supervisor(kind, folder, ready)
    return ready


def _is_free(path: Path) -> bool:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _start_supervisor(kind: str, folder: Path, ready: Path) -> None:
    log = folder / f"{kind}.supervisor.log"
    command = ["setsid", "--fork", sys.executable, "-m", __name__, kind, str(folder)]
    with log.open("w") as output:
        # Returns when the supervisor closes its standard output: the server is ready, or failed.
        subprocess.run(  # noqa: S603
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            check=True,
        )
    if not ready.exists():
        raise RuntimeError(f"{kind} did not start:\n{log.read_text()[-3000:]}")


def supervise(kind: str, folder: Path) -> None:
    """Run the server until the last user is gone."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with (folder / f"{kind}.runs").open("w") as runs, (folder / f"{kind}.users").open("w") as users:
        fcntl.flock(runs, fcntl.LOCK_EX)
        ready, stop = _start(kind, folder)
        try:
            unfinished = folder / f"{kind}.unfinished"
            unfinished.write_bytes(ready)
            unfinished.replace(folder / f"{kind}.ready")
            with Path(os.devnull).open("w") as devnull:
                os.dup2(devnull.fileno(), sys.stdout.fileno())
            fcntl.flock(users, fcntl.LOCK_EX)
        finally:
            stop()


def _start(kind: str, folder: Path) -> tuple[bytes, Callable[[], None]]:
    if kind == "api-server":
        instance = folder / f"control-plane-{len(list(folder.glob('control-plane-*')))}"
        plane = ControlPlane(CONTROL_PLANE.path, instance)
        return msgspec.json.encode(plane.address), plane.stop
    api = msgspec.json.decode((folder.parent / "api-server.ready").read_bytes(), type=ApiServer)
    match kind:
        case "controllers":
            process = start_controllers(CONTROL_PLANE.path, api, folder)
        case "scheduler":
            process = start_scheduler(CONTROL_PLANE.path, api, folder)
        case "kwok":
            process = start_kwok(KWOK.path, api, folder)
        case _:
            raise ValueError(f"no shared server is called {kind}")
    return b"", process.kill


if __name__ == "__main__":
    supervise(sys.argv[1], Path(sys.argv[2]))
