"""Checks across a scenario file: every name that is used is listed, and every name is unique."""

from collections.abc import Iterable, Mapping

from phalanx.core.model import Queue
from phalanx.core.spec.fields import FieldPath
from phalanx.scenario.file_format import ScenarioFile, TaskEntry
from phalanx.scenario.gangs import ScenarioGang


def check_names(
    file: ScenarioFile, gangs: Mapping[str, ScenarioGang], queues: Iterable[Queue]
) -> None:
    """Raise `Invalid` with every name that is missing or used twice."""
    path = FieldPath()
    nodes = {node.name for node in file.nodes}
    queue_names = {queue.name for queue in queues}
    _check_unique(path.at("nodes"), (node.name for node in file.nodes))
    _check_unique(path.at("queues"), (queue.name for queue in file.queues))
    for n, queue in enumerate(file.queues):
        if queue.parent is not None and queue.parent not in queue_names:
            path.at("queues").at(n).at("parent").problem(f"is {queue.parent}, which is not listed")
    task_names: set[str] = set()
    for kind, entries in (("running", file.running), ("pending", file.pending)):
        for n, entry in enumerate(entries):
            here = path.at(kind).at(n)
            queue_name = gangs[entry.gang].queue
            if queue_name not in queue_names:
                here.at("queue").problem(f"is {queue_name}, which is not listed under queues")
            for m, task in enumerate(entry.tasks):
                task_path = here.at("tasks").at(m)
                _check_task(task_path, task, nodes, is_running=kind == "running")
                if task.name in task_names:
                    task_path.at("name").problem(
                        f"is {task.name}, which is the name of another task; rename one of them"
                    )
                task_names.add(task.name)
    path.raise_problems()


def _check_unique(path: FieldPath, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for n, name in enumerate(names):
        if name in seen:
            path.at(n).at("name").problem(f"is {name}, which is listed twice; rename one of them")
        seen.add(name)


def _check_task(path: FieldPath, task: TaskEntry, nodes: set[str], *, is_running: bool) -> None:
    for field, node in (("node", task.node), ("held", task.held)):
        if node is not None and node not in nodes:
            path.at(field).problem(f"is {node}, which is not listed under nodes")
    if is_running and task.node is None:
        path.at("node").problem("is missing; name the node of every running task")
    if is_running and task.held is not None:
        path.at("held").problem("applies to pending tasks only; this task is running")
    if not is_running and task.node is not None:
        path.at("node").problem("applies to running tasks only; use held for a gathered place")
