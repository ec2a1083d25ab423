"""The parts of a worker's agent that need no worker: files, frames, reports, and process trees."""

import asyncio
import os
import resource
import select
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.agent.link.http_client import HttpClient, HttpRequest
from phalanx.agent.link.log_shipping import Shipment, next_bytes
from phalanx.agent.link.progress import ProgressFile, ProgressReport
from phalanx.agent.link.reports import UnsentReports, report_of
from phalanx.agent.messages import (
    AttemptChanged,
    Frames,
    Life,
    RunAttempt,
    framed,
    read_order,
    read_told,
)
from phalanx.agent.spawner import cgroups, process_tree
from phalanx.agent.spawner import output as output_module
from phalanx.agent.spawner.journal import Began, Ended, Forgotten, Journal
from phalanx.agent.spawner.output import Output
from phalanx.agent.state_dir import Segment, StateDir
from phalanx.wire.sync import Reported, TaskReport

KEY = ("j-1.0", 3)


# Frames


def test_messages_come_out_whole_however_they_were_cut() -> None:
    sent = [
        AttemptChanged((Life(*KEY, exit_code=0),)),
        AttemptChanged((Life(*KEY, failure="no"), Life("j-1.1", 3, begun=True))),
    ]
    stream = b"".join(map(framed, sent))
    for size in (1, 3, len(stream)):
        frames = Frames()
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert [read_told(body) for piece in pieces for body in frames.feed(piece)] == sent


def test_an_order_arrives_as_it_was_given() -> None:
    run = RunAttempt(*KEY, ("echo", "a b"), {"A": "ü"}, 15_000_000, fence=True)
    [body] = Frames().feed(framed(run))
    assert read_order(body) == run


# The journal


