"""Times, amounts, tables and stories as people read them."""

from datetime import UTC, datetime
from typing import Any, get_args

import pytest

from phalanx.cli import event_text, formatting, output
from phalanx.core.model import Phase
from phalanx.core.records import Record, kind_of
from phalanx.wire.jobs import Counts, JobView, RecordView

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-3, "0s"),
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (61, "1m 1s"),
        (600, "10m"),
        (661, "11m"),
        (3600, "1h"),
        (3 * 3600 + 125, "3h 2m"),
        (86_400 * 2 + 3_600, "2d 1h"),
        (86_400 * 12 + 3_600, "12d"),
    ],
)
def test_a_time_has_two_units_at_most(seconds: float, told: str) -> None:
    assert formatting.lasting(seconds) == told


def test_ages_have_the_one_unit_that_matters() -> None:
    assert formatting.ago("2026-01-05T11:57:30Z", NOW) == "2m 30s ago"
    assert formatting.age("2026-01-05T11:57:30Z", NOW) == "2m"


def test_what_is_scarce_is_told_first() -> None:
    assert formatting.rounded("memory", "24684100Ki") == "23.5Gi"
    assert formatting.rounded("memory", "512Mi") == "512Mi"
    assert formatting.rounded("memory", "11Gi") == "11Gi"
    assert formatting.rounded("cpu", "1500m") == "1500m"
    assert formatting.amounts({"zeta": 1, "memory": "1Gi", "cpu": 2, "gpu": 1, "alpha": 3}) == (
        "gpu 1, cpu 2, memory 1Gi, alpha 3, zeta 1"
    )
    assert formatting.amounts({}) == "-"


def test_tasks_are_counted_in_words() -> None:
    counts = Counts(succeeded=1, failed=0, running=2, pending=0, total=3)
    assert formatting.counted(counts) == "3 tasks: 2 running, 1 done"
    assert formatting.counted(Counts(0, 0, 0, 0, 0)) == "none yet"


def a_job(**fields: Any) -> JobView:
    given: dict[str, Any] = {
        "id": "j-1",
        "name": "j-1",
        "namespace": "default",
        "queue": "default",
        "phase": Phase.PENDING,
        "priority": 0,
        "size": 1,
        "created_at": "2026-01-05T11:57:30Z",
        "epoch": 0,
        "failures": 0,
    }
    return JobView(**(given | fields))


def test_a_job_is_called_by_its_name_and_by_its_namespace_where_that_says_something() -> None:
    assert formatting.title(a_job()) == "-"
    assert formatting.title(a_job(name="train")) == "train"
    assert formatting.title(a_job(name="train", namespace="lab")) == "lab/train"


def test_a_job_explains_itself_as_far_as_there_is_something_to_say() -> None:
    assert formatting.explanation(a_job()) == "for the next plan"
    assert formatting.explanation(a_job(reason={"type": "X", "message": "no room"})) == "no room"
    assert formatting.explanation(a_job(phase=Phase.FAILED, cause="it broke")) == "it broke"
    assert formatting.explanation(a_job(phase=Phase.DONE, cause="it is complete")) == ""
    assert formatting.explanation(a_job(phase=Phase.RUNNING)) == ""


def shown(capsys: pytest.CaptureFixture[str], *rows: tuple[str, str, str]) -> list[str]:
    output.print_table(["ID", "#COUNT", "WHY"], rows)
    return capsys.readouterr().out.splitlines()


LONG = ("x" * 30, "7", "because " * 20)


def test_a_table_in_a_pipe_is_never_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert shown(capsys, LONG)[1] == f"{'x' * 30}      7  {'because ' * 20}".rstrip()


def test_a_table_on_a_screen_gives_up_its_last_column_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    head, line = shown(capsys, LONG)
    assert len(line) <= 60
    assert line.startswith("x" * 30 + "      7  because")
    assert line.endswith("…")
    assert head == f"{'ID':30}  COUNT  WHY"


def record(kind: str, **fields: Any) -> RecordView:
    return RecordView(seq=1, at="2026-01-05T12:00:00Z", kind=kind, **fields)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (record("JobSubmitted", detail={"size": 4, "owner": "ada"}), "submitted by ada with 4"),
        (
            record("GangReserved", epoch=2, detail={"size": 2, "workers": ["a", "b"]}),
            "attempt 2: reserved 2 tasks on a, b",
        ),
        (record("TaskFailed", task=3, worker="a", detail={"why": "exited"}), "task 3 exited on a"),
        (record("GangStopped", detail={"outcome": "pending", "seconds": 1.26}), "after 1.3 s"),
        (record("JobEnded", detail={"phase": "failed", "why": "it broke"}), "failed: it broke"),
        (record("MoonRose", worker="a", detail={"how": "slowly"}), "moon rose: how slowly, "),
        (record("TaskFailed", task=3), "task 3 failed"),
        (
            record("TaskFailed", task=3, worker="a", detail={"why": "was on a, which was lost"}),
            "task 3 was on a, which was lost",
        ),
        (
            record("TaskFailed", task=3, worker="a", detail={"why": "could not be started: x"}),
            "task 3, on a, could not be started: x",
        ),
    ],
)
def test_a_record_is_told_as_a_sentence(told: RecordView, sentence: str) -> None:
    assert sentence in event_text.sentence(told)


def test_every_kind_of_record_has_a_sentence() -> None:
    kinds = {kind_of(kind) for kind in get_args(Record)}
    assert len(kinds) > 20
    assert not kinds - event_text.KNOWN, "give it a sentence in src/phalanx/cli/event_text.py"
