"""Tables on a narrow terminal: columns are left out or cut, ids, phases and times never."""

import pytest
from msgspec.structs import replace
from rich.table import Table

from phalanx.cli.jobs import jobs_table
from phalanx.cli.output import Narrow, print_table_with_texts, print_trimmed, table_of
from phalanx.cli.queues import print_queues
from phalanx.cli.workers import workers_table
from phalanx.core.model import Limit, Phase, Protocol
from phalanx.wire.jobs import ElementsView, JobView
from phalanx.wire.workers import QueueUsage, QueueView, WorkerView

REASON = "held back: starting now would delay j-abcdefgh (reserved start 2026-01-01T00:00:00Z)"


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def lines(table: Table, capsys: pytest.CaptureFixture[str]) -> list[str]:
    print_trimmed(table)
    return capsys.readouterr().out.splitlines()


def a_job(**fields: object) -> JobView:
    given: dict[str, object] = {
        "id": "j-7kq2m4xd",
        "name": "pretrain-with-a-long-name-0017",
        "namespace": "research-team",
        "queue": "research-large-models",
        "phase": Phase.TIMED_OUT,
        "priority": 100_000,
        "size": 1024,
        "created_at": "2026-01-01T00:00:00Z",
        "attempt": 1,
        "failures": 0,
        "owner": "",
        "on_hold": False,
        "finished_at": None,
        "reason": {"message": REASON},
    }
    return JobView(**(given | fields))  # type: ignore[arg-type]


def some_elements(**counts: int) -> ElementsView:
    phases = ("total", "pending", "starting", "running", "stopping", "done", "failed")
    none = dict.fromkeys((*phases, "cancelled", "timed_out", "never_ran"), 0)
    return ElementsView(**(none | counts), parallel=None)


def test_a_list_of_jobs_fits_80_columns_with_whole_ids_phases_and_ages(
    capsys: pytest.CaptureFixture[str],
) -> None:
    heading, job = lines(jobs_table([a_job()]), capsys)
    assert max(len(heading), len(job)) <= 80
    assert heading.split() == ["JOB", "NAME", "PHASE", "TASKS", "AGE", "REASON"]
    assert job.startswith("j-7kq2m4xd  ")
    assert " timed-out " in job
    assert job.rstrip().endswith("…")


def test_a_list_of_jobs_with_an_array_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    counts = some_elements(total=10_000, done=2_156, failed=3, never_ran=7_794, pending=47)
    array = a_job(phase=Phase.RUNNING, elements=counts, reason=None)
    ended = a_job(phase=Phase.CANCELLED, finished_at="2026-01-01T00:00:01Z")
    table = lines(jobs_table([a_job(), array, ended]), capsys)
    assert max(map(len, table)) <= 80
    assert table[0].split() == ["JOB", "NAME", "PHASE", "AGE", "PROGRESS", "REASON"]
    assert "  2156/10000 done, 3" in table[2]
    few = a_job(
        name="sweep",
        size=1, namespace="default", phase=Phase.RUNNING, priority=0, queue="default",
        elements=some_elements(total=20, done=6, running=2, pending=12), reason=None,
    )  # fmt: skip
    _, row = lines(jobs_table([few]), capsys)
    assert row.endswith("6 of 20 done, 2 running, 12 pending")


def test_a_list_of_workers_fits_80_columns_with_whole_ids_and_amounts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    worker = WorkerView(
        "gpu-node-17",
        "cordoned",
        Protocol.SYNC,
        "1",
        "gpu-node-17:7000",
        {"gpu": 8, "cpu": 192, "memory": "2Ti"},
        {"gpu": 0, "cpu": 12, "memory": "1Ti"},
        {"gpu_model": "nvidia-h200", "rack": "r12", "zone": "eu-west-1"},
        (),
        8,
        "2026-01-01T00:00:00Z",
        limits=(Limit.MEMORY, Limit.CPU, Limit.PROCESSES),
        cordoned="new firmware",
    )
    heading, row = lines(workers_table([worker]), capsys)
    assert max(len(heading), len(row)) <= 80
    assert "LIMITS" not in heading
    assert row.startswith("gpu-node-17  cordoned ")
    assert row.endswith("new firmware")