def test_a_journal_tells_what_began_and_what_ended(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.load()
    life = Life("j-1.1", 1, exit_code=4)
    for fact in (
        Began(*KEY, 77),
        Began("j-1.1", 1, 78),
        Ended(life),
        Began("j-1.2", 1, 79),
        Ended(Life("j-1.2", 1, gone=True)),
        Forgotten("j-1.2", 1),
    ):
        journal.add(fact)
        journal.write()
    assert Journal(tmp_path / "journal").load() == ({KEY: 77}, [life])


def test_a_line_that_a_crash_has_cut_off_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.add(Began(*KEY, 77))
    journal.write()
    with path.open("ab") as file:
        file.write(b'{"type":"Ended","life":{"id":"j-1.0"')
    assert Journal(path).load() == ({KEY: 77}, [])


def test_a_journal_that_could_not_be_written_is_written_whole_later(tmp_path: Path) -> None:
    path = tmp_path / "there" / "journal"
    journal = Journal(path)
    journal.add(Began(*KEY, 77))
    with pytest.raises(OSError, match="No such file"):
        journal.write()
    path.parent.mkdir()
    journal.write()
    assert Journal(path).load() == ({KEY: 77}, [])


# Output


@pytest.fixture
def places(tmp_path: Path) -> StateDir:
    made = StateDir(tmp_path / "state")
    made.create()
    return made


class Writer:
    """An attempt's end of the pipe, and the spawner's."""

    def __init__(self, places: StateDir) -> None:
        read, self._write = os.pipe()
        os.set_blocking(read, False)
        self.output = Output(places, KEY, read, os.open(os.devnull, os.O_WRONLY))

    def write(self, data: bytes, now: float = 0.0) -> None:
        os.write(self._write, data)
        while select.select([self.output.pipe], [], [], 0)[0]:
            assert self.output.take(now)

    def close(self) -> None:
        os.close(self._write)
        self.output.close(0.0)


def written(places: StateDir) -> dict[int, bytes]:
    return {each.base: each.path.read_bytes() for each in places.outputs().get(KEY, [])}


def test_output_is_kept_in_files_of_bounded_size(
    places: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_module, "_SEGMENT_BYTES", 4)
    writer = Writer(places)
    for piece in (b"abcd", b"ef", b"gh", b"ij"):
        writer.write(piece)
    writer.close()
    assert written(places) == {4: b"efgh", 8: b"ij"}
    assert writer.output.total_bytes == 10


def test_no_file_is_made_for_a_task_that_writes_nothing(places: StateDir) -> None:
    writer = Writer(places)
    writer.close()
    assert written(places) == {}


def test_what_a_full_disk_cannot_take_is_counted_and_told(
    places: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_module, "_SEGMENT_BYTES", 5)
    writer = Writer(places)
    writer.write(b"first")
    places.attempts.rename(places.state / "gone")
    writer.write(b"lost", now=10.0)
    (places.state / "gone").rename(places.attempts)
    writer.write(b"lost too", now=10.5)
    monkeypatch.undo()
    writer.write(b"last", now=11.5)
    writer.close()
    note = b"[phalanx: 12 bytes of output were lost: No such file or directory]\n"
    assert written(places) == {0: b"first", 17: note + b"last"}


def test_a_shipment_that_is_far_behind_goes_on_near_the_end(places: StateDir) -> None:
    old, new = (Segment(places.output(KEY, base), base) for base in (0, 20 * 1024**2))
    old.path.write_bytes(b"a" * 10)
    new.path.write_bytes(b"b" * 100)
    shipment = Shipment()
    assert next_bytes(shipment, [old]) == b"a" * 10
    assert next_bytes(shipment, [old, new]) == b"b" * 100
    assert shipment.offset == 20 * 1024**2
    shipment.offset += 100
    assert next_bytes(shipment, [old, new]) == b""


def test_what_nobody_knows_any_more_is_swept(places: StateDir) -> None:
    for key in (KEY, ("j-1.0", 2), ("j-9.0", 3)):
        places.output(key, 0).touch()
        places.progress(key).touch()
    places.sweep({KEY})
    assert {path.name for path in places.attempts.iterdir()} == {
        "j-1.0.3.out.0",
        "j-1.0.3.progress",
    }


# Progress


def test_progress_is_the_last_step_and_whether_anything_was_safe(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    file = ProgressFile(path)
    assert file.read() is None
    path.write_text('{"step": 1, "checkpoint": true}\nnonsense\n{"step": 2}\n{"step": 3')
    assert file.read() == ProgressReport(2, safe=True)
    assert file.read() is None
    with path.open("a") as more:
        more.write("}\n")
    assert file.read() == ProgressReport(3, safe=False)


# Reports


def test_a_report_is_repeated_until_it_was_heard() -> None:
    reports = UnsentReports()
    running = TaskReport(*KEY, Reported.RUNNING)
    reports.put(running)
    said = reports.take(full=False)
    assert said == (running,)
    ended = TaskReport(*KEY, Reported.EXITED, exit_code=0)
    reports.put(ended)
    reports.heard(said)
    assert reports.take(full=False) == (ended,), "the newer one was not heard yet"
    reports.heard((ended,))
    assert reports.take(full=False) == ()
    assert reports.take(full=True) == (ended,)


def test_what_is_safe_is_said_once() -> None:
    reports = UnsentReports()
    reports.put(TaskReport(*KEY, Reported.RUNNING))
    reports.progressed(KEY, ProgressReport(4, safe=True))
    reports.progressed(KEY, ProgressReport(5, safe=False))
    said = reports.take(full=True)
    assert said == (TaskReport(*KEY, Reported.RUNNING, step=5, safe=True),)
    reports.heard(said)
    assert reports.take(full=True) == (TaskReport(*KEY, Reported.RUNNING),)


@pytest.mark.parametrize(
    ("life", "state"),
    [
        (Life(*KEY, begun=True), Reported.RUNNING),
        (Life(*KEY, begun=True, exit_code=0), Reported.EXITED),
        (Life(*KEY, begun=True, signal=9), Reported.EXITED),
        (Life(*KEY, failure="no"), Reported.SPAWN_FAILED),
        (Life(*KEY, gone=True), Reported.GONE),
    ],
)
def test_every_life_has_its_report(life: Life, state: Reported) -> None:
    report = report_of(life)
    assert report is not None
    assert report.state is state


def test_a_process_that_does_not_run_yet_is_not_reported() -> None:
    assert report_of(Life(*KEY)) is None


# Trees


_MARKED = """
import os, subprocess, sys
from phalanx.agent import tree
with tree.marked(int(sys.argv[1])):
    family = ["sh", "-c", "env -i setsid sleep 1000 & echo $! $$; wait"]
    first = subprocess.Popen(family, stdout=subprocess.PIPE, text=True)
print(first.stdout.readline(), flush=True)
sys.stdin.read()
"""


def test_a_mark_is_found_on_everything_that_came_of_a_process() -> None:
    mark = process_tree.new_mark()
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", _MARKED, str(mark)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        family = set(map(int, process.stdout.readline().split()))
        assert set(process_tree.members(mark)) == family
        assert process_tree.members(process_tree.new_mark()) == []
        process_tree.end([mark], None)
        assert process_tree.members(mark) == []
        process.stdin.close()


def test_marks_limit_nothing() -> None:
    assert process_tree.new_mark() > 1 << 61
    assert resource.getrlimit(resource.RLIMIT_RSS)[1] == resource.RLIM_INFINITY


# Groups


_HYBRID = "1 0 0:28 / /sys rw - tmpfs none rw\n41 31 0:38 / /sys/u rw - cgroup2 none rw"
_BOX = r"1 0 0:1 /box/a /my\040groups rw shared:4 - cgroup2 none rw"


@pytest.mark.parametrize(
    ("own", "mounts", "home"),
    [
        ("4:memory:/m\n0::/", _HYBRID, "/sys/u"),
        ("0::/system.slice/w.service", _HYBRID, "/sys/u/system.slice/w.service"),
        ("0::/box/a/b", _BOX, "/my groups/b"),
        ("0::/box/another", _BOX, None),
        ("0::/../outside", _HYBRID, None),
        ("4:memory:/m", _HYBRID, None),
        ("0::/", "1 0 0:28 / /sys rw - tmpfs none rw", None),
    ],
)
def test_the_group_of_a_worker_is_found_wherever_groups_are_mounted(
    own: str, mounts: str, home: str | None, tmp_path: Path
) -> None:
    (tmp_path / "cgroup").write_text(own + "\n")
    (tmp_path / "mountinfo").write_text(mounts + "\n")
    assert cgroups.find_home(tmp_path) == (Path(home) if home is not None else None)


def test_where_no_group_can_be_made_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "mountinfo").write_text(f"1 0 0:1 / {tmp_path}/no rw - cgroup2 none rw\n")
    for there in (False, True):  # the second time it is a folder, and not one of groups
        if there:
            (tmp_path / "no").mkdir()
        groups = cgroups.ControlGroups(tmp_path / "note", tmp_path)
        assert groups.make(KEY) is None
        assert cgroups.left_by(tmp_path / "note") is None
    assert list((tmp_path / "no").iterdir()) == []


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
    request = HttpRequest("POST", "/", {}, b"", 10)
    held = asyncio.create_task(server.call(request))
    await arrived.wait()
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    arrived.clear()
    second = asyncio.create_task(server.call(request))
    await arrived.wait()
    assert asked[0] is not asked[1], "the first connection still waits for its answer"
    answer(asked[0], b"old")
    answer(asked[1], b"new")
    assert (await second).body == b"new"
    server.close()
    for writer in asked:
        writer.close()
    listening.close()


def test_a_spawner_without_link_and_tasks_does_not_stay_for_ever(tmp_path: Path) -> None:
    hasty = (
        "import sys; from phalanx.agent.spawner import spawner as s;"
        " s._ALONE_S = 0.2; s.main(sys.argv[1])"
    )
    command = [sys.executable, "-c", hasty, str(tmp_path)]
    ended = subprocess.run(command, timeout=60, check=False)  # noqa: S603
    assert ended.returncode == 0
