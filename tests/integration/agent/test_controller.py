"""The link's attempt controller between a real spawner and a server that the test plays."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from phalanx.agent.link.controller import AttemptController
from phalanx.agent.link.leader_client import LeaderClient
from phalanx.agent.link.spawner_client import SpawnerClient
from phalanx.agent.link.task_policy import TaskPolicy
from phalanx.agent.messages import AttemptsChanged, QuitWhenIdle, SpawnerSnapshot, StopAll
from phalanx.agent.state_dir import StateDir
from phalanx.agent.task_files import TaskFile
from phalanx.core.model import Blob
from phalanx.core.time_units import SECOND
from phalanx.wire.sync import Reported, TaskInstruction, TaskReport, TaskSpec, Want
from tests.integration.server.waiting import PATIENCE_S, eventually, within

TASK, EPOCH = KEY = ("j-1.0", 2)
CHECKPOINT = Blob("j-1.0-1", 4)


class Request(NamedTuple):
    method: str
    path: str
    body: bytes


class TestServer:
    """Answers every request with the status and the body that the test has set for its path."""

    __test__ = False

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.replies: dict[str, tuple[int, bytes]] = {}
        self.is_answering = asyncio.Event()  #: cleared, requests wait for their reply
        self.is_answering.set()
        self._server: asyncio.Server
        self._connections: list[asyncio.Task[None]] = []

    async def start(self) -> str:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._connections.append(asyncio.create_task(self._serve(reader, writer)))

        self._server = await asyncio.start_server(connected, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                size = int(re.findall(r"Content-Length: (\d+)", head)[0])
                method, path, _ = head.split(" ", 2)
                self.requests.append(Request(method, path, await reader.readexactly(size)))
                await self.is_answering.wait()
                status, body = self._reply(path)
                writer.write(f"HTTP/1.1 {status} -\r\nContent-Length: {len(body)}\r\n\r\n".encode())
                writer.write(body)
        except (asyncio.IncompleteReadError, ConnectionError):
            # A client that goes with a reply on its way resets the connection.
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def _reply(self, path: str) -> tuple[int, bytes]:
        return next((reply for part, reply in self.replies.items() if part in path), (404, b"{}"))

    def seen(self, method: str, part: str) -> list[Request]:
        return [each for each in self.requests if each.method == method and part in each.path]

    async def close(self) -> None:
        """Stop listening, and wait until the client has closed its connections."""
        self._server.close()
        await within(PATIENCE_S, asyncio.gather(*self._connections))


class Worker:
    """A controller with its spawner and its server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = TestServer()
        self.state_dir = StateDir(folder / "state")
        self.state_dir.create()
        self.controller: AttemptController
        self._spawner: SpawnerClient
        self._client: LeaderClient
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._client = LeaderClient((await self.server.start(),), lambda: None)
        self._spawner = await within(PATIENCE_S, SpawnerClient.connect(self.state_dir))
        self.controller = AttemptController(
            "w", self._spawner, self.state_dir, self._client, TaskPolicy()
        )
        self._tasks = [
            asyncio.create_task(self._receive()),
            asyncio.create_task(self.controller.logs.run()),
            asyncio.create_task(self.controller.progress.run()),
            asyncio.create_task(self.controller.trash.run()),
        ]

    async def _receive(self) -> None:
        async for message in self._spawner.messages():
            assert isinstance(message, SpawnerSnapshot | AttemptsChanged)
            self.controller.update(message.attempts)

    async def close(self) -> None:
        self._spawner.send(StopAll(kill=True), QuitWhenIdle())
        await within(PATIENCE_S, self._tasks[0])
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._spawner.close()
        self._client.close()
        await self.server.close()

    def instruct(self, want: Want, command: str = "true", **spec: object) -> bool:
        env = {"FOLDER": str(self.folder)}
        task_spec = TaskSpec(command, env, 600 * SECOND, **spec)  # type: ignore[arg-type]
        has_spec = want in (Want.PREPARE, Want.RUN)
        instruction = TaskInstruction(TASK, EPOCH, want, task_spec if has_spec else None)
        return self.controller.follow((instruction,))

    def report(self) -> TaskReport | None:
        return next(iter(self.controller.reports.to_send(full=True)), None)

    async def reported(self, state: Reported) -> TaskReport:
        await self.until(lambda: self.state is state)
        report = self.report()
        assert report is not None
        return report

    @property
    def state(self) -> Reported | None:
        report = self.report()
        return None if report is None else report.state

    async def until(self, is_true: Callable[[], bool]) -> None:
        async def ask() -> bool:
            return is_true()

        await eventually(ask, PATIENCE_S, lambda: f"{self.report()} {self.server.requests}")


