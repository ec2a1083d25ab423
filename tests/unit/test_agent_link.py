"""The parts of the link: messages, files, reports, log shipping and calls."""

import asyncio
import json
import os
from pathlib import Path

import msgspec
import pytest
import yaml

from phalanx.agent.link.attempt_table import AttemptTable
from phalanx.agent.link.http_client import HttpClient, HttpRequest
from phalanx.agent.link.log_shipping import LogShipment, next_chunk
from phalanx.agent.link.progress import ProgressFile
from phalanx.agent.link.reports import TaskReports, report_of
from phalanx.agent.messages import (
    AttemptsChanged,
    AttemptStatus,
    FrameDecoder,
    RunAttempt,
    decode_link_message,
    decode_spawner_message,
    frame,
)
from phalanx.agent.state_dir import PROGRESS, WATCH, StateDir
from phalanx.core.events import AbnormalValue
from phalanx.core.spec.watch import AbnormalKind, watch
from phalanx.wire.sync import Reported, TaskProgress, TaskReport

KEY = ("j-1.0", 3)


@pytest.fixture
def state_dir(tmp_path: Path) -> StateDir:
    state_dir = StateDir(tmp_path / "state")
    state_dir.create()
    return state_dir


# Messages


def test_messages_come_out_whole_however_the_stream_was_cut() -> None:
    sent = [
        AttemptsChanged((AttemptStatus(*KEY, exit_code=0),)),
        AttemptsChanged(
            (AttemptStatus(*KEY, start_error="no"), AttemptStatus("j-1.1", 3, started=True))
        ),
    ]
    stream = b"".join(map(frame, sent))
    for size in (1, 3, len(stream)):
        decoder = FrameDecoder()
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        bodies = [body for piece in pieces for body in decoder.feed(piece)]
        assert list(map(decode_spawner_message, bodies)) == sent


def test_an_instruction_arrives_as_it_was_sent() -> None:
    run = RunAttempt(*KEY, ("echo", "a b"), {"A": "ü"}, 15_000_000, fence=True)
    [body] = FrameDecoder().feed(frame(run))
    assert decode_link_message(body) == run


# The state directory


def test_folders_of_unknown_attempts_are_left_over(state_dir: StateDir) -> None:
    for key in (KEY, ("j-1.0", 2), ("j-9.0", 3)):
        state_dir.create_attempt(key)
        os.close(state_dir.create_output_file(key, 0)[1])
    left = state_dir.leftovers({KEY})
    assert {str(path.relative_to(state_dir.path)) for path in left} == {
        *("attempts/j-1.0.2", "attempts/j-9.0.3", "output/j-1.0.2", "output/j-9.0.3"),
    }


# The attempts of a worker


def test_a_worker_is_stopping_when_every_attempt_has_ended_or_was_signalled() -> None:
    attempts = AttemptTable()
    running, other = AttemptStatus("j-1.0", 1, started=True), AttemptStatus("j-2.0", 1, exit_code=0)
    attempts.update(running)
    attempts.update(other)
    assert not attempts.all_stopping
    attempts.update(AttemptStatus("j-1.0", 1, started=True, signalled=True))
    assert attempts.all_stopping
    assert not attempts.all_ended
    attempts.update(AttemptStatus("j-1.0", 1, started=True, signalled=True, signal=15))
    assert attempts.all_ended


def test_only_running_fenced_attempts_need_a_lease() -> None:
    attempts = AttemptTable()
    attempts.update(AttemptStatus("j-1.0", 1, fence_grace=5, started=True))
    attempts.update(AttemptStatus("j-2.0", 1, fence_grace=7, exit_code=0))
    attempts.update(AttemptStatus("j-3.0", 1, started=True))
    assert attempts.fence_graces() == [5]


# Progress


