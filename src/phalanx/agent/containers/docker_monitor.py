"""Stands between a container of Docker and the spawner, as conmon does for podman.

It writes the output of the container to its own, and exits with its exit code. The command returns
when the monitor waits in the background, before the container is started. If the daemon is
restarted, the monitor continues with the new one; if it loses the container, it kills itself. It is
run as a file and imports nothing of Phalanx, because it starts with every container.
"""

import json
import os
import signal
import socket
import sys
import time
from typing import Any, NoReturn

#: How long the monitor waits for a daemon that does not answer.
_DAEMON_S = 60.0
#: What a container writes while no monitor is connected is lost.
_AGAIN_S = 0.1
_MOST_BYTES = 1 << 20
_FRAME_BYTES = 8
_SIZE = slice(4, 8)


class DaemonError(Exception):
    """The daemon does not answer, or refuses; the message says why."""


class Request:
    """A request to the daemon, up to the head of its answer. Raises DaemonError, OSError."""

    def __init__(self, path: str, method: str, target: str, *options: str) -> None:
        self.stream = socket.socket(socket.AF_UNIX)
        # With HTTP/1.0 an answer ends with its connection.
        version = "1.1" if options else "1.0"
        lines = [f"{method} {target} HTTP/{version}", "Host: docker", *options, "Content-Length: 0"]
        try:
            self.stream.connect(path)
            self.stream.sendall("\r\n".join([*lines, "", ""]).encode())
        except OSError as error:
            raise DaemonError(f"the Docker daemon does not answer: {error.strerror}") from None
        head = b""
        while not head.endswith(b"\r\n\r\n"):  # byte by byte: what follows is not for us
            byte = self.stream.recv(1)
            if not byte:
                raise DaemonError("the Docker daemon closed the connection")
            head += byte
        status = head.split(b" ", 2)[1]
        if status not in (b"101", b"200"):
            raise DaemonError(f"the Docker daemon answered: {self.rest()}")

    def rest(self) -> str:
        """The rest of the answer."""
        data = b""
        while part := self.stream.recv(_MOST_BYTES):
            data += part
        return data.decode(errors="replace").strip()

    def json(self) -> dict[str, Any]:
        """Raises DaemonError if the answer is cut off."""
        try:
            answer: dict[str, Any] = json.loads(self.rest())
        except ValueError:
            raise DaemonError("the Docker daemon closed the connection") from None
        return answer


class ContainerMonitor:
    def __init__(self, path: str, name: str, *, condition: str) -> None:
        """Connect to the output of a container and wait for its end. Raises DaemonError."""
        target = f"/containers/{name}"
        streams = f"{target}/attach?stream=1&stdout=1&stderr=1"
        self._output = Request(path, "POST", streams, "Connection: Upgrade", "Upgrade: tcp")
        self._end = Request(path, "POST", f"{target}/wait?condition={condition}")

    def exit_code(self) -> int:
        """Copy the output of the container, then return its exit code.

        Raises DaemonError, OSError.
        """
        stream = self._output.stream
        while len(head := stream.recv(_FRAME_BYTES, socket.MSG_WAITALL)) == _FRAME_BYTES:
            left = int.from_bytes(head[_SIZE], "big")
            while left and (moved := os.splice(stream.fileno(), 1, left)):
                left -= moved
        return int(self._end.json()["StatusCode"])


def _monitor_again(path: str, name: str) -> int:
    """The exit code of a container after the daemon was restarted. Raises DaemonError, OSError."""
    state = Request(path, "GET", f"/containers/{name}/json").json()["State"]
    if state["Status"] == "created":
        _give_up()
    if not state["Running"]:
        return int(state["ExitCode"])
    return ContainerMonitor(path, name, condition="not-running").exit_code()


def _give_up() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("bug: it was killed")


def _watch(monitor: ContainerMonitor, path: str, name: str) -> NoReturn:
    lost_at = None
    while True:
        try:
            os._exit(monitor.exit_code() if lost_at is None else _monitor_again(path, name))
        except BrokenPipeError:
            _give_up()  # the spawner reads no output any more
        except (DaemonError, OSError, KeyError, ValueError):
            lost_at = lost_at or time.monotonic()
            if time.monotonic() > lost_at + _DAEMON_S:
                _give_up()
            time.sleep(_AGAIN_S)


def main(path: str, name: str, pid_file: str) -> None:
    try:
        monitor = ContainerMonitor(path, name, condition="next-exit")
        pid = os.fork()
        if pid == 0:
            _watch(monitor, path, name)
        with open(pid_file, "w", encoding="ascii") as file:  # noqa: PTH123 - pathlib loads slowly
            file.write(str(pid))
    except (DaemonError, OSError) as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
