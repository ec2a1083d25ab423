"""Events as sentences."""

from typing import Any, get_args

import pytest

from phalanx.cli import event_text
from phalanx.core.records import Record, kind_of
from phalanx.wire.jobs import RecordView


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
