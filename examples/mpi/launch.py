"""mpirun in a gang: rank 0 runs it, and the other ranks start Open MPI's daemons on their hosts.

Open MPI starts a daemon on every host with a remote shell, and this program acts as that shell. It
passes the daemon's command to the rank on that host, so that the daemon belongs to that rank's
task, uses its devices and is stopped with it. Workers need Open MPI and distinct addresses: mpirun
starts the processes of its own address without a shell.
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

TIMEOUT_S = 30.0
#: The environment variable with the address of the launcher.
LAUNCHER = "LAUNCHER"


class Channel:
    """A connection that carries JSON values, one per line."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = connection.makefile("rb")

    def send(self, value: object) -> None:
        self._connection.sendall(json.dumps(value).encode() + b"\n")

    def receive(self) -> Any:
        line = self._reader.readline()
        if not line:
            raise ConnectionError("the other side closed the connection")
        return json.loads(line)


def launch(program: list[str]) -> int:
    """On rank 0: run mpirun with one process per rank of the gang."""
    peers = task.peers()
    master = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    with socket.create_server(master, backlog=len(peers)) as listener:
        accepted = [Channel(listener.accept()[0]) for _ in peers[1:]]
    channels = {peers[channel.receive()]: channel for channel in accepted}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        address = str(Path(folder) / "launcher")
        with socket.create_server(address, family=socket.AF_UNIX) as listener:
            arguments = (listener, channels, folder)
            threading.Thread(target=answer, args=arguments, daemon=True).start()
            shell = shlex.join([sys.executable, str(Path(__file__).resolve())])
            hosts = ",".join(f"{host}:{peers.count(host)}" for host in dict.fromkeys(peers))
            flags = ["--mca", "plm_rsh_agent", shell, "--mca", "plm_rsh_no_tree_spawn", "1"]
            command = ["mpirun", *flags, "-H", hosts, "-n", str(len(peers)), *program]
            status = subprocess.call(command, env=os.environ | {LAUNCHER: address})  # noqa: S603
    for channel in accepted:
        channel.send(None)
    return status


def answer(listener: socket.socket, channels: dict[str, Channel], folder: str) -> None:
    """Pass each command from a shell to the rank on its host."""
    while True:
        channel = Channel(listener.accept()[0])
        threading.Thread(target=relay, args=(channel, channels, folder), daemon=True).start()


def relay(channel: Channel, channels: dict[str, Channel], folder: str) -> None:
    host, command = channel.receive()
    if host in channels:
        channels[host].send(command)
        channel.send(channels[host].receive())
    else:
        channel.send(run(command, folder))


def run(command: str, folder: str) -> int:
    """Run a daemon with temporary files of its own: workers that share a host share its /tmp."""
    environment = os.environ | {"TMPDIR": folder}
    return subprocess.call(["/bin/sh", "-c", command], env=environment)  # noqa: S603


def shell(host: str, command: str) -> int:
    """Run a command on a host, as ssh would."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[LAUNCHER])
        channel = Channel(connection)
        channel.send([host, command])
        return int(channel.receive())


def wait() -> int:
    """On the other ranks: run the commands of rank 0 until it is done."""
    channel = Channel(connect())
    channel.send(task.rank())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        while (command := channel.receive()) is not None:
            channel.send(run(command, folder))
    return 0


def connect() -> socket.socket:
    """A connection to rank 0, which may not listen yet."""
    master = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return socket.create_connection(master)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def main(arguments: list[str]) -> int:
    if LAUNCHER in os.environ:
        host, *command = arguments
        return shell(host, " ".join(command))
    return wait() if task.rank() else launch(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
