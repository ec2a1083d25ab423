"""Traces of clusters in CSV files: jobs, nodes and queues.

A file with an error is refused as a whole, with the line. An empty amount is unknown, and a
resource whose amount is unknown for any node is ignored for all nodes and jobs.
"""

import csv
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import msgspec

from phalanx.core.errors import Invalid
from phalanx.core.model import Queue
from phalanx.core.reasons import NeverFits, QueueLimit
from phalanx.core.spec.job import Resources
from phalanx.core.spec.quantities import amount
from phalanx.core.spec.schema import TASK_LIMIT
from phalanx.core.text import reworded
from phalanx.core.time_units import SECOND, Micros
from phalanx.plan.explain.shortage import never_fits
from phalanx.plan.model import PendingGang, RoleRequest, TaskRequest
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.nodes import NodeSpec, NodeTable

#: Resources, and their columns in a file.
_RESOURCES = {"gpu": "gpus", "cpu": "cpus", "memory": "mem_mb"}
#: The columns of a file of queues, with the names that traces of virtual clusters use for them.
_QUEUE_COLUMNS = ("queue", "parent", "weight", "quota_gpu", "limit_gpu")
_OTHER_NAMES = {"queue": "vc", "quota_gpu": "gpus"}
_LONGEST_S = 10**10


class TraceError(Exception):
    """A file that cannot be replayed; the message has the file, the line and the cure."""


class TraceJob(msgspec.Struct, frozen=True):
    id: str
    at: Micros  #: the time of its submission since the start of the trace
    duration: Micros
    queue: str
    size: int
    resources: Resources  #: of one task
    priority: int = 0

    @property
    def gpu(self) -> int:
        """Thousandths of a GPU, over all tasks."""
        return self.size * self.resources.get("gpu", 0)


class TraceNode(msgspec.Struct, frozen=True):
    name: str
    resources: Resources


class Trace(msgspec.Struct, frozen=True):
    jobs: tuple[TraceJob, ...]  #: in the order of their submission
    nodes: tuple[TraceNode, ...]
    queues: tuple[Queue, ...]
    #: Jobs that do not fit the empty cluster or the limit of their queue, with the reason. They are
    #: not replayed.
    misfits: Mapping[str, str]

    @property
    def gpu(self) -> int:
        """Thousandths of a GPU, over all nodes."""
        return sum(node.resources.get("gpu", 0) for node in self.nodes)


def read_trace(
    jobs: Path, nodes: Path, queues: Path | None = None, nodes_limit: int | None = None
) -> Trace:
    trace_nodes = list(_nodes(nodes))[:nodes_limit]
    if not trace_nodes:
        raise TraceError(f"{nodes} has no nodes")
    known = [name for name in _RESOURCES if all(name in node.resources for node in trace_nodes)]
    trace_nodes = [TraceNode(node.name, _only(node.resources, known)) for node in trace_nodes]
    trace_jobs = [
        msgspec.structs.replace(job, resources=_only(job.resources, known)) for job in _jobs(jobs)
    ]
    if not trace_jobs:
        raise TraceError(f"{jobs} has no jobs")
    return make_trace(trace_jobs, trace_nodes, [] if queues is None else list(_queues(queues)))


def make_trace(jobs: list[TraceJob], nodes: list[TraceNode], queues: list[Queue]) -> Trace:
    """A trace without the jobs that never fit; queues without a description have weight 1."""
    named = {queue.name: queue for queue in queues}
    for job in jobs:
        named.setdefault(job.queue, Queue(job.queue))
    misfit, above_limit = _misfits(nodes), _above_limits(named)
    reasons = ((job.id, misfit(job) or above_limit(job)) for job in jobs)
    misfits = {job: why for job, why in reasons if why is not None}
    fitting = sorted((job for job in jobs if job.id not in misfits), key=lambda job: job.at)
    return Trace(tuple(fitting), tuple(nodes), tuple(named.values()), misfits)


def _misfits(nodes: list[TraceNode]) -> Callable[[TraceJob], str | None]:
    """A function that says what the empty cluster lacks for a job, or None if the job fits."""
    table = NodeTable()
    for node in nodes:
        table.put(node.name, NodeSpec(node.resources, {}, {}))
    empty = FreeCapacity(table, empty=True)

    @lru_cache(maxsize=4096)
    def lacking(size: int, resources: tuple[tuple[str, int], ...]) -> str | None:
        role = RoleRequest("worker", TaskRequest(resources), range(size), size)
        gang = PendingGang("", "", 0, "", 0, 0, size, (role,), size)
        reason = never_fits((gang,), empty)
        words = reason.shortfall if isinstance(reason, NeverFits) else str(reason)
        return None if reason is None else reworded(words, {"worker": "node"})

    return lambda job: lacking(job.size, tuple(sorted(job.resources.items())))


def _above_limits(queues: Mapping[str, Queue]) -> Callable[[TraceJob], str | None]:
    """A function that says which limit a job exceeds, of its queue or of one above it, or None if
    it exceeds none."""
    limits: dict[str, list[tuple[str, str, int]]] = {name: [] for name in queues}
    for name in queues:
        queue: Queue | None = queues[name]
        while queue is not None:
            limits[name] += (
                (queue.name, resource, limit) for resource, limit in queue.limit.items()
            )
            queue = queues.get(queue.parent or "")

    def why(job: TraceJob) -> str | None:
        for queue, resource, limit in limits[job.queue]:
            want = job.size * job.resources.get(resource, 0)
            if want > limit:
                return str(QueueLimit(queue, resource, want, limit))
        return None

    return why