RESEARCH = QueueView(
    "research",
    quota={"gpu": 4, "memory": "16Gi"},
    limit={"gpu": 8, "cpu": 64},
    weight=3,
    namespaces=("ml", "team-*"),
    usage=QueueUsage(
        {"gpu": 6, "cpu": 12, "memory": "400Mi"}, {"gpu": 5, "cpu": 12}, {"gpu": 1}, 2, 7
    ),
)
VISION = QueueView("vision", weight=1, quota={}, limit={}, parent="research", stopped=True)


def test_on_a_narrow_terminal_every_amount_of_a_queue_has_a_line_below_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_queues([RESEARCH, VISION])
    assert capsys.readouterr().out.splitlines() == [
        "QUEUE     RUNNING  PENDING  WEIGHT  STATE",
        "research        2        7       3  open",
        "  gpu: used 6, fair share 5, borrowed 1, quota 4, limit 8",
        "  cpu: used 12, fair share 12, limit 64",
        "  memory: used 400Mi, quota 16Gi",
        "  namespaces: ml, team-*",
        "  vision        0        0       1  stopped",
    ]


def test_on_a_wider_terminal_the_amounts_of_a_queue_stand_beside_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    print_queues([RESEARCH, VISION])
    heading, gpu, *_, vision = capsys.readouterr().out.splitlines()
    assert heading.split() == ["QUEUE", "RUNNING", "PENDING", "WEIGHT", "STATE", "RESOURCES"]
    at = heading.index("RESOURCES")
    assert gpu[at:] == "gpu: used 6, fair share 5, borrowed 1, quota 4, limit 8"
    assert vision.endswith("stopped")


def test_queues_have_one_line_each_where_there_is_room(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpus = replace(RESEARCH, quota={"gpu": 4}, limit={"gpu": 8}, namespaces=(), usage=None)
    print_queues([with_gpus, VISION])
    assert capsys.readouterr().out.splitlines()[1:] == [
        "research  gpu 4  gpu 8       3  open",
        "  vision  -      -           1  stopped",
    ]
    used = QueueUsage({"gpu": 6}, {"gpu": 5}, {"gpu": 1}, 2, 7)
    with_usage = replace(with_gpus, usage=used)
    print_queues([with_usage, replace(VISION, stopped=False)])
    heading, research, _ = capsys.readouterr().out.splitlines()
    assert len(heading) <= 80
    assert "STATE" not in heading
    assert research.split()[-5:] == ["gpu", "4", "gpu", "8", "3"]
    monkeypatch.delenv("COLUMNS")  # a pipe
    print_queues([RESEARCH, VISION])
    heading, research, _ = capsys.readouterr().out.splitlines()
    assert "LIMIT" in heading
    assert "gpu 8, cpu 64" in research


def test_what_may_not_be_cut_is_longer_than_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = table_of(["ID", "TEXT"], [["x" * 100, "y" * 100]], Narrow(cut=("TEXT",)))
    assert lines(table, capsys)[1] == "x" * 100 + "  " + "y" * 15 + "…"


def test_columns_are_left_out_and_names_take_two_lines_before_a_line_is_too_long(
    capsys: pytest.CaptureFixture[str],
) -> None:
    headings = ["GANG", "QUEUE", "#MIN", "STATE"]
    long = "team-vision/" + "x" * 80
    rows = [[long, "default", "2", "pending"], ["short", "default", "1", "running"]]
    reasons = [["2 of 3 pods fit"], []]
    print_table_with_texts(headings, rows, "REASON", reasons, drop=("QUEUE", "MIN"))
    heading, first, rest, reason, second = capsys.readouterr().out.splitlines()
    assert heading.split() == ["GANG", "STATE"]
    assert first.split() == [long[: len(first.split()[0])], "pending"]
    assert len(first) == 80
    assert first.split()[0] + rest.strip() == long
    assert reason == "  2 of 3 pods fit"
    assert second.split() == ["short", "running"]
