"""The result of a run as text: a table, and for each violation all that explains it."""

from collections import Counter
from pathlib import Path

from chaos.checker import JobOutcome
from chaos.journal import TaskRun
from chaos.run import RunResult
from chaos.schedule import FaultKind


def summary(result: RunResult, seed: int, store: str) -> str:
    phases = Counter(outcome.phase or "lost" for outcome in result.outcomes)
    tasks = sum(len((outcome.view or {}).get("tasks", ())) for outcome in result.outcomes)
    rows = [
        ("seed", str(seed)),
        ("store", store),
        ("duration", f"{result.seconds:.0f} s"),
        ("jobs", f"{len(result.outcomes)} with {tasks} tasks ({result.left_out} left out)"),
        ("ended", ", ".join(f"{count} {phase}" for phase, count in phases.most_common())),
        ("processes", str(len(result.runs))),
        ("gangs restarted", str(_restarted(result))),
        ("done tasks repeated", str(_count(result, "DoneTasksRequeued"))),
        ("evictions", str(_count(result, "JobEvicted"))),
        ("workers declared lost", str(len(_losses(result)))),
        ("faults", f"{sum(result.faults.values())} ({result.skipped} skipped)"),
        *((f"  {kind}", str(result.faults[kind])) for kind in FaultKind if result.faults[kind]),
        ("violations", str(len(result.violations))),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)


def _restarted(result: RunResult) -> int:
    return sum(
        event["kind"] == "GangStopped" and event["outcome"] == "pending"
        for outcome in result.outcomes
        for event in outcome.events
    )


def _count(result: RunResult, kind: str) -> int:
    return sum(event["kind"] == kind for o in result.outcomes for event in o.events)


def _losses(result: RunResult) -> set[tuple[str, str]]:
    """The losses of workers that stopped a task: by worker and time."""
    return {
        (str(event.get("worker")), str(event["at"]))
        for outcome in result.outcomes
        for event in outcome.events
        if event.get("how") == "worker-lost"
    }


def explanation(result: RunResult, folder: Path) -> str:
    """Every violation, the schedule, and the timeline of the jobs concerned."""
    parts = [str(violation) for violation in result.violations]
    parts += ["", "Fault schedule:", *map(str, result.schedule.faults)]
    concerned = {violation.job for violation in result.violations}
    for outcome in result.outcomes:
        if outcome.name in concerned or any(job.startswith(f"{outcome.id} ") for job in concerned):
            parts += ["", *_timeline(outcome, result.runs)]
    parts += ["", f"Logs, the lines of the tasks and the locks are in {folder}."]
    return "\n".join(parts)


def _timeline(outcome: JobOutcome, runs: list[TaskRun]) -> list[str]:
    lines = [f"Job {outcome.name} ({outcome.id}): {outcome.planned.document}"]
    for event in outcome.events:
        fields = {k: v for k, v in event.items() if k not in ("kind", "at", "seq", "job")}
        lines.append(f"  {event['at']} {event['kind']} {fields}")
    for run in runs:
        if run.job == outcome.id:
            ending = "killed" if run.code is None else f"exit {run.code}"
            notable = [line for line in run.lines if line["kind"] not in ("beat", "start")]
            lines.append(
                f"  {run.began_at:.2f}-{run.last_at:.2f} (boot time) {run.task} attempt"
                f" {run.attempt} on {run.worker} devices {','.join(run.devices)}: {ending}"
                f" {notable}"
            )
    return lines