def test_progress_is_the_last_step_and_whether_a_checkpoint_was_taken(state_dir: StateDir) -> None:
    path = Path(state_dir.task_file(KEY, PROGRESS))
    file = ProgressFile(state_dir, KEY)
    assert file.read() is None
    state_dir.create_attempt(KEY)
    assert file.read() is None
    path.write_text('{"step": 1, "checkpoint": true}\nnonsense\n{"step": 2}\n{"step": 3')
    assert file.read() == TaskProgress(2, safe=True, saved_step=1)
    assert file.read() is None
    with path.open("a") as more:
        more.write("}\n")
    assert file.read() == TaskProgress(3)
    path.write_text('{"step": 4}\n')
    assert file.read() == TaskProgress(4), "the task has written the file anew"


def test_lines_that_are_not_progress_cost_little(state_dir: StateDir) -> None:
    state_dir.create_attempt(KEY)
    file = ProgressFile(state_dir, KEY)
    huge = b'{"step": ' + b"9" * 5000 + b"}\n"
    Path(state_dir.task_file(KEY, PROGRESS)).write_bytes(huge + b"{\n" * 100_000)
    for _ in range(5):
        assert file.read() is None
    [problem] = file.problems
    assert problem.startswith('the progress file has a line that is not progress: "{')
    with Path(state_dir.task_file(KEY, PROGRESS)).open("ab") as more:
        more.write(b'{"step": 5}\n')
    assert file.read() == TaskProgress(5)


def progress_of(state_dir: StateDir, *lines: str, watched: str = "") -> ProgressFile:
    state_dir.create_attempt(KEY)
    if watched:
        state_dir.write_task_file(KEY, WATCH, msgspec.json.encode(watch(yaml.safe_load(watched))))
    text = "".join(f"{line}\n" for line in lines)
    Path(state_dir.task_file(KEY, PROGRESS)).write_text(text)
    return ProgressFile(state_dir, KEY)


def test_the_latest_total_and_values_are_reported(state_dir: StateDir) -> None:
    lines = (
        '{"step": 1, "total": 9, "values": {"loss": 2, "lr": 0.5}}',
        '{"step": 2, "values": {"loss": 1.5}}',
    )
    file = progress_of(state_dir, *lines)
    assert file.read() == TaskProgress(2, 9, values={"loss": 1.5, "lr": 0.5})
    assert not file.problems


@pytest.mark.parametrize(
    "written",
    ["NaN", "nan", "-nan", "Infinity", "-inf", "null", '"nan"', '"-Infinity"'],
)
def test_a_number_that_json_does_not_have_is_read_in_every_usual_form(
    state_dir: StateDir, written: str
) -> None:
    line = f'{{"step": 7, "values": {{"loss": {written}, "lr": 1}}}}'
    file = progress_of(state_dir, line, watched="{loss: {nan: fail}}")
    alarm = AbnormalValue("loss", AbnormalKind.NAN, 7)
    values = {"loss": None, "lr": 1.0}
    assert file.read() == TaskProgress(7, values=values, abnormal=(alarm,))
    assert not file.problems


def test_an_abnormal_value_is_found_between_two_reports(state_dir: StateDir) -> None:
    values = [*(1.0 for _ in range(12)), 9.0, 1.0]
    lines = (f'{{"step": {n}, "values": {{"loss": {v}}}}}' for n, v in enumerate(values))
    progress = progress_of(state_dir, *lines, watched="{loss: {spike: 5x}}").read()
    assert progress is not None
    assert progress.values == {"loss": 1.0}
    assert progress.abnormal == (AbnormalValue("loss", AbnormalKind.SPIKE, 12, 9.0, 1.0),)


