"""mpirun over a gang: rank 0 runs it, and the others start on their hosts what it asks for.

Open MPI starts a daemon on every host through a remote shell. Here this program is that shell: it
hands the daemon's command to the rank that waits on that host, so that what runs there is a child
of that rank's task, with its devices, and is stopped with it. Workers need Open MPI, and addresses
by which mpirun can tell them apart; those it takes for its own machine it serves by itself.
"""

import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from phalanx import task

WAIT_S = 30.0
#: Where the shell finds the launcher that mpirun belongs to.
LAUNCHER = "LAUNCHER"


class Line:
    """A connection on which one JSON value after another is passed."""

    def __init__(self, call: socket.socket) -> None:
        self._call = call
        self._lines = call.makefile("rb")

    def send(self, what: object) -> None:
        self._call.sendall(json.dumps(what).encode() + b"\n")

    def receive(self) -> Any:
        line = self._lines.readline()
        if not line:
            raise ConnectionError("the other side has hung up")
        return json.loads(line)


def launch(program: list[str]) -> int:
    """On rank 0: mpirun, with one process for each rank of the gang."""
    peers = task.peers()
    at = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    with socket.create_server(at, backlog=len(peers)) as door:
        lines = [Line(door.accept()[0]) for _ in peers[1:]]
    waiting = {peers[line.receive()]: line for line in lines}
    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder) / "launcher")
        with socket.create_server(place, family=socket.AF_UNIX) as door:
            threading.Thread(target=answer, args=(door, waiting), daemon=True).start()
            shell = shlex.join([sys.executable, str(Path(__file__).resolve())])
            hosts = ",".join(f"{host}:{peers.count(host)}" for host in dict.fromkeys(peers))
            flags = ["--mca", "plm_rsh_agent", shell, "--mca", "plm_rsh_no_tree_spawn", "1"]
            command = ["mpirun", *flags, "-H", hosts, "-n", str(len(peers)), *program]
            status = subprocess.call(command, env=os.environ | {LAUNCHER: place})  # noqa: S603
    for line in lines:
        line.send(None)
    return status


def answer(door: socket.socket, waiting: dict[str, Line]) -> None:
    """Have run what shells ask for, each on its host."""
    while True:
        line = Line(door.accept()[0])
        threading.Thread(target=relay, args=(line, waiting), daemon=True).start()


def relay(line: Line, waiting: dict[str, Line]) -> None:
    host, command = line.receive()
    if host in waiting:
        waiting[host].send(command)
        line.send(waiting[host].receive())
    else:
        line.send(run(command))


def run(command: str) -> int:
    return subprocess.call(["/bin/sh", "-c", command])  # noqa: S603


def shell(host: str, command: str) -> int:
    """In the place of ssh: run this on that host."""
    with socket.socket(socket.AF_UNIX) as call:
        call.connect(os.environ[LAUNCHER])
        line = Line(call)
        line.send([host, command])
        return int(line.receive())


def wait() -> int:
    """On the other ranks: run what rank 0 asks for, until it is done."""
    line = Line(connection())
    line.send(task.rank())
    while (command := line.receive()) is not None:
        line.send(run(command))
    return 0


def connection() -> socket.socket:
    """To rank 0, which may not listen yet."""
    at = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    until = time.monotonic() + WAIT_S
    while True:
        try:
            return socket.create_connection(at)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def main(words: list[str]) -> int:
    if LAUNCHER in os.environ:
        host, *command = words
        return shell(host, " ".join(command))
    return wait() if task.rank() else launch(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
