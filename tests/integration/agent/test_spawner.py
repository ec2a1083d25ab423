"""A real spawner without a worker: the test is its link."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from phalanx.agent.link.spawner_client import SpawnerClient
from phalanx.agent.messages import (
    AttemptKey,
    AttemptStatus,
    ForgetAttempt,
    LinkMessage,
    QuitWhenIdle,
    RunAttempt,
    SpawnerMessage,
    SpawnerSnapshot,
    StopAll,
    StopAttempt,
)
from phalanx.agent.state_dir import StateDir
from phalanx.core.time_units import SECOND
from tests.integration.agent.machines import guard_of
from tests.integration.server.waiting import PATIENCE_S, eventually, within
from tests.worker_processes import has_ended, is_alive

KEY = ("j-1.0", 1)
#: Starts two processes that try to escape, then works until it is killed.
ESCAPING = """
setsid env -i sh -c 'echo $$ >>"$0/pids"; exec sleep 1000' "$FOLDER" &
(setsid sh -c 'trap "" TERM; echo $$ >>"$FOLDER/pids"; while :; do sleep 0.1; done' &)
echo $$ >>"$FOLDER/pids"
while :; do sleep 0.1; done
"""


class TestLink:
    """A connection to the spawner of a state directory, which is started if it does not run."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state_dir = StateDir(folder / "state")
        self.state_dir.create()
        self._statuses: dict[AttemptKey, AttemptStatus] = {}
        self._client: SpawnerClient
        self._messages: AsyncIterator[SpawnerMessage]

    async def connect(self) -> SpawnerSnapshot:
        self._client = await within(PATIENCE_S, SpawnerClient.connect(self.state_dir))
        self._messages = self._client.messages()
        snapshot = await within(PATIENCE_S, anext(self._messages))
        assert isinstance(snapshot, SpawnerSnapshot)
        return snapshot

    def send(self, *messages: LinkMessage) -> None:
        self._client.send(*messages)

    async def status(self, key: AttemptKey = KEY, *, ended: bool = True) -> AttemptStatus:
        """The next status of an attempt that has started or, by default, ended."""

        async def arrived() -> AttemptStatus:
            while True:
                for status in (await anext(self._messages)).attempts:
                    if status.key == key and status.has_ended == ended:
                        return status

        return await within(PATIENCE_S, arrived())

    def run(self, command: str | tuple[str, ...], key: AttemptKey = KEY) -> RunAttempt:
        env = {"PATH": os.environ["PATH"], "FOLDER": str(self.folder)}
        return RunAttempt(*key, command, env, 10 * SECOND)

    @property
    def spawner_pid(self) -> int:
        return int(self.state_dir.spawner_lock.read_text())

    def task_pids(self) -> list[int]:
        """The processes that the task `ESCAPING` has started."""
        file = self.folder / "pids"
        return list(map(int, file.read_text().split())) if file.exists() else []

    def disconnect(self) -> None:
        self._client.close()

    async def quit(self) -> None:
        """Have the spawner kill all attempts and exit."""
        self.send(StopAll(kill=True), QuitWhenIdle())

        async def ended() -> None:
            async for _ in self._messages:
                pass

        await within(PATIENCE_S, ended())
        self.disconnect()


@pytest_asyncio.fixture
async def link(tmp_path: Path) -> AsyncIterator[TestLink]:
    link = TestLink(tmp_path)
    await link.connect()
    yield link
    await link.quit()


async def test_an_attempt_is_run_at_most_once(link: TestLink) -> None:
    run = link.run('echo ran >>"$FOLDER/runs"')
    link.send(run, run)
    assert (await link.status()).exit_code == 0
    link.send(run, ForgetAttempt(*KEY), run)
    assert (await link.status()).gone, "it was forgotten, and is refused"
    assert (link.folder / "runs").read_text() == "ran\n"