def test_work_that_is_saved_after_an_abnormal_value_is_not_safe(state_dir: StateDir) -> None:
    lines = (
        '{"step": 5, "checkpoint": true}',
        '{"step": 6, "values": {"loss": NaN}}',
        '{"step": 7, "checkpoint": true}',
    )
    progress = progress_of(state_dir, *lines, watched="{loss: {nan: restart}}").read()
    assert progress is not None
    assert (progress.safe, progress.saved_step, progress.step) == (True, 5, 7)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"values": {"loss": "high"}}', "has a line that is not progress"),
        ('{"values": {"loss": {"a": 1}}}', "has a line that is not progress"),
        ('{"values": {"loss": true}}', "has a line that is not progress"),
        ('{"values": {"loss": 1e400}}', "has a line that is not progress"),
        ('{"step": 5.5}', "has a line that is not progress"),
        ('{"x": ' + "[" * 30_000, "has a line that is not progress"),
        ('{"values": {"a b": 1}}', "use at most 40 letters"),
        ('{"values": {"' + "x" * 41 + '": 1}}', "use at most 40 letters"),
        (json.dumps({"values": {f"v{n}": n for n in range(2000)}}), "has more than 16 values"),
        (json.dumps({"values": {f"v{n}": n for n in range(9000)}}), "a line of more than 64.0 KiB"),
    ],
)
def test_values_that_cannot_be_kept_are_a_problem_and_other_lines_are_read(
    state_dir: StateDir, line: str, problem: str
) -> None:
    file = progress_of(state_dir, line, '{"step": 3}')
    progress = file.read()
    assert progress is not None
    assert progress.step == 3
    assert len(progress.values) <= 16
    [told] = file.problems
    assert problem in told


def test_a_watched_value_is_kept_although_a_task_reports_too_many(state_dir: StateDir) -> None:
    line = json.dumps({"step": 1, "values": {f"v{n}": n for n in range(20)} | {"loss": 3.0}})
    progress = progress_of(state_dir, line, watched="{loss: {nan: fail}}").read()
    assert progress is not None
    assert progress.values["loss"] == 3.0
    assert len(progress.values) == 16


def test_rules_that_the_task_has_changed_are_a_problem(state_dir: StateDir) -> None:
    file = progress_of(state_dir, '{"step": 1, "values": {"loss": NaN}}')
    state_dir.write_task_file(KEY, WATCH, b'{"loss": 1}')
    assert file.read() == TaskProgress(1, values={"loss": None})
    assert list(file.problems) == [
        "the progress file is not checked for abnormal values, because watch.json was changed"
    ]


def test_a_progress_file_that_grows_too_fast_is_read_from_its_end(state_dir: StateDir) -> None:
    state_dir.create_attempt(KEY)
    path, file = Path(state_dir.task_file(KEY, PROGRESS)), ProgressFile(state_dir, KEY)
    path.write_bytes(b'{"step": 1}\n' * 200_000 + b'{"step": 2}\n')
    assert file.read() == TaskProgress(2)
    assert not file.problems, "a worker that starts again finds the file of a long attempt"
    with path.open("ab") as more:
        more.write(b'{"step": 3}\n' * 200_000 + b'{"step": 4')
    assert file.read() == TaskProgress(3)
    assert list(file.problems) == [
        "the progress file grew by 2.3 MiB within 0.5 s, the limit is 1.0 MiB; lines were skipped"
    ]
    with path.open("ab") as more:
        more.write(b"}")
    assert file.read() is None
    assert file.read(is_last=True) == TaskProgress(4)


def test_a_line_that_is_longer_than_what_is_read_of_the_file_is_noted(state_dir: StateDir) -> None:
    state_dir.create_attempt(KEY)
    file = ProgressFile(state_dir, KEY)
    Path(state_dir.task_file(KEY, PROGRESS)).write_bytes(b"1" * 2 * 1024**2 + b"\n")
    assert file.read() is None
    [problem] = file.problems
    assert problem.startswith("the progress file has a line of more than 64.0 KiB")


# Reports


async def test_a_report_is_repeated_until_it_is_acknowledged() -> None:
    reports = TaskReports()
    running = TaskReport(*KEY, Reported.RUNNING)
    reports.put(running)
    sent = reports.to_send(full=False)
    assert sent == (running,)
    ended = TaskReport(*KEY, Reported.EXITED, exit_code=0)
    reports.put(ended)
    reports.acknowledge(sent)
    assert reports.to_send(full=False) == (ended,), "the newer one was not acknowledged"
    reports.acknowledge((ended,))
    assert reports.to_send(full=False) == ()
    assert reports.to_send(full=True) == (ended,)


