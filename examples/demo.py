"""A gang that survives `kill -9`, from nothing, in one command: `make demo`.

The server, its SQLite file, the four workers, the four processes of the gang and the SIGKILL are
real. Only the GPUs are simulated. The demo prints the job's own events and output, and removes
everything when it ends.
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

from rich.console import Console
from rich.text import Text

import phalanx
from phalanx.client import PhalanxError
from phalanx.core import records
from phalanx.wire.event_text import sentence

if TYPE_CHECKING:
    from phalanx.client import Client

ROOT = Path(__file__).parents[1]
JOB_FILE = Path("examples/ring/job.yaml")
WORKERS, GPUS = 4, 2
KILLED_RANK, KILL_AT = 2, "step 20 "
START_TIMEOUT_S = 60.0
#: Left out, because the output of the tasks shows the same.
OMITTED = (records.TaskStarted, records.TaskStopped, records.TaskDone)


@contextmanager
def cluster(folder: Path) -> Iterator["Client"]:
    """`phalanx up` on a free port, until the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = [f"--workers={WORKERS}", f"--gpus={GPUS}", f"--port={port}", f"--data={folder}"]
    # Random rendezvous ports, so that two demos at a time do not collide.
    first = random.randrange(20_000, 29_000)  # noqa: S311
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {"PATH": path, "PHALANX_PORTS": f"{first}-{first + 100}"}
    log = folder / "log"
    with log.open("wb") as output:
        up = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "phalanx.cli", "up", *flags],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=os.environ | variables,
        )
    try:
        with phalanx.Client(f"http://127.0.0.1:{port}") as client:
            wait_for_workers(client, up, log)
            yield client
    finally:
        up.terminate()
        up.wait()


def wait_for_workers(client: "Client", up: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            if len(client.workers()) == WORKERS:
                return
        except PhalanxError:
            pass  # the server does not answer yet
        if up.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the cluster did not start:\n{log.read_text()}")
        time.sleep(0.05)


def event_lines(client: "Client", job: str) -> Iterator[str]:
    for event in client.events(job, follow=True):
        if not isinstance(event, OMITTED):
            yield f"{event.time:%H:%M:%S}  {sentence(event)}"


def output_lines(client: "Client", job: str, kills: list[float]) -> Iterator[str]:
    """The output of the tasks. Kills a rank when rank 0 has reached a certain step, and notes the
    time."""
    process: int | None = None
    for line in client.logs(job, follow=True):
        if "──" in line:
            continue  # the separators between attempts; the ranks print the attempt too
        yield f"          {line}"
        started = re.search(rf"rank {KILLED_RANK}: process (\d+), attempt 1$", line)
        process = int(started[1]) if started else process
        if KILL_AT in line and process is not None:
            yield f"\n$ kill -9 {process}    # rank {KILLED_RANK}\n"
            kills.append(time.time())
            os.kill(process, signal.SIGKILL)
            process = None


def print_merged(*sources: Iterator[str]) -> None:
    """Print the lines of several sources, each when it arrives."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read(source: Iterator[str]) -> None:
        try:
            for line in source:
                lines.put(line)
        finally:
            lines.put(None)

    for source in sources:
        threading.Thread(target=read, args=(source,), daemon=True).start()
    for _ in sources:
        while (line := lines.get()) is not None:
            say(line)


def restart_time(client: "Client", job: str) -> float:
    """When the last task of the second attempt started."""
    started = [
        event.time.timestamp()
        for event in client.events(job)
        if isinstance(event, records.TaskStarted) and event.attempt == 2
    ]
    if not started:
        sys.exit("the job did not restart")
    return max(started)


def styled(line: str) -> Text:
    """A line of the demo in colours: commands, times, task names, failures."""
    text = Text(line)
    text.highlight_regex(r"^\n?\$ kill.*", "bold red")
    text.highlight_regex(r"^\$ (?!kill).*", "bold green")
    text.highlight_regex(r"^\d\d:\d\d:\d\d", "dim")
    text.highlight_regex(r"^ +\S+ \|", "cyan")
    text.highlight_regex(r"task \d+ was killed by .*|lost .* of work.*|lost a peer.*", "red")
    text.highlight_regex(r"(attempt \d+: reserved|all \d+ workers ready|resuming after).*", "green")
    text.highlight_regex(r"finished .*|(?<=  )job done|^(All|Job) .*", "bold")
    return text


def say(line: str) -> None:
    Console(highlight=False, soft_wrap=True).print(styled(line))


def main() -> int:
    began = time.monotonic()
    say(f"$ phalanx up --workers {WORKERS} --gpus {GPUS}")
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder)) as client:
        say(f"A server and {WORKERS} workers are running, each with {GPUS} simulated GPUs.\n")
        say(f"$ phalanx submit -f {JOB_FILE}")
        job = client.submit((ROOT / JOB_FILE).read_text()).id
        say(f"{job}\n")
        say("$ phalanx events -f ring & phalanx logs -f ring")
        kills: list[float] = []
        print_merged(event_lines(client, job), output_lines(client, job, kills))
        recovery_s = restart_time(client, job) - kills[0]
        phase = client.get(job).phase
    took = time.monotonic() - began
    verb = "completed" if phase == "done" else f"ended ({phase})"
    say(f"\nAll {WORKERS} ranks were running again {recovery_s:.2f} s after the kill.")
    say(f"Job {verb} in {took:.0f} s. The demo cluster has been shut down.\n")
    say("Try it yourself, and kill what you like while the job runs:\n")
    say("  . .venv/bin/activate")
    say(f"  phalanx up --workers {WORKERS} --gpus {GPUS}")
    say(f"  phalanx submit -f {JOB_FILE} --follow    # in another terminal")
    return 0 if phase == "done" else 1


if __name__ == "__main__":
    sys.exit(main())
