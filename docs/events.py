"""Writes docs/reference/events.md from the kinds of records in the code.

A test fails while the page and the records differ; `python -m docs.events` writes it again.
"""

import inspect
import re
from enum import EnumMeta
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

from phalanx.core import records
from phalanx.core.causes import CauseKind, TaskEnding
from phalanx.core.ledger import LostTo
from phalanx.core.model import Phase
from phalanx.core.records import MOMENT, Record, RecordBase, kind_of
from phalanx.core.spec.watch import AbnormalKind
from phalanx.wire.event_text import sentence
from phalanx.wire.events import with_iso_times

PAGE = Path(__file__).parent / "reference" / "events.md"

HEAD = """\
# Events

<!-- from phalanx.core.records by `python -m docs.events`; do not edit -->

Phalanx records everything that happens to jobs, workers, queues and crons as an event: numbered,
typed, and kept in the store. Read the events of one job with `phalanx events JOB`,
[`GET /jobs/{job_id}/events`](http.md) or `client.events(job)`. Follow everything that happens in
the cluster with `phalanx events -f`, [`GET /events`](http.md) or `client.stream()`. The events of a
job are kept as long as the job.

```json
@JSON@
```

## Fields of every event

| field | type | meaning |
| --- | --- | --- |
| `kind` | string | one of the kinds below |
| `seq` | integer | number of the event; numbers rise and have no gaps |
| `at` | time | when it happened, in UTC (ISO 8601) |

Most kinds also have some of these:

| field | type | meaning |
| --- | --- | --- |
| `job` | string | id of the job |
| `attempt` | integer | number of the attempt, as in `phalanx logs --attempt` |
| `task` | integer | index of the task, from 0, as in `$(task.index)` |
| `worker` | string or null | id of the worker; null for a task claimed without one |
| `queue`, `cron` | string | name of the queue; namespace/name of the cron |

Empty fields and fields with their default value are left out. The stream has one more kind,
`resync`: the reader missed events, because it fell too far behind or the server restarted. Reload
the state that you display, then continue reading.

In Python, match on the types in `phalanx.core.records`:

```python
from phalanx.core.records import JobEnded, TaskFailed

for event in client.events(job.id, follow=True):
    match event:
        case TaskFailed(task=task, attempt=attempt, why=why):
            print(f"{event.time:%H:%M:%S} attempt {attempt}: task {task} {why}")
        case JobEnded(phase=phase):
            print(f"ended as {phase}")
```

The line under each kind is an example of what `phalanx events` prints.
"""

J, W1, W2 = "j-7kq2m4xd", "w-1", "w-2"
NOW = 1_767_600_000_000_000
TEN_MINUTES = 600_000_000

#: One example of every kind, in the order of the union.
EXAMPLES: tuple[Record, ...] = (
    records.JobSubmitted(J, 4, "ada"),
    records.ArraySubmitted(J, 20, 1, "ada"),
    records.ElementFailed(J, 7, Phase.FAILED, "task 0 exited with code 1 on w-2"),
    records.ElementsCancelRequested(J, "3-5", "ada"),
    records.ElementsRetryRequested(J, "7", "ada"),
    records.MembersAdded(J, ("pod-2",), 3),
    records.DependenciesMet(J),
    records.JobCancelRequested(J, "ada"),
    records.JobHeld(J, "ada"),
    records.JobReleased(J, "ada"),
    records.JobPriorityChanged(J, 0, 100, "ada"),
    records.JobImagesPinned(J, (f"registry.example/train@sha256:{'116f54c4' * 8}",)),
    records.PlacesGathered(J, 3, 4),
    records.GatheredPlacesReleased(J, 3, "no gathering gang could reach its minimum"),
    records.CapacityKept(J, 2, ("j-p3x9c2va.0", "j-p3x9c2va.1"), NOW + TEN_MINUTES),
    records.KeptCapacityReleased(J),
    records.JobEnded(J, Phase.FAILED, "task 2 exited with code 1 on w-2"),
    records.GangReserved(J, 1, 4, (W1, W2, "w-10", "w-3")),
    records.GangStarting(J, 1, 4, 4),
    records.ReservationLost(J, 1, "not acknowledged in time by w-2", (W2,)),
    records.JobEvicted(
        J,
        1,
        "task workers preempted by higher-priority job ml/team-b-urgent",
        other_job="ml/team-b-urgent",
    ),
    records.JobShrunk(J, 1, (4, 5), "ml/big"),
    records.GangStopping(J, 1, CauseKind.FAILURE, "task 2 was killed by SIGKILL on w-1", 3, 2),
    records.GangStopped(J, 1, Phase.PENDING, 0.1),
    records.DoneTasksRequeued(J, 1, (0, 3)),
    records.RetryDelayed(J, 2, 10.0, 2),
    records.WorkLost(J, 1, LostTo.FAILURE, "task 2 was killed by SIGKILL on w-1", 6.0, 0.02),
    records.CheckpointMissing(J, 1, 3600.0, 14400.0, 14.0),
    records.GangCheckpointSaved(J, 1, 4),
    records.TaskStarted(J, 1, 2, W1),
    records.TaskClaimed(J, 1, 0, W1),
    records.TaskDone(J, 1, 2, W1),
    records.TaskStopped(J, 1, 2, W1),
    records.TaskFailed(J, 1, 2, W1, TaskEnding.EXITED, "was killed by SIGKILL on w-1", signal=9),
    records.TaskStopTimedOut(J, 1, 2, W1),
    records.TaskCheckpointSaved(J, 1, 2, W1, 12_582_912),
    records.TaskPreparing(J, 1, 2, W1, "pulling image registry.example/train:7"),
    records.TaskProblemReported(
        J, 1, 2, W1, "checkpoint not saved: 20.0 MiB, the limit is 16.0 MiB"
    ),
    records.TaskCheckpointDiscarded(J, 2, 2, W1, 54),
    records.TaskValueAbnormal(J, 1, 2, W1, 2, "loss", AbnormalKind.SPIKE, 120, 57.1, 6.96),
    records.WorkerSuspected(J, 1, 2, W1, 2, 120),
    records.WorkSaved(J, 1, 2, W1, 1200),
    records.AttemptGone(J, 1, 2, W1),
    records.WorkerJoined(W1, "4f1c"),
    records.WorkerDeclaredLost(W1),
    records.WorkerRecovered(W1),
    records.WorkerDeleted(W1, "ada"),
    records.WorkerCordoned(
        W1, "3 jobs of 2 users failed on this worker within 10 minutes, and not elsewhere"
    ),
    records.WorkerUncordoned(W1),
    records.WorkerDraining(W1, "new kernel", 0, "ada"),
    records.WorkerShuttingDown(W1),
    records.QueueCreated("research", "ada"),
    records.QueueChanged("research", "ada"),
    records.QueueDeleted("research"),
    records.CronCreated("ml/nightly", "ada"),
    records.CronChanged("ml/nightly", "ada"),
    records.CronDeleted("ml/nightly", "ada"),
    records.CronSchedulePaused("ml/nightly", "ada"),
    records.CronScheduleResumed("ml/nightly", "ada"),
    records.CronRunRequested("ml/nightly", "ada"),
    records.CronSkipped("ml/nightly", NOW, "j-p3x9c2va"),
    records.CronReplacing("ml/nightly", NOW),
    records.CronDenied(
        "ml/nightly",
        NOW,
        "ada",
        "policy no-nights forbids SubmitJob on namespace ml for ada",
        ("no-nights",),
    ),
    records.CronFired(J, "ml/nightly", NOW),
)