@pytest_asyncio.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Worker]:
    worker = Worker(tmp_path)
    await worker.start()
    yield worker
    await worker.close()


async def test_an_instruction_to_run_that_is_repeated_starts_the_attempt_once(
    worker: Worker,
) -> None:
    command = 'echo ran >>"$FOLDER/runs"'
    assert worker.instruct(Want.RUN, command)
    assert not worker.instruct(Want.RUN, command)
    assert (await worker.reported(Reported.EXITED)).exit_code == 0
    assert not worker.instruct(Want.RUN, command)
    assert (worker.folder / "runs").read_text() == "ran\n"


async def test_a_prepared_attempt_is_accepted_with_its_checkpoint_and_not_started(
    worker: Worker,
) -> None:
    worker.server.replies["/checkpoint"] = (200, b"step")
    worker.instruct(Want.PREPARE, checkpoint=CHECKPOINT)
    await worker.reported(Reported.ACCEPTED)
    assert worker.controller.attempts.is_empty
    worker.instruct(Want.RUN, 'cp "$PHALANX_CHECKPOINT_IN" "$FOLDER/given"', checkpoint=CHECKPOINT)
    await worker.reported(Reported.EXITED)
    assert (worker.folder / "given").read_bytes() == b"step"
    assert len(worker.server.seen("GET", "/checkpoint")) == 1, "it was fetched once"


async def test_an_attempt_without_its_checkpoint_is_not_started(worker: Worker) -> None:
    worker.instruct(Want.RUN, checkpoint=CHECKPOINT)
    failed = await worker.reported(Reported.SPAWN_FAILED)
    assert failed.message == f"the server has no checkpoint for {TASK} (status 404)"
    assert worker.controller.attempts.is_empty


async def test_a_task_with_an_image_is_refused_without_a_container_runtime(worker: Worker) -> None:
    worker.instruct(Want.PREPARE, image="train:1")
    failed = await worker.reported(Reported.START_REFUSED)
    assert failed.message.startswith("this worker has no container runtime")


async def test_the_end_of_a_stopped_attempt_is_reported_after_its_checkpoint_was_saved(
    worker: Worker,
) -> None:
    worker.server.replies["/checkpoint"] = (200, b"{}")
    worker.instruct(
        Want.RUN,
        'trap \'echo saved >"$PHALANX_CHECKPOINT_OUT"; exit\' TERM; touch "$FOLDER/up";'
        " while :; do sleep 0.1; done",
    )
    await worker.until((worker.folder / "up").exists)
    worker.server.is_answering.clear()
    worker.instruct(Want.STOP)
    await worker.until(lambda: bool(worker.server.seen("POST", "/checkpoint")))
    assert worker.controller.attempts.all_ended
    worker.instruct(Want.STOP)
    assert worker.state is Reported.RUNNING, "the server would refuse a checkpoint after the end"
    worker.server.is_answering.set()
    assert (await worker.reported(Reported.EXITED)).signalled
    [saved] = worker.server.seen("POST", "/checkpoint")
    assert saved.body == b"saved\n"
    assert f"epoch={EPOCH}" in saved.path