async def test_a_checkpoint_is_reported_once() -> None:
    reports = TaskReports()
    reports.put(TaskReport(*KEY, Reported.RUNNING))
    reports.add_progress(KEY, TaskProgress(4, safe=True, saved_step=4))
    reports.add_progress(KEY, TaskProgress(5))
    sent = reports.to_send(full=True)
    both = TaskProgress(5, safe=True, saved_step=4)
    assert sent == (TaskReport(*KEY, Reported.RUNNING, progress=both),)
    reports.acknowledge(sent)
    assert reports.to_send(full=True) == (TaskReport(*KEY, Reported.RUNNING),)


@pytest.mark.parametrize("before", [Reported.ACCEPTED, Reported.RUNNING])
async def test_progress_that_was_not_sent_is_sent_with_the_end_of_the_attempt(
    before: Reported,
) -> None:
    reports = TaskReports()
    reports.put(TaskReport(*KEY, before))
    last = TaskProgress(500, 500, values={"loss": None})
    reports.add_progress(KEY, last)
    reports.put(TaskReport(*KEY, Reported.EXITED, exit_code=0))
    ended = TaskReport(*KEY, Reported.EXITED, exit_code=0, progress=last)
    assert reports.to_send(full=False) == (ended,)


async def test_reports_of_one_moment_are_sent_together() -> None:
    reports = TaskReports()
    reports.put(TaskReport("j-1.0", 1, Reported.RUNNING))
    reports.put(TaskReport("j-1.1", 1, Reported.RUNNING))
    assert not reports.ready.is_set()
    await asyncio.wait_for(reports.ready.wait(), 30)
    assert len(reports.to_send(full=False)) == 2


async def test_a_report_for_the_start_barrier_is_sent_at_once() -> None:
    reports = TaskReports()
    reports.put_now(TaskReport(*KEY, Reported.ACCEPTED))
    assert reports.ready.is_set()


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (AttemptStatus(*KEY, started=True), Reported.RUNNING),
        (AttemptStatus(*KEY, started=True, exit_code=0), Reported.EXITED),
        (AttemptStatus(*KEY, started=True, signal=9), Reported.EXITED),
        (AttemptStatus(*KEY, start_error="no"), Reported.SPAWN_FAILED),
        (AttemptStatus(*KEY, gone=True), Reported.GONE),
    ],
)
def test_every_status_has_its_report(status: AttemptStatus, state: Reported) -> None:
    report = report_of(status)
    assert report is not None
    assert report.state is state


def test_an_attempt_that_was_not_started_yet_is_not_reported() -> None:
    assert report_of(AttemptStatus(*KEY)) is None


# Logs


def test_a_shipment_that_is_far_behind_continues_near_the_end(state_dir: StateDir) -> None:
    folder = state_dir.output_folder(KEY)
    folder.mkdir()
    (folder / "0").write_bytes(b"a" * 10)
    shipment = LogShipment()
    assert next_chunk(shipment, state_dir, KEY) == b"a" * 10
    (folder / str(20 * 1024**2)).write_bytes(b"b" * 100)
    assert next_chunk(shipment, state_dir, KEY) == b"b" * 100
    assert shipment.offset == 20 * 1024**2
    shipment.offset += 100
    assert next_chunk(shipment, state_dir, KEY) == b""


# Calls


async def test_a_cancelled_call_does_not_spoil_the_connection_for_the_next() -> None:
    asked: list[asyncio.StreamWriter] = []
    arrived = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            asked.append(writer)
            arrived.set()

    def answer(writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    server = HttpClient(f"http://127.0.0.1:{port}")
    request = HttpRequest("POST", "/", {}, b"", 60)
    held = asyncio.create_task(server.call(request))
    await arrived.wait()
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    arrived.clear()
    second = asyncio.create_task(server.call(request))
    await arrived.wait()
    assert asked[0] is not asked[1], "the first connection still waits for its reply"
    answer(asked[0], b"old")
    answer(asked[1], b"new")
    assert (await second).body == b"new"
    server.close()
    for writer in asked:
        writer.close()
    listening.close()
