"""Running gangs: what they occupy on which node, what a stop would lose, and when they end."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import TypeVar

import numpy as np

from phalanx.core.node import DEVICE, GPU
from phalanx.core.time_units import SECOND, Micros
from phalanx.plan.model import NEVER, RunningGang, RunningTask
from phalanx.plan.state.capacity import Occupant, OccupantGroup, groups_of_occupants
from phalanx.plan.state.forkable import ForkableDict
from phalanx.plan.state.nodes import Bools, Floats, Ints, NodeTable

K = TypeVar("K")

#: So few numbers are compared one by one: that is faster than to sort them.
_FEW_NUMBERS = 8
#: The places of so many tasks are not worth computing for one or two times.
_MANY_TASKS = 2000


class Occupancy:
    """What the tasks of a running gang occupy, by the positions of their nodes.

    Most gangs end before a plan asks what a stop would free or lose, so the arrays are computed on
    demand.
    """

    def __init__(self, gang: RunningGang, table: NodeTable) -> None:
        self.gang = gang
        self.occupants: list[Occupant] = [
            (table.index[task.node], table.vector(task.resources), task.devices, task.traits)
            for task in gang.tasks
        ]
        self.rows = len(table.rows)  #: of the arrays

    def widened(self, rows: int) -> "Occupancy":
        """The same occupancy of a table that has got more rows."""
        fork = Occupancy.__new__(Occupancy)
        fork.gang, fork.occupants, fork.rows = self.gang, self.occupants, rows
        return fork

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """Of all tasks."""
        return tuple(range(len(self.occupants)))

    @cached_property
    def nodes(self) -> Ints:
        return np.array([occupant[0] for occupant in self.occupants], np.int64)

    @cached_property
    def amounts(self) -> Ints:
        """What each task occupies, by row."""
        amounts: Ints = np.zeros((len(self.occupants), self.rows), np.int64)
        for row, (_, vector, *_) in zip(amounts, self.occupants, strict=True):
            row[vector.rows] = vector.amounts
        return amounts

    @cached_property
    def total(self) -> Floats:
        """What all tasks together occupy, by row."""
        total: Floats = self.amounts.sum(axis=0).astype(float)
        return total

    @cached_property
    def ends(self) -> Ints:
        """When each task has certainly ended; never for tasks that are stopping already."""
        ends = [NEVER if t.ends_at is None or t.stopping else t.ends_at for t in self.gang.tasks]
        return np.array(ends, np.int64)

    @cached_property
    def duration(self) -> Micros | None:
        """The longest time from its start to the end of its last task, if it is known."""
        ends = [task.ends_at for task in self.gang.tasks if task.ends_at is not None]
        return max(ends) - self.gang.started_at if ends else None

    @cached_property
    def first_end(self) -> Micros:
        return int(self.ends.min(initial=NEVER))

    @cached_property
    def has_fractions(self) -> bool:
        return any(vector.fraction for _, vector, *_ in self.occupants)

    @cached_property
    def has_traits(self) -> bool:
        return any(task.traits is not None for task in self.gang.tasks)

    @cached_property
    def is_preemptible(self) -> bool:
        return all(task.preemptible for task in self.gang.tasks)

    @cached_property
    def priorities(self) -> list[int]:
        own = self.gang.priority
        return [own if task.priority is None else task.priority for task in self.gang.tasks]

    @cached_property
    def lowest(self) -> int:
        return min(self.priorities, default=self.gang.priority)

    @cached_property
    def highest(self) -> int:
        return max(self.priorities, default=self.gang.priority)

    @cached_property
    def groups(self) -> list[OccupantGroup] | None:
        """The occupants, tasks on one node together; None if they share devices or rules ask about
        them."""
        if self.has_fractions or self.has_traits:
            return None
        return groups_of_occupants(self.occupants)

    # GPUs, and GPUs times the second up to which their work is safe: lost work grows linearly.

    @cached_property
    def gpus(self) -> Floats:
        return np.array([_gpus(task.resources) for task in self.gang.tasks])

    @cached_property
    def safe(self) -> Floats:
        safe_at = np.array([task.safe_at for task in self.gang.tasks])
        safe: Floats = self.gpus * safe_at / SECOND
        return safe

    @cached_property
    def _all_gpus(self) -> float:
        return float(self.gpus.sum())

    @cached_property
    def _all_safe(self) -> float:
        return float(self.safe.sum())

    def stopping(self) -> list[int]:
        """The positions of tasks that are stopping."""
        return [n for n, task in enumerate(self.gang.tasks) if task.stopping]

    def cost(self, now: Micros, positions: Iterable[int] | None = None) -> float:
        """GPU-seconds of work that stopping all tasks, or those at these positions, would lose."""
        if positions is None:
            gpus, safe = self._all_gpus, self._all_safe
        else:
            some = list(positions)
            gpus, safe = float(self.gpus[some].sum()), float(self.safe[some].sum())
        lost = gpus * now / SECOND - safe
        grace = self.gang.grace
        return max(0.0, lost if grace is None else min(lost, gpus * grace / SECOND))


@lru_cache(maxsize=4096)
def _gpus(resources: tuple[tuple[str, int], ...]) -> float:
    return next((amount / DEVICE for name, amount in resources if name == GPU), 0.0)


class KnownEnds:
    """Tasks whose end is known, the earliest first. Never changed: `after` makes a new one."""

    def __init__(self, rows: int) -> None:
        """No tasks."""
        self.ends: Ints = np.zeros(0, np.int64)
        self.nodes: Ints = np.zeros(0, np.int64)
        #: What each task occupies, by row.
        self.amounts: Ints = np.zeros((0, rows), np.int64)
        #: The numbers of the occupancies that the tasks belong to.
        self._numbers: Ints = np.zeros(0, np.int64)
        #: By number: tasks that share devices or that rules ask about; not among those above.
        self._single: dict[int, list[tuple[Micros, Occupant]]] = {}
        self._flat: tuple[int, Ints, Floats] | None = None

    def after(self, removed: Collection[int], added: Mapping[int, Occupancy]) -> "KnownEnds":
        """Without the tasks of some occupancies, and with those of others, by number."""
        new = KnownEnds(self.amounts.shape[1])
        new._single = {n: tasks for n, tasks in self._single.items() if n not in removed}
        whole: list[tuple[int, Occupancy]] = []
        for number, each in added.items():
            if each.has_fractions or each.has_traits:
                new._single[number] = [*zip(each.ends.tolist(), each.occupants, strict=True)]
            else:
                whole.append((number, each))
        kept = ~_is_among(self._numbers, removed)
        new.ends = np.concatenate([self.ends[kept], *(each.ends for _, each in whole)])
        new.nodes = np.concatenate([self.nodes[kept], *(each.nodes for _, each in whole)])
        new.amounts = np.concatenate([self.amounts[kept], *(each.amounts for _, each in whole)])
        numbers = [self._numbers[kept], *(np.full(len(o.ends), n) for n, o in whole)]
        new._numbers = np.concatenate(numbers)
        # New tasks that end last are in order already.
        if bool((new.ends[1:] < new.ends[:-1]).any()):
            order = np.argsort(new.ends, kind="stable")
            new.ends, new.nodes = new.ends[order], new.nodes[order]
            new.amounts, new._numbers = new.amounts[order], new._numbers[order]
        return new

    @cached_property
    def single(self) -> list[tuple[Micros, Occupant]]:
        """Tasks that share devices or that rules ask about, with their ends."""
        return [task for tasks in self._single.values() for task in tasks]

    @cached_property
    def times(self) -> list[Micros]:
        """The times at which any tasks end, the earliest first."""
        is_first = np.ones(len(self.ends), np.bool_)
        np.not_equal(self.ends[1:], self.ends[:-1], out=is_first[1:])
        times: list[Micros] = self.ends[is_first].tolist()
        if self.single:
            times = sorted({*times, *(end for end, _ in self.single)})
        if times and times[-1] == NEVER:
            times.pop()
        return times

    def released_by(self, time: Micros, size: int) -> Ints | None:
        """By row and node: what tasks that end by this time occupy, of so many nodes; None if no
        task does."""
        ended = int(self.ends.searchsorted(time, "right"))
        if not ended:
            return None
        rows = self.amounts.shape[1]
        if len(self.ends) > _MANY_TASKS:
            nodes, columns = self.nodes[:ended], self.amounts[:ended].T
            return np.array([np.bincount(nodes, column, size) for column in columns]).astype(
                np.int64
            )
        places, amounts = self._places(size)
        last = ended * rows
        released = np.bincount(places[:last], weights=amounts[:last], minlength=rows * size)
        return released.astype(np.int64).reshape(rows, size)

    def _places(self, size: int) -> tuple[Ints, Floats]:
        """The position of every amount in an array of all rows and nodes, and the amounts."""
        if self._flat is None or self._flat[0] != size:
            rows = np.arange(self.amounts.shape[1]) * size
            places = (self.nodes[:, None] + rows).ravel()
            self._flat = (size, places, self.amounts.ravel().astype(np.float64))
        return self._flat[1], self._flat[2]

    @cached_property
    def sums(self) -> Ints:
        """What all tasks up to each of them occupy, by row."""
        sums: Ints = np.cumsum(self.amounts, axis=0)
        return sums


class EndsInQueue:
    """When the running tasks of one queue free what they use, as far as it is known."""

    def __init__(self, gangs: Collection[Occupancy], rows: int) -> None:
        ends = np.concatenate([np.zeros(0, np.int64), *(gang.ends for gang in gangs)])
        amounts = np.concatenate([np.zeros((0, rows)), *(gang.amounts for gang in gangs)])
        order = np.argsort(ends, kind="stable")
        times, firsts = np.unique(ends[order], return_index=True)
        #: The times at which any tasks end, the earliest first; the last may be never.
        self.times: list[Micros] = times.tolist()
        #: What has become free before each of them, and after the last.
        sums = np.cumsum(np.vstack([np.zeros(rows), amounts[order]]), axis=0)
        self._freed: Floats = sums[[*firsts.tolist(), len(ends)]]

    def freed_by(self, time: Micros) -> Floats:
        """What has become free by a time, by row."""
        freed: Floats = self._freed[bisect_right(self.times, time)]
        return freed


class EvictableOfQueue:
    """The gangs of one queue that can be evicted."""

    def __init__(self, gangs: list[Occupancy], lowest: int | None) -> None:
        self.gangs = gangs
        self.lowest = lowest  #: the lowest priority of their tasks, and of tasks that are stopping

    @cached_property
    def totals(self) -> Floats:
        """The amounts of each of them, by row."""
        return np.array([occupancy.total for occupancy in self.gangs])

    @cached_property
    def started_at(self) -> Ints:
        """When each of them started."""
        return np.array([occupancy.gang.started_at for occupancy in self.gangs], np.int64)

    @cached_property
    def waited(self) -> Ints:
        """How long each of them was pending before."""
        return np.array([occupancy.gang.waited for occupancy in self.gangs], np.int64)


class RunningGangs:
    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self.by_job: ForkableDict[Occupancy] = ForkableDict()
        #: Gangs with stopping tasks, and gangs with tasks whose end is known.
        self.stopping: ForkableDict[Occupancy] = ForkableDict()
        self.ending: ForkableDict[Occupancy] = ForkableDict()
        #: By queue and resource: what is used, and what evicted tasks that are stopping use.
        self.used: dict[str, dict[str, int]] = {}
        self.returning: dict[str, dict[str, int]] = {}
        #: By queue and user, where gangs are ordered by user.
        self.used_by_user: dict[tuple[str, str], dict[str, int]] = {}
        #: What was known of the ends; and by number, the gangs whose ends have changed since.
        self._known_ends = KnownEnds(0)
        self._numbers: ForkableDict[int] = ForkableDict()
        self._last_number = 0
        self._no_longer_ending: set[int] = set()
        self._newly_ending: dict[int, Occupancy] = {}
        #: By queue: its gangs, by job; and what was computed of them. A queue that is not in
        #: `_owned` shares its gangs with a fork.
        self._in_queue: dict[str, dict[str, Occupancy]] = {}
        self._evictable: dict[str, EvictableOfQueue] = {}
        self._without_end: dict[str, Floats] = {}
        self._ends_in: dict[str, EndsInQueue] = {}
        self._owned: set[str] = set()

    def fork(self, table: NodeTable) -> "RunningGangs":
        """Equal gangs on a fork of the table. Later changes of either side stay its own."""
        fork = RunningGangs.__new__(RunningGangs)
        fork._table = table  # noqa: SLF001
        fork.by_job = self.by_job.fork()
        fork.stopping, fork.ending = self.stopping.fork(), self.ending.fork()
        fork.used, fork.returning = self.used.copy(), self.returning.copy()
        fork.used_by_user = self.used_by_user.copy()
        fork._known_ends = self._known_ends  # noqa: SLF001
        fork._numbers, fork._last_number = self._numbers.fork(), self._last_number  # noqa: SLF001
        fork._no_longer_ending = self._no_longer_ending.copy()  # noqa: SLF001
        fork._newly_ending = self._newly_ending.copy()  # noqa: SLF001
        fork._in_queue = self._in_queue.copy()  # noqa: SLF001
        fork._evictable = self._evictable.copy()  # noqa: SLF001
        fork._without_end = self._without_end.copy()  # noqa: SLF001
        fork._ends_in = self._ends_in.copy()  # noqa: SLF001
        fork._owned, self._owned = set(), set()  # noqa: SLF001
        return fork

    def widen(self) -> None:
        """Adapt to a table that has got more rows."""
        rows = len(self._table.rows)
        for job, occupancy in list(self.by_job.items()):
            if occupancy.rows < rows:
                self._put(job, occupancy.widened(rows))

    def put(self, gang: RunningGang) -> None:
        self.remove(gang.job)
        self._put(gang.job, Occupancy(gang, self._table))
        self._count(gang, 1)

    def _put(self, job: str, occupancy: Occupancy) -> None:
        self.by_job[job] = occupancy
        self._gangs_to_change(occupancy.gang.queue)[job] = occupancy
        if any(task.stopping for task in occupancy.gang.tasks):
            self.stopping[job] = occupancy
        if any(task.ends_at is not None for task in occupancy.gang.tasks):
            self.ending[job] = occupancy
            self._forget_end(job)
            self._last_number += 1
            self._numbers[job] = self._last_number
            self._newly_ending[self._last_number] = occupancy

    def remove(self, job: str) -> None:
        known = self.by_job.pop(job, None)
        if known is None:
            return
        del self._gangs_to_change(known.gang.queue)[job]
        self.stopping.pop(job, None)
        self.ending.pop(job, None)
        self._forget_end(job)
        self._count(known.gang, -1)

    def _forget_end(self, job: str) -> None:
        number = self._numbers.pop(job, None)
        if number is not None and self._newly_ending.pop(number, None) is None:
            self._no_longer_ending.add(number)

    def _count(self, gang: RunningGang, sign: int) -> None:
        returning = [task for task in gang.tasks if task.stopping and gang.evicted]
        if returning:
            _add(self.returning, gang.queue, returning, sign)
        if len(returning) < len(gang.tasks):
            used = [t for t in gang.tasks if not t.stopping] if returning else gang.tasks
            _add(self.used, gang.queue, used, sign)
            if gang.user:
                _add(self.used_by_user, (gang.queue, gang.user), used, sign)

    def _gangs_to_change(self, queue: str) -> dict[str, Occupancy]:
        self._evictable.pop(queue, None)
        self._without_end.pop(queue, None)
        self._ends_in.pop(queue, None)
        if queue not in self._owned:
            self._owned.add(queue)
            self._in_queue[queue] = self._in_queue.get(queue, {}).copy()
        return self._in_queue[queue]

    def queues(self) -> list[str]:
        """The queues that have had running gangs."""
        return list(self._in_queue)

    def in_queue(self, queue: str) -> Collection[Occupancy]:
        """The running gangs of a queue."""
        return self._in_queue.get(queue, {}).values()

    def evictable(self, queue: str) -> EvictableOfQueue:
        """The gangs of a queue that can be evicted. Computed anew only when its gangs have
        changed."""
        known = self._evictable.get(queue)
        if known is None:
            gangs = self.in_queue(queue)
            priorities = [
                o.lowest for o in gangs if o.gang.evictable or o.gang.job in self.stopping
            ]
            evictable = [occupancy for occupancy in gangs if occupancy.gang.evictable]
            known = EvictableOfQueue(evictable, min(priorities, default=None))
            self._evictable[queue] = known
        return known

    def ends_in(self, queue: str) -> EndsInQueue:
        """When the tasks of a queue end. Computed anew only when its gangs have changed."""
        known = self._ends_in.get(queue)
        if known is None:
            known = self._ends_in[queue] = EndsInQueue(self.in_queue(queue), len(self._table.rows))
        return known

    def used_without_end(self, queue: str) -> Floats:
        """Amounts of the queue's running gangs that have no time limit and are not stopping, by
        row. Not to be changed."""
        used, rows = self._without_end.get(queue), len(self._table.rows)
        if used is None or len(used) < rows:
            used = self._without_end[queue] = np.zeros(rows)
            for occupancy in self.in_queue(queue):
                if self.is_lasting(occupancy):
                    used += occupancy.total
        return used

    def is_lasting(self, occupancy: Occupancy) -> bool:
        """Whether a gang has no time limit and is not stopping."""
        return occupancy.first_end == NEVER and occupancy.gang.job not in self.stopping

    def stopping_tasks(self) -> set[str]:
        """The ids of tasks that are stopping."""
        return {
            f"{job}.{task.index}"
            for job, occupancy in self.stopping.items()
            for task in occupancy.gang.tasks
            if task.stopping
        }

    def departures(self) -> Iterator[Occupant]:
        """What the stopping tasks occupy."""
        for occupancy in self.stopping.values():
            for position in occupancy.stopping():
                yield occupancy.occupants[position]

    def known_ends(self) -> KnownEnds:
        """The tasks whose end is known."""
        rows = len(self._table.rows)
        if self._known_ends.amounts.shape[1] < rows:
            self._known_ends, self._no_longer_ending = KnownEnds(rows), set()
            self._newly_ending = {self._numbers[job]: each for job, each in self.ending.items()}
        if self._no_longer_ending or self._newly_ending:
            ends = self._known_ends.after(self._no_longer_ending, self._newly_ending)
            self._known_ends, self._no_longer_ending, self._newly_ending = ends, set(), {}
        return self._known_ends


def _is_among(numbers: Ints, some: Collection[int]) -> Bools:
    """Mask of the numbers that are among some, most often few, others."""
    if len(some) > _FEW_NUMBERS:
        return np.isin(numbers, [*some])
    mask = np.zeros(len(numbers), np.bool_)
    for number in some:
        mask |= numbers == number
    return mask


def _add(sums: dict[K, dict[str, int]], key: K, tasks: Iterable[RunningTask], sign: int) -> None:
    """Add the resources of tasks to one of the sums, which forks may share."""
    amounts = sums[key] = dict(sums.get(key, {}))
    for task in tasks:
        for resource, amount in task.resources:
            amounts[resource] = amounts.get(resource, 0) + sign * amount