async def stopped_with_checkpoint(worker: Worker, size_bytes: int) -> TaskReport:
    """The report on the end of an attempt that wrote a checkpoint of this size when stopped."""
    worker.instruct(
        Want.RUN,
        f"trap 'head -c {size_bytes} /dev/zero >\"$PHALANX_CHECKPOINT_OUT\"; exit' TERM;"
        ' touch "$FOLDER/up"; while :; do sleep 0.1; done',
    )
    await worker.until((worker.folder / "up").exists)
    worker.instruct(Want.STOP)
    return await worker.reported(Reported.EXITED)


async def test_a_checkpoint_over_the_limit_is_not_read_and_the_end_is_reported_with_the_reason(
    worker: Worker,
) -> None:
    worker.controller.checkpoints.limit_bytes = 1024
    ended = await stopped_with_checkpoint(worker, 20 * 1024**2)
    assert ended.problem == "checkpoint not saved: 20.0 MiB, the limit is 1.0 KiB"
    assert not worker.server.seen("POST", "/checkpoint")


async def test_a_large_checkpoint_is_sent_whole(worker: Worker) -> None:
    worker.server.replies["/checkpoint"] = (200, b"{}")
    ended = await stopped_with_checkpoint(worker, 20 * 1024**2)
    assert (ended.signalled, ended.problem) == (True, "")
    [saved] = worker.server.seen("POST", "/checkpoint")
    assert saved.body == bytes(20 * 1024**2)


async def test_a_checkpoint_that_becomes_shorter_while_it_is_sent_is_not_saved(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.server.replies["/checkpoint"] = (200, b"{}")
    monkeypatch.setattr(TaskFile, "read", lambda *_: b"")
    ended = await stopped_with_checkpoint(worker, 10)
    assert ended.problem == "checkpoint not saved: it cannot be read: it has become shorter"
    assert not worker.server.seen("POST", "/checkpoint")


async def test_the_end_is_reported_whatever_goes_wrong_with_the_checkpoint(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(worker.controller.checkpoints, "save", fail)
    ended = await stopped_with_checkpoint(worker, 10)
    assert ended.problem.startswith("the worker could not save the checkpoint: MemoryError")


async def test_a_checkpoint_that_the_server_refuses_is_a_problem_of_the_attempt(
    worker: Worker,
) -> None:
    worker.server.replies["/checkpoint"] = (413, b"too large")
    ended = await stopped_with_checkpoint(worker, 10)
    refused = "checkpoint not saved: the server refused it with status 413: too large"
    assert ended.problem == refused


async def test_an_attempt_that_never_ran_is_gone_after_a_stop(worker: Worker) -> None:
    worker.instruct(Want.STOP)
    await worker.reported(Reported.GONE)


async def test_a_running_attempt_is_not_forgotten(worker: Worker) -> None:
    worker.instruct(Want.RUN, "exec sleep 1000")
    await worker.reported(Reported.RUNNING)
    worker.instruct(Want.FORGET)
    assert KEY in worker.controller.attempts
    assert worker.state is Reported.RUNNING


async def test_a_forgotten_attempt_is_removed_after_its_logs_were_sent(worker: Worker) -> None:
    worker.server.replies["/output"] = (200, b'{"next": 6}')
    worker.server.is_answering.clear()
    worker.instruct(Want.RUN, "echo hello")
    await worker.reported(Reported.EXITED)
    await worker.until(lambda: bool(worker.server.seen("POST", "/output")))
    worker.instruct(Want.FORGET)
    assert worker.report() is None, "there is nothing more to report"
    assert KEY in worker.controller.attempts
    assert not worker.controller.is_empty
    worker.server.is_answering.set()
    await worker.until(lambda: worker.controller.is_empty)
    assert list(worker.state_dir.attempts.iterdir()) == []
    [log] = worker.server.seen("POST", "/output")
    assert log.body == b"hello\n"
