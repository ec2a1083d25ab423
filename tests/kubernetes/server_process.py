"""A server process that does not outlive the process that started it."""

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

#: Longer than any server takes on a busy machine.
START_S = 120
_STOP_S = 60
_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class ServerDiedError(Exception):
    """The server ended before it was ready; the message has the end of its log."""


class ServerProcess:
    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Return when the server is ready. Raises ServerDiedError."""
        deadline = time.monotonic() + START_S
        while not is_ready():
            if self.ends_within(0.02) or time.monotonic() > deadline:
                self.stop()
                end = self.log.read_bytes()[-2000:].decode(errors="replace")
                raise ServerDiedError(f"{self._process.args!r} is not ready:\n{end}")

    def ends_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Let the server end, or kill it; its exit status."""
        self._process.terminate()
        if not self.ends_within(_STOP_S):
            self.kill()
        return self._process.returncode


def answers(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def _die_with_parent() -> None:
    _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL)
