"""What a user has: a running server, a terminal to type in, and workers that follow the test.

A command that returns at once runs in this process, with its own environment and streams. One that
goes on, or that runs a server or a worker, is a process of its own.
"""

import json
import os
import pty
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from phalanx.cli.app import app
from tests.plain_http import http_client
from tests.preloaded import start_phalanx

SCRIPT = str(Path(sys.executable).with_name("phalanx"))
PATIENCE_S = 60


def until(holds: Callable[[], object]) -> None:
    """Return when this holds; ask ever less often, so that what is awaited has the processor."""
    deadline, pause, pause_s = time.monotonic() + PATIENCE_S, threading.Event(), 0.02
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s"
        pause.wait(pause_s)
        pause_s = min(1.5 * pause_s, 0.2)


def environment(**more: str) -> dict[str, str]:
    """Ours without any setting of Phalanx's, and nothing of the user's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PHALANX_")}
    kept.pop("COLUMNS", None)
    return kept | {"XDG_CONFIG_HOME": "/nonexistent", "NO_COLOR": "1"} | more


#: Commands that own their process: they set signal handlers, a log, or children.
OWN_PROCESS = ("serve", "up", "worker")


class Said(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run_here(words: Sequence[str], variables: dict[str, str], stdin: str | None = None) -> Said:
    """Run a command in this process, with these variables and no others."""
    without: dict[str, str | None] = {name: None for name in os.environ if name not in variables}
    done = CliRunner(env=without | variables).invoke(
        app, list(words), input=stdin, prog_name="phalanx"
    )
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Said(done.exit_code, done.stdout, done.stderr)


class Terminal:
    """Knows where the server is by its environment, like a user's shell."""

    def __init__(self, url: str, **variables: str) -> None:
        self.variables = {"PHALANX_SERVER": url} | variables

    def type(self, *words: str, stdin: str | None = None, **variables: str) -> Said:
        if words and words[0] in OWN_PROCESS:
            return self.run_script(*words, stdin=stdin, **variables)
        return run_here(words, environment(**(self.variables | variables)), stdin)

    def run_script(self, *words: str, stdin: str | None = None, **variables: str) -> Said:
        """Run the installed script to its end."""
        done = subprocess.run(  # noqa: S603
            [SCRIPT, *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=environment(**(self.variables | variables)),
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Said(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, **variables: str) -> "subprocess.Popen[str]":
        """A command that goes on; whoever starts it reads it, or ends it."""
        return start_phalanx(
            *words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**(self.variables | variables)),
        )


class Screen:
    """A command on a real terminal, 80 columns wide. Killed at the end of the block."""

    def __init__(self, terminal: Terminal, *words: str) -> None:
        variables = environment(**terminal.variables) | {"TERM": "xterm", "COLUMNS": "80"}
        del variables["NO_COLOR"]
        self._ours, theirs = pty.openpty()
        self.process = start_phalanx(
            *words,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=variables,
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = ""

    def __enter__(self) -> "Screen":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def press(self, keys: str) -> None:
        """Type on the terminal."""
        os.write(self._ours, keys.encode())

    def until(self, words: str) -> None:
        """Read until this was shown."""
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.seen:
            assert self._reads_more(deadline), f"it ended without {words!r}: {self.seen}"

    def ended(self) -> int:
        """Read to the end: the exit status. A command whose screen nobody reads would hang."""
        deadline = time.monotonic() + PATIENCE_S
        while self._reads_more(deadline):
            pass
        return self.process.wait(PATIENCE_S)

    def _reads_more(self, deadline: float) -> bool:
        """Read what is shown next; whether the command has not ended."""
        left_s = max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([self._ours], [], [], left_s)
        assert ready, f"it shows no more than this: {self.seen}"
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # the last of the other side has closed it
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)


class Following:
    """A command that goes on, and what it has printed so far. Killed at the end of the block."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.seen: list[str] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> "Following":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        if self.process.stderr is not None:
            self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._lines.put(line)

    def to_end(self) -> list[str]:
        """All lines, of a command that ends."""
        self._reader.join()
        while not self._lines.empty():
            self.seen.append(self._lines.get())
        return self.seen

    def line_with(self, words: str, wait_s: float = 1.0) -> bool:
        """Whether such a line comes within this time."""
        until = time.monotonic() + wait_s
        while (left := until - time.monotonic()) > 0:
            try:
                self.seen.append(self._lines.get(timeout=left))
            except queue.Empty:
                break
            if words in self.seen[-1]:
                return True
        return False


class Server:
    """A `phalanx serve` on a file of its own. Until the end of the block."""

    def __init__(self, folder: Path, *flags: str, leads: bool = True) -> None:
        self._awaited = "leading" if leads else "standing by"
        store = f"--store=sqlite:{folder / 'phalanx.db'}"
        # A server that is suspended for a while goes on. If it is killed, its file is free.
        self._flags = (store, "--log-format=json", "--lease=1h", *flags)
        self._lines: queue.Queue[str] = queue.Queue()
        self.url = ""

    def __enter__(self) -> "Server":
        self._process = start_phalanx(
            *("serve", "--port=0", *self._flags),
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env=environment(),
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.url = self.line("listening")["url"]
        self.line(self._awaited)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def empty(self) -> None:
        """Cancel the jobs, and remove the workers and queues."""
        with http_client(self.url, timeout=PATIENCE_S) as http:

            def unfinished() -> list[str]:
                found = http.get("/jobs", params={"finished": False}).json()["jobs"]
                return [job["id"] for job in found]

            for job in unfinished():
                http.delete(f"/jobs/{job}")  # it may have ended by now
            for worker in http.get("/workers").json():
                assert http.delete(f"/workers/{worker['id']}").is_success
            until(lambda: not unfinished())
            queues = {queue["name"]: queue for queue in http.get("/queues").json()}
            while len(queues) > 1:
                parents = {queue.get("parent") for queue in queues.values()}
                for name in queues.keys() - parents - {"default"}:
                    assert http.delete(f"/queues/{name}").is_success
                    del queues[name]

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._lines.put(line)

    def line(self, event: str) -> dict[str, Any]:
        while True:
            found: dict[str, Any] = json.loads(self._lines.get(timeout=PATIENCE_S))
            if found["event"] == event:
                return found


class Worker:
    """A worker that speaks the plain protocol, one call at a time."""

    def __init__(self, url: str, name: str, *, registers: bool = True, **resources: object) -> None:
        self.name = name
        self._http = http_client(url, timeout=PATIENCE_S)
        if registers:
            body = {"id": name, "resources": resources, "slots": 100}
            self._call("POST", "/workers/register", json=body)

    @classmethod
    def known(cls, url: str, name: str) -> "Worker":
        """One that another server knows already."""
        return cls(url, name, registers=False)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def _call(self, method: str, path: str, **given: Any) -> Any:
        answer = self._http.request(method, path, **given)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def claim(self) -> dict[str, Any]:
        """The next task that is for it."""
        while True:
            found = self._call("GET", "/jobs/next", params={"worker_id": self.name, "wait": 10})
            if found is not None:
                claimed: dict[str, Any] = found
                return claimed

    def end(self, claim: dict[str, Any], exit_code: int = 0) -> None:
        params = {"epoch": claim["reservation_epoch"], "worker_id": self.name}
        if exit_code:
            params["exit_code"] = exit_code
        self._call("POST", f"/jobs/{claim['id']}/{'fail' if exit_code else 'done'}", params=params)

    def checkpointed(self, claim: dict[str, Any]) -> None:
        """Its work up to now is safe."""
        params = {"epoch": claim["reservation_epoch"]}
        self._call("POST", f"/jobs/{claim['id']}/checkpointed", params=params)

    def preempted(self, claim: dict[str, Any]) -> None:
        """It was told to stop, and has."""
        params = {"epoch": claim["reservation_epoch"]}
        self._call("POST", f"/jobs/{claim['id']}/preempted", params=params)

    def write(self, claim: dict[str, Any], text: str, at: int = 0) -> None:
        """What the task printed, from this byte on."""
        task = claim["id"].partition("@")[0]
        params = {"task": task, "attempt": claim["reservation_epoch"], "offset": at}
        path = f"/workers/{self.name}/output"
        self._call("POST", path, params=params, content=text.encode())