async def test_an_attempt_that_was_stopped_before_it_ran_never_runs(link: TestLink) -> None:
    run = link.run('touch "$FOLDER/ran"')
    link.send(StopAttempt(*KEY))
    assert (await link.status()).gone
    other = ("j-2.0", 1)
    link.send(run, link.run("exit 3", other))
    assert (await link.status(other)).exit_code == 3
    assert not (link.folder / "ran").exists()


async def test_a_new_link_gets_every_attempt_that_was_not_forgotten(link: TestLink) -> None:
    forgotten, ended, running = ("j-1.0", 1), ("j-2.0", 1), ("j-3.0", 1)
    link.send(link.run("true", forgotten))
    await link.status(forgotten)
    link.send(ForgetAttempt(*forgotten), link.run("exit 4", ended))
    await link.status(ended)
    link.send(link.run("exec sleep 1000", running))
    await link.status(running, ended=False)
    link.disconnect()
    snapshot = await link.connect()
    assert snapshot.link_count == 2
    assert {status.key: status.exit_code for status in snapshot.attempts} == {
        ended: 4,
        running: None,
    }


@pytest.mark.parametrize(
    ("command", "workdir", "error"),
    [
        (("no-such-program",), None, "cannot run no-such-program: No such file or directory"),
        (("/etc/passwd",), None, "cannot run /etc/passwd: Permission denied"),
        (
            ("echo x",),
            None,
            "cannot run echo x: No such file or directory; use sh -c to run a shell command line",
        ),
        (
            "true",
            "/nowhere",
            "cannot enter the working directory /nowhere: No such file or directory",
        ),
    ],
)
async def test_an_attempt_that_cannot_be_started_says_why(
    link: TestLink, command: str | tuple[str, ...], workdir: str | None, error: str
) -> None:
    link.send(RunAttempt(*KEY, command, {"PATH": os.environ["PATH"]}, SECOND, workdir))
    assert (await link.status()).start_error == error


async def test_an_attempt_has_ended_when_its_last_process_has(link: TestLink) -> None:
    link.send(link.run('setsid sleep 1000 & echo $! >"$FOLDER/pids"; exit 5'))
    assert (await link.status()).exit_code == 5
    [left_behind] = link.task_pids()
    assert not is_alive(left_behind)


@pytest.mark.parametrize("by", ["its guard", "the next spawner"])
async def test_a_spawner_that_is_killed_leaves_no_process(tmp_path: Path, by: str) -> None:
    link = TestLink(tmp_path)
    await link.connect()
    link.send(link.run(ESCAPING))
    await link.status(ended=False)

    async def are_up() -> bool:
        return len(link.task_pids()) == 3

    await eventually(are_up, PATIENCE_S)
    spawner = link.spawner_pid
    link.disconnect()
    if by == "the next spawner":
        os.kill(spawner, signal.SIGSTOP)
        os.kill(guard_of(spawner), signal.SIGKILL)
    os.kill(spawner, signal.SIGKILL)

    async def is_dead() -> bool:
        return has_ended(spawner)

    await eventually(is_dead, PATIENCE_S)
    if by == "the next spawner":
        await link.connect()
        assert not any(map(is_alive, link.task_pids())), "they are killed before it accepts a link"
        await link.quit()

    async def are_gone() -> bool:
        return not any(map(is_alive, link.task_pids()))

    await eventually(are_gone, PATIENCE_S)
    snapshot = await link.connect()
    assert [(status.key, status.gone) for status in snapshot.attempts] == [(KEY, True)]
    await link.quit()


async def test_a_spawner_without_a_link_and_without_attempts_exits(tmp_path: Path) -> None:
    program = (
        "import sys; from phalanx.agent.spawner.__main__ import main;"
        " main(sys.argv[1], idle_exit_s=0.2)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    ended = await asyncio.to_thread(subprocess.run, command, timeout=60, check=False)
    assert ended.returncode == 0
