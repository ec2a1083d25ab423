"""Times, amounts, jobs and tables as text."""

from datetime import UTC, datetime
from typing import Any

import pytest

from phalanx.cli import formatting, output
from phalanx.core.model import Phase
from phalanx.wire.jobs import Counts, JobView

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


def test_ages_show_the_largest_unit() -> None:
    assert formatting.ago("2026-01-05T11:57:30Z", NOW) == "2m 30s ago"
    assert formatting.age("2026-01-05T11:57:30Z", NOW) == "2m"


def test_amounts_list_the_scarcest_resource_first() -> None:
    assert formatting.rounded_amount("memory", "24684100Ki") == "23.5Gi"
    assert formatting.rounded_amount("memory", "512Mi") == "512Mi"
    assert formatting.rounded_amount("memory", "11Gi") == "11Gi"
    assert formatting.rounded_amount("cpu", "1500m") == "1500m"
    assert formatting.amounts({"zeta": 1, "memory": "1Gi", "cpu": 2, "gpu": 1, "alpha": 3}) == (
        "gpu 1, cpu 2, memory 1Gi, alpha 3, zeta 1"
    )
    assert formatting.amounts({}) == "-"


def test_tasks_are_counted_by_state() -> None:
    counts = Counts(succeeded=1, failed=0, running=2, pending=0, total=3)
    assert formatting.task_counts(counts) == "3 tasks: 2 running, 1 done"
    assert formatting.task_counts(Counts(0, 0, 0, 0, 0)) == "none yet"


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
        "attempt": 0,
        "failures": 0,
    }
    return JobView(**(given | fields))


def test_a_job_name_has_its_namespace_unless_that_is_the_default() -> None:
    assert formatting.display_name(a_job()) == "-"
    assert formatting.display_name(a_job(name="train")) == "train"
    assert formatting.display_name(a_job(name="train", namespace="lab")) == "lab/train"


def test_a_reason_is_shown_for_a_job_that_is_pending_stopping_or_ended_badly() -> None:
    assert formatting.reason_text(a_job()) == "queued"
    assert formatting.reason_text(a_job(reason={"type": "X", "message": "short of GPUs"})) == (
        "short of GPUs"
    )
    assert formatting.reason_text(a_job(phase=Phase.FAILED, cause="it broke")) == "it broke"
    assert formatting.reason_text(a_job(phase=Phase.DONE, cause="it is complete")) == ""
    assert formatting.reason_text(a_job(phase=Phase.RUNNING)) == ""


def printed(capsys: pytest.CaptureFixture[str], *rows: tuple[str, str, str]) -> list[str]:
    output.print_table(["ID", "#COUNT", "REASON"], rows)
    return capsys.readouterr().out.splitlines()


LONG = ("x" * 30, "7", "because " * 20)


def test_a_table_in_a_pipe_is_never_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert printed(capsys, LONG)[1] == f"{'x' * 30}      7  {'because ' * 20}".rstrip()


def test_a_table_on_a_screen_cuts_its_last_column_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    head, line = printed(capsys, LONG)
    assert len(line) <= 60
    assert line.startswith("x" * 30 + "      7  because")
    assert line.endswith("…")
    assert head == f"{'ID':30}  COUNT  REASON"