GROUPS: dict[str, Any] = {
    "Jobs": records.JobRecords,
    "Attempts": records.AttemptRecords,
    "Tasks": records.TaskRecords,
    "Workers": records.WorkerRecords,
    "Queues": records.QueueRecords,
    "Crons": records.CronRecords,
}

#: Values that have a table of their own.
ENUMS: dict[EnumMeta, str] = {
    CauseKind: "Causes",
    TaskEnding: "Endings of tasks",
}


def comments(kind: type[RecordBase]) -> dict[str, str]:
    """What is written after `#:` beside the fields of the kind and of its bases."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if issubclass(each, RecordBase):
            source = inspect.getsource(each)
            found |= dict(re.findall(r"^    (\w+): .*?#: (.+)$", source, flags=re.MULTILINE))
    return found


def type_name(form: Any) -> str:
    """A type as JSON has it."""
    if get_origin(form) is Annotated:
        return "time" if MOMENT in get_args(form) else type_name(get_args(form)[0])
    if isinstance(form, UnionType):
        return " or ".join(type_name(part) for part in get_args(form))
    if get_origin(form) is tuple:
        return f"list of {type_name(get_args(form)[0])}s"
    if isinstance(form, EnumMeta):
        return _enum_name(form)
    names = {bool: "boolean", int: "integer", float: "number", str: "string", NoneType: "null"}
    return names[form]


def _enum_name(form: EnumMeta) -> str:
    if form is Phase:
        return "phase"
    title = ENUMS.get(form)
    if title is None:
        return ", ".join(f"`{member.value}`" for member in form)  # type: ignore[var-annotated]
    noun = title.partition(" ")[0].lower().removesuffix("s")
    return f"[{noun}](#{title.lower().replace(' ', '-')})"


def row(field: FieldInfo, meaning: str) -> str:
    default = (
        "" if field.required or field.default in ("", None) else f" (default `{field.default}`)"
    )
    return f"| `{field.name}` | {type_name(field.type)}{default} | {meaning} |"


def section(example: Record) -> str:
    kind = type(example)
    meanings = comments(kind)
    shared = {"seq", "at"}
    fields = [field for field in msgspec.structs.fields(kind) if field.name not in shared]
    meaning = " ".join((kind.__doc__ or "").split())
    rows = "\n".join(row(field, meanings.get(field.name, "")) for field in fields)
    return (
        f"### `{kind_of(kind)}`\n\n{meaning}\n\n```text\n{sentence(example)}\n```\n\n"
        f"| field | type | meaning |\n| --- | --- | --- |\n{rows}\n"
    )


def values(enum: EnumMeta, title: str) -> str:
    source = inspect.getsource(enum)
    rows = [
        f"| `{value}` | {meaning} |"
        for value, meaning in re.findall(r'^    \w+ = "(.+)"  #: (.+)$', source, flags=re.MULTILINE)
    ]
    meaning = " ".join((enum.__doc__ or "").split())
    head = "| value | meaning |\n| --- | --- |"
    return f"## {title}\n\n{meaning}\n\n{head}\n" + "\n".join(rows) + "\n"


def page() -> str:
    shown = records.TaskFailed(
        J, 1, 2, W1, TaskEnding.EXITED, "was killed by SIGKILL on w-1", signal=9, seq=1042, at=NOW
    )
    json = msgspec.json.format(msgspec.json.encode(with_iso_times(shown)), indent=2).decode()
    parts = [HEAD.replace("@JSON@", json)]
    by_kind = {type(example): example for example in EXAMPLES}
    for title, kinds in GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [section(by_kind[kind]) for kind in get_args(kinds)]
    parts += [values(enum, title) for enum, title in ENUMS.items()]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
