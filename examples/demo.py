"""From nothing to a gang that survives `kill -9`, in one command: `make demo`.

Everything is real: a server on a SQLite file, four workers, a gang of four processes that need each
other, and the SIGKILL. Only the GPUs are pretended. What is told are the job's own events and
output, as they come. Nothing is left behind.
"""

import os
import queue
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import phalanx
from phalanx.cli.event_text import sentence
from phalanx.client import PhalanxError

if TYPE_CHECKING:
    from phalanx.client import Client

ROOT = Path(__file__).parents[1]
JOB_FILE = Path("examples/ring/job.yaml")
WORKERS, GPUS = 4, 2
VICTIM, KILL_AT = 2, "step 20 "
READY_S = 60.0


@contextmanager
def cluster(folder: Path) -> Iterator["Client"]:
    """`phalanx up` on a free port, until the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = [f"--workers={WORKERS}", f"--gpus={GPUS}", f"--port={port}", f"--data={folder}"]
    # Two demos at a time must not meet, nor a demo and a cluster that is here already.
    first = random.randrange(20_000, 29_000)  # noqa: S311
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = {"PATH": path, "PHALANX_PORTS": f"{first}-{first + 100}"}
    log = folder / "log"
    with log.open("wb") as heard:
        up = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "phalanx.cli", "up", *flags],
            stdout=heard,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=os.environ | given,
        )
    try:
        with phalanx.Client(f"http://127.0.0.1:{port}") as client:
            wait_for_workers(client, up, log)
            yield client
    finally:
        up.terminate()
        up.wait()


def wait_for_workers(client: "Client", up: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + READY_S
    while True:
        try:
            if len(client.workers()) == WORKERS:
                return
        except PhalanxError:
            pass  # the server is not there yet
        if up.poll() is not None or time.monotonic() > until:
            sys.exit(f"no cluster came up:\n{log.read_text()}")
        time.sleep(0.05)


def events(client: "Client", job: str) -> Iterator[str]:
    for event in client.events(job, follow=True):
        yield f"{event.time:%H:%M:%S}  {sentence(event)}"


def output(client: "Client", job: str) -> Iterator[str]:
    """Once rank 0 is far enough, another rank dies."""
    process: int | None = None
    for line in client.logs(job, follow=True):
        yield f"            {line}"
        found = re.search(rf"rank {VICTIM} is process (\d+), attempt 1$", line)
        process = int(found[1]) if found else process
        if KILL_AT in line and process is not None:
            yield f"\n$ kill -9 {process}    # rank {VICTIM}\n"
            os.kill(process, signal.SIGKILL)
            process = None


def tell(*stories: Iterator[str]) -> None:
    """Several stories as one, each line when it comes."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def listen(story: Iterator[str]) -> None:
        try:
            for line in story:
                lines.put(line)
        finally:
            lines.put(None)

    for story in stories:
        threading.Thread(target=listen, args=(story,), daemon=True).start()
    for _ in stories:
        while (line := lines.get()) is not None:
            say(line)


def say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    began = time.monotonic()
    say(f"$ phalanx up --workers {WORKERS} --gpus {GPUS}")
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder)) as client:
        say(f"a server and {WORKERS} workers run, each with {GPUS} pretended GPUs\n")
        say(f"$ phalanx submit -f {JOB_FILE}")
        job = client.submit((ROOT / JOB_FILE).read_text()).id
        say(f"{job}\n\n$ phalanx events -f ring & phalanx logs -f ring")
        tell(events(client, job), output(client, job))
        phase = client.get(job).phase
    took = time.monotonic() - began
    say(f"\nThe job is {phase}, after {took:.0f} s in all. Nothing is left of the cluster.\n")
    say("Now you. Type this, and kill what you like while it runs:\n")
    say("  . .venv/bin/activate")
    say(f"  phalanx up --workers {WORKERS} --gpus {GPUS}")
    say(f"  phalanx submit -f {JOB_FILE} --follow    # in another terminal")
    return 0 if phase == "done" else 1


if __name__ == "__main__":
    sys.exit(main())