def _only(resources: Resources, known: list[str]) -> Resources:
    return {name: each for name, each in resources.items() if name in known}


# Reading


class _Line:
    """One line of a file, with errors that name the file and the line."""

    def __init__(self, path: Path, number: int, values: Mapping[str, str]) -> None:
        self._path = path
        self._number = number
        self._values = values

    def error(self, problem: str) -> TraceError:
        return TraceError(f"{self._path}, line {self._number}: {problem}")

    def text(self, column: str) -> str:
        return self._values.get(column, "").strip()

    def required(self, column: str) -> str:
        text = self.text(column)
        if not text:
            raise self.error(f"{column} is empty")
        return text

    def seconds(self, column: str) -> Micros:
        text = self.required(column)
        try:
            seconds = float(text)
        except ValueError:
            raise self.error(f"{column} is {text!r}, not a number of seconds") from None
        if not 0 <= seconds <= _LONGEST_S:
            raise self.error(f"{column} is {text}; write seconds from 0 to {_LONGEST_S:,}")
        return round(seconds * SECOND)

    def count(self, column: str, default: int | None, least: int, most: int) -> int:
        text = self.text(column)
        if not text and default is not None:
            return default
        number = int(text) if text.removeprefix("-").isdecimal() else None
        if number is None or not least <= number <= most:
            raise self.error(f"{column} is {text!r}; write a whole number from {least} to {most:,}")
        return number

    def amount(self, resource: str, column: str) -> int | None:
        """The amount of a resource, or None if it is unknown."""
        text = self.text(column)
        if not text:
            return None
        try:
            return _amount("memory_mb" if resource == "memory" else resource, text)
        except Invalid as error:
            raise self.error(f"{column} {error.problems[0].message}") from None


@lru_cache(maxsize=4096)
def _amount(resource: str, text: str) -> int:
    return amount(resource, text)


def _lines(path: Path, required: tuple[str, ...], known: tuple[str, ...] = ()) -> Iterator[_Line]:
    """The lines of a file that has the required columns, and only known ones if any are given."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file, strict=True)
            head = [name.strip() for name in next(rows, [])]
            missing = [name for name in required if name not in head]
            unknown = [name for name in head if known and name not in known]
            if missing:
                raise TraceError(
                    f"{path}, line 1: the column {missing[0]} is missing; this file needs"
                    f" {', '.join(required)}"
                )
            if unknown:
                raise TraceError(
                    f"{path}, line 1: the column {unknown[0]} is unknown; use {', '.join(known)}"
                )
            for row in rows:
                if not row:
                    continue
                if len(row) != len(head):
                    raise TraceError(
                        f"{path}, line {rows.line_num}: has {len(row)} values for"
                        f" {len(head)} columns"
                    )
                yield _Line(path, rows.line_num, dict(zip(head, row, strict=True)))
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path} is not a CSV file in UTF-8: {error}") from None


def _resources(line: _Line, suffix: str) -> Resources:
    amounts = {name: line.amount(name, column + suffix) for name, column in _RESOURCES.items()}
    return {name: each for name, each in amounts.items() if each is not None}


def _jobs(path: Path) -> Iterator[TraceJob]:
    seen: set[str] = set()
    columns = ("job_id", "submit_s", "duration_s", "user_or_vc", "gang_size", "gpus_per_task")
    for line in _lines(path, columns):
        job = line.required("job_id")
        if job in seen:
            raise line.error(f"job_id is {job}, which an earlier line has too")
        seen.add(job)
        yield TraceJob(
            job,
            line.seconds("submit_s"),
            line.seconds("duration_s"),
            line.text("user_or_vc") or "default",
            line.count("gang_size", None, 1, TASK_LIMIT),
            _resources(line, "_per_task"),
            line.count("priority", 0, -(10**9), 10**9),
        )


def _nodes(path: Path) -> Iterator[TraceNode]:
    seen: set[str] = set()
    for line in _lines(path, ("node", "gpus")):
        node = line.required("node")
        if node in seen:
            raise line.error(f"node is {node}, which an earlier line has too")
        seen.add(node)
        yield TraceNode(node, _resources(line, ""))


def _queues(path: Path) -> Iterator[Queue]:
    """The queues; parents come before their children, and the column nodes is ignored."""
    seen: set[str] = set()
    known = (*_QUEUE_COLUMNS, *_OTHER_NAMES.values(), "nodes")
    for line in _lines(path, (), known):
        name = line.text("queue") or line.required("vc")
        parent = line.text("parent") or None
        if name in seen:
            raise line.error(f"queue is {name}, which an earlier line has too")
        if parent is not None and parent not in seen:
            raise line.error(f"parent is {parent}, which is not a queue of an earlier line")
        seen.add(name)
        quota = line.amount("gpu", "quota_gpu") or line.amount("gpu", "gpus")
        limit = line.amount("gpu", "limit_gpu")
        yield Queue(
            name,
            parent,
            line.count("weight", 1, 0, 10**6),
            {} if quota is None else {"gpu": quota},
            {} if limit is None else {"gpu": limit},
        )
