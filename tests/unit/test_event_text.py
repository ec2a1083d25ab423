"""Events as sentences and as JSON: every kind has both, and the reference page shows them."""

from typing import Any, get_args

import msgspec
import pytest
from docs import events as events_page

from phalanx.core import records
from phalanx.core.causes import CauseKind, TaskEnding
from phalanx.core.ledger import LostTo
from phalanx.core.model import Phase
from phalanx.core.records import Record, RecordBase, kind_of
from phalanx.store.rows import record_from
from phalanx.wire.event_text import sentence, style
from phalanx.wire.events import Event, Resync, UnknownEvent, event_from, with_iso_times

WORKERS = tuple(f"w-{number}" for number in range(1, 13))


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (records.JobSubmitted("j", 4, "ada"), "submitted by ada: 4 tasks"),
        (records.JobSubmitted("j", 1), "submitted: 1 task"),
        (records.JobCancelRequested("j"), "cancelled"),
        (
            records.GangReserved("j", 2, 3, ("w-10", "w-2", "w-1")),
            "attempt 2: reserved 3 tasks on w-1, w-2, w-10",
        ),
        (
            records.GangReserved("j", 1, 12, WORKERS),
            "attempt 1: reserved 12 tasks on w-1, w-2, w-3, w-4, w-5, w-6, w-7 and 5 more",
        ),
        (records.GangStarting("j", 1, 4, 4), "all 4 workers ready, starting"),
        (records.GangStarting("j", 1, 8, 2), "all 2 workers ready, starting 8 tasks"),
        (records.GangStarting("j", 1, 1, 1), "starting 1 task"),
        (
            records.GangStopping("j", 1, CauseKind.FAILURE, "task 2 exited with code 1 on a", 3, 2),
            "stopping all tasks: task 2 exited with code 1 on a",
        ),
        (
            records.GangStopped("j", 1, Phase.PENDING, 1.26),
            "all tasks stopped after 1.3 s, job requeued",
        ),
        (records.RetryDelayed("j", 1, 10.0, 1), "next attempt in 10 s"),
        (
            records.RetryDelayed("j", 2, 20.0, 2),
            "next attempt in 20 s after 2 failures in a row",
        ),
        (
            records.GangStopped("j", 1, Phase.TIMED_OUT, 0.04),
            "all tasks stopped after 0.0 s, job timed out",
        ),
        (
            records.WorkLost("j", 1, LostTo.FAILURE, "task 2 failed", 6.2, 0),
            "lost 6 GPU-seconds of work (failure)",
        ),
        (
            records.WorkLost("j", 1, LostTo.EVICTION, "preempted", 9000, 0, "ml/big"),
            "lost 2.5 GPU-hours of work (eviction by ml/big)",
        ),
        (
            records.WorkLost("j", 1, LostTo.FAILURE, "task 2 failed", 0, 0),
            "lost unsaved work (failure)",
        ),
        (
            records.TaskStopped("j", 1, 3, "a", TaskEnding.WORKER_LOST),
            "task 3 was lost with a while stopping",
        ),
        (records.TaskCheckpointSaved("j", 1, 3, "a", 12), "task 3 saved a checkpoint of 12 bytes"),
        (records.TaskClaimed("j", 1, 0, None), "task 0 claimed"),
        (records.JobEnded("j", Phase.DONE, "job complete"), "job done"),
        (records.JobEnded("j", Phase.CANCELLED, "cancelled by ada"), "job cancelled by ada"),
        (
            records.JobEnded("j", Phase.CANCELLED, "replaced by the next run of cron a/b"),
            "job cancelled: replaced by the next run of cron a/b",
        ),
        (
            records.JobEnded("j", Phase.TIMED_OUT, "not started within 60 s"),
            "job timed out: not started within 60 s",
        ),
        (
            UnknownEvent("MoonRose", {"worker": "a", "how": "slowly"}),
            "moon rose: worker a, how slowly",
        ),
        (Resync(seq=7), "some events were missed here"),
    ],
)
def test_an_event_is_a_sentence(event: Event, said: str) -> None:
    assert sentence(event) == said


def test_every_kind_has_an_example_and_a_sentence() -> None:
    assert [type(example) for example in events_page.EXAMPLES] == list(get_args(Record))
    for example in events_page.EXAMPLES:
        said = sentence(example)
        assert said
        assert said == said.strip()


def test_failures_stand_out() -> None:
    failed = records.TaskFailed("j", 1, 0, "a", TaskEnding.EXITED, "exited with code 1 on a", 1)
    assert style(failed) == "red"
    assert style(records.JobEnded("j", Phase.FAILED, "")) == "red"
    assert style(records.JobEnded("j", Phase.DONE, "")) == "bold"
    assert not style(records.TaskDone("j", 1, 0, "a"))


@pytest.mark.parametrize("example", events_page.EXAMPLES, ids=kind_of)
def test_a_record_comes_back_from_the_store_and_over_the_wire_as_it_was(example: Record) -> None:
    numbered = msgspec.structs.replace(example, seq=7, at=1_767_600_000_000_123)
    assert record_from(msgspec.json.encode(numbered).decode()) == numbered
    assert event_from(public(numbered)) == numbered


def public(record: RecordBase) -> dict[str, Any]:
    json: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(with_iso_times(record)))
    return json


def test_the_public_json_is_flat_and_has_one_name_per_thing() -> None:
    at = 1_767_600_000_000_000
    draining = records.WorkerDraining("w-1", "new kernel", at + 60_000_000, "ada", seq=8, at=at)
    assert public(draining) == {
        "kind": "WorkerDraining",
        "seq": 8,
        "at": "2026-01-05T08:00:00.000000Z",
        "worker": "w-1",
        "why": "new kernel",
        "until": "2026-01-05T08:01:00.000000Z",
        "by": "ada",
    }
    assert public(records.TaskStarted("j-1", 2, 0, "w-1", seq=9, at=at)) == {
        "kind": "TaskStarted",
        "seq": 9,
        "at": "2026-01-05T08:00:00.000000Z",
        "job": "j-1",
        "attempt": 2,
        "task": 0,
        "worker": "w-1",
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "MoonRose", "job": "j-1"},
        {"kind": "JobEnded", "job": "j-1", "phase": "paused", "why": ""},
    ],
)
def test_a_client_can_read_events_of_a_newer_server(fields: dict[str, Any]) -> None:
    event = event_from(fields | {"seq": 3, "at": "2026-01-05T08:00:00.000000Z"})
    assert isinstance(event, UnknownEvent)
    assert (event.seq, event.name, event.fields["job"]) == (3, fields["kind"], "j-1")
    assert sentence(event)


def test_the_reference_page_is_written_from_the_records() -> None:
    written = events_page.PAGE.read_text("utf-8")
    assert written == events_page.page(), "run `make docs`"
    for kind in get_args(Record):
        assert f"### `{kind_of(kind)}`" in written
