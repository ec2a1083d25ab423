"""The gangs of a scenario: what the file says about each, and what follows from what it omits."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from phalanx.core.queues import DEFAULT
from phalanx.core.spec.job import Match, Restart
from phalanx.scenario.file_format import GangEntry, ScenarioFile, TaskEntry, TaskState


class ScenarioTask(NamedTuple):
    """A task of a gang."""

    number: int  #: its index in the gang
    entry: TaskEntry


class ScenarioGang(msgspec.Struct, frozen=True):
    """A gang that is listed as running, as pending, or as both."""

    entry: GangEntry
    order: int  #: the lower, the earlier it was submitted
    placed: tuple[ScenarioTask, ...]
    pending: tuple[ScenarioTask, ...]

    @property
    def name(self) -> str:
        return self.entry.gang

    @property
    def queue(self) -> str:
        return self.entry.queue or DEFAULT.name

    @property
    def priority(self) -> int:
        return self.entry.priority or 0

    @property
    def done(self) -> int:
        """Number of tasks that are done."""
        return self.entry.finished_members or 0

    @property
    def size(self) -> int:
        """Number of tasks, including those that are done."""
        return len(self.placed) + len(self.pending) + self.done

    @property
    def staying(self) -> list[ScenarioTask]:
        """The tasks that have a place and are not stopping."""
        return [task for task in self.placed if task.entry.state is not TaskState.PREEMPTING]

    @property
    def minimum(self) -> int:
        """`min_available`, by default all tasks."""
        minimum = self.entry.min_available
        return self.size if minimum is None else minimum

    @property
    def restart(self) -> Restart:
        """`restart`; by default, a gang in both lists restarts by task, because the file asks
        where its pending tasks go."""
        default = Restart.TASK if self.placed and self.pending else Restart.GANG
        return self.entry.restart or default

    @property
    def is_satisfied(self) -> bool:
        """Whether all of its minimum has started once; by default, whether it runs."""
        satisfied = self.entry.satisfied
        return bool(self.placed) if satisfied is None else satisfied

    @property
    def is_unbound(self) -> bool:
        """Whether its minimum no longer binds (match policy `once-satisfied`)."""
        return self.entry.match is Match.ONCE_SATISFIED and self.is_satisfied

    @property
    def can_be_placed(self) -> bool:
        """Whether its pending tasks may be placed while others of it have a place."""
        return bool(self.pending) and (self.restart is Restart.TASK or not self.placed)

    def role_minimums(self) -> dict[str, int]:
        """The minimum of each role; without any minimum in the file, all tasks of the role."""
        if self.entry.min_available is not None or self.entry.min_per_role is not None:
            return dict(self.entry.min_per_role or {})
        return count_roles((*self.placed, *self.pending))


def count_roles(tasks: Iterable[ScenarioTask]) -> dict[str, int]:
    """The number of tasks of each role."""
    counts: dict[str, int] = {}
    for _, entry in tasks:
        counts[entry.role] = counts.get(entry.role, 0) + 1
    return counts


def gangs_of(file: ScenarioFile) -> Mapping[str, ScenarioGang]:
    """By name: the gangs of a file. Running gangs were submitted before pending ones."""
    entries: dict[str, list[tuple[GangEntry, bool]]] = {}
    for entry in file.running:
        entries.setdefault(entry.gang, []).append((entry, True))
    for entry in file.pending:
        entries.setdefault(entry.gang, []).append((entry, False))
    order = {entry.gang: n - len(file.running) for n, entry in enumerate(file.running)}
    for n, entry in enumerate(file.pending):
        order.setdefault(entry.gang, n)
    return {name: _gang(listed, order[name]) for name, listed in entries.items()}


def _gang(entries: list[tuple[GangEntry, bool]], order: int) -> ScenarioGang:
    """One gang from its entries, each with whether it is listed as running."""
    fields: dict[str, Any] = {}
    for entry, _ in entries:
        given = msgspec.structs.asdict(entry)
        fields |= {field: value for field, value in given.items() if value is not None}
    merged = msgspec.structs.replace(entries[0][0], **fields)
    placed = [task for entry, is_running in entries if is_running for task in entry.tasks]
    pending = [task for entry, is_running in entries if not is_running for task in entry.tasks]

    def priority(task: TaskEntry) -> int:
        return (merged.priority or 0) if task.priority is None else task.priority

    # The planner places the first tasks of a gang first and evicts the last ones first.
    for tasks in (placed, pending):
        tasks.sort(key=priority, reverse=True)
    submitted = merged.submit_order
    return ScenarioGang(
        merged,
        order if submitted is None else submitted,
        tuple(ScenarioTask(n, task) for n, task in enumerate(placed)),
        tuple(ScenarioTask(n, task) for n, task in enumerate(pending, len(placed))),
    )
