"""The checker: compares what the tasks wrote with what was promised, and with the server's word.

The lines and locks of the processes are the evidence. The server is asked only for what it claims,
and for which workers it had declared lost.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from chaos.journal import TaskRun
from chaos.schedule import PlannedJob

#: How a task ended if its process may have been alive for longer.
_UNSURE = ("worker-lost", "silent", "start-timed-out", "stalled")


class Violation(NamedTuple):
    rule: str
    job: str  #: its name
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: job {self.job}: {self.detail}"


class JobOutcome(NamedTuple):
    """A job at the end of the run: what was asked for, and what the server says."""

    planned: PlannedJob
    id: str
    view: dict[str, Any] | None  #: None if the server does not have it
    events: list[dict[str, Any]]
    is_cancelled: bool

    @property
    def name(self) -> str:
        return self.planned.name

    @property
    def phase(self) -> str:
        return "" if self.view is None else str(self.view["phase"])

    def is_unsure(self, attempt: int) -> bool:
        """Whether the server had given up a process of this attempt, or an earlier one, before it
        was known to be dead. Only a fenced job promises that its attempts do not overlap then."""
        return any(
            event.get("attempt", 0) <= attempt
            and (event["kind"] == "TaskStopTimedOut" or event.get("how") in _UNSURE)
            for event in self.events
        )


def check(
    outcomes: Iterable[JobOutcome], runs: Iterable[TaskRun], listed: Iterable[Mapping[str, Any]]
) -> list[Violation]:
    by_job: dict[str, list[TaskRun]] = defaultdict(list)
    for run in runs:
        by_job[run.job].append(run)
    outcomes = list(outcomes)
    violations = list(_submitted_once(listed))
    for outcome in outcomes:
        of_job = by_job.get(outcome.id, [])
        violations += _ends(outcome, of_job)
        violations += _runs_once(outcome, of_job)
        violations += _claims(outcome, of_job)
        violations += _checkpoints(outcome, of_job)
    violations += _devices(outcomes, by_job)
    return violations


def _submitted_once(listed: Iterable[Mapping[str, Any]]) -> Iterator[Violation]:
    for name, count in Counter(str(job["name"]) for job in listed).items():
        if count > 1:
            yield Violation("submitted-once", name, f"the server has {count} jobs of this name")


def _ends(outcome: JobOutcome, runs: list[TaskRun]) -> Iterator[Violation]:
    """No acknowledged job is lost, and every job ends as it should."""
    planned = outcome.planned
    if outcome.view is None:
        yield Violation("acknowledged-jobs-are-kept", outcome.name, f"no job {outcome.id}")
        return
    expected = {"failed"} if planned.must_fail else {"done"}
    if outcome.is_cancelled:
        expected |= {"cancelled", "done"}
    if planned.may_fail and _was_partly_done(outcome, runs):
        expected |= {"failed"}
    if outcome.phase not in expected:
        cause = outcome.view.get("cause") or "no cause"
        detail = f"is {outcome.phase} ({cause}), expected {' or '.join(expected)}"
        yield Violation("jobs-end-as-they-should", outcome.name, detail)


def _was_partly_done(outcome: JobOutcome, runs: list[TaskRun]) -> bool:
    """Whether the job failed because tasks were done, and the processes agree that some were.

    The others may have ended as well, if their worker could not report it before it was lost.
    """
    is_said = "on_partial_completion is fail" in str((outcome.view or {}).get("cause"))
    return is_said and any(run.is_success for run in runs)


def _runs_once(outcome: JobOutcome, runs: list[TaskRun]) -> Iterator[Violation]:
    """No task runs twice at the same time, and no gang has processes of two attempts."""
    is_fenced = outcome.planned.document["fence"]
    started = Counter((run.task, run.attempt) for run in runs)
    for (task, attempt), count in started.items():
        if count > 1:
            yield Violation("attempts-run-once", outcome.name, f"{task} attempt {attempt}: {count}")
    for run in runs:
        where = f"{run.task} attempt {run.attempt} on {run.worker}"
        may_overlap = not is_fenced and outcome.is_unsure(run.attempt - 1)
        for line in run.complaints("double"):
            if line["what"] != "task":
                yield Violation("devices-are-not-shared", outcome.name, f"{where}: {line['what']}")
            elif not may_overlap:
                detail = f"{where} started while another attempt ran"
                yield Violation("tasks-run-once-at-a-time", outcome.name, detail)
        for line in run.complaints("mixed"):
            if not may_overlap:
                detail = f"{where} started beside attempt {line['other']}"
                yield Violation("attempts-are-not-mixed", outcome.name, detail)


def _claims(outcome: JobOutcome, runs: list[TaskRun]) -> Iterator[Violation]:
    """What the server says of tasks agrees with what their processes wrote."""
    if outcome.view is None:
        return
    ended = {(run.task, run.attempt): run for run in runs}
    for task in outcome.view["tasks"]:
        key = (task["id"], task["attempt"])
        run = ended.get(key)
        if task["state"] == "done" and (run is None or not run.is_success):
            detail = f"{key[0]} is done in attempt {key[1]}, but its process did not end with 0"
            yield Violation("done-tasks-have-ended", outcome.name, detail)
    for run in runs:
        if run.attempt > outcome.view["attempt"]:
            detail = f"{run.task} ran attempt {run.attempt}, the last is {outcome.view['attempt']}"
            yield Violation("attempts-are-known", outcome.name, detail)


def _checkpoints(outcome: JobOutcome, runs: list[TaskRun]) -> Iterator[Violation]:
    """A task resumes from its own state; with `all`, every task from the same stop."""
    attempts: dict[int, list[TaskRun]] = defaultdict(list)
    for run in runs:
        attempts[run.attempt].append(run)
        if run.resumed is not None and run.resumed["task"] != run.task:
            detail = f"{run.task} attempt {run.attempt} got the state of {run.resumed['task']}"
            yield Violation("checkpoints-are-not-mixed-up", outcome.name, detail)
    document = outcome.planned.document
    if document["checkpoint"] != "all" or document["restart"] == "task":
        return
    for attempt, of_attempt in attempts.items():
        origins = {run.resumed["attempt"] for run in of_attempt if run.resumed is not None}
        if len(origins) > 1:
            detail = f"attempt {attempt} resumed from the states of attempts {sorted(origins)}"
            yield Violation("a-set-is-from-one-stop", outcome.name, detail)


def _devices(
    outcomes: list[JobOutcome], by_job: Mapping[str, list[TaskRun]]
) -> Iterator[Violation]:
    """No device is used by two processes at once, by the lines that they wrote."""
    names = {outcome.id: outcome.name for outcome in outcomes}
    used: dict[tuple[str, str], list[TaskRun]] = defaultdict(list)
    for runs in by_job.values():
        for run in runs:
            for device in run.devices:
                used[run.worker, device].append(run)
    for (worker, device), runs in used.items():
        runs.sort(key=lambda run: run.began_at)
        for before, after in pairwise(runs):
            if after.began_at < before.last_at:
                detail = f"device {device} of {worker} by {before.task} and {after.task}"
                yield Violation("devices-are-not-shared", names.get(after.job, after.job), detail)
