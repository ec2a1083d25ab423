"""A job with its tasks, as the core has it in memory, and questions about it.

`Changes` works on copies; all other code only reads.
"""

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter

from phalanx.core.model import Job, Phase, Task, role_of
from phalanx.core.spec.job import JobSpec, Match, PartialCompletion, Restart, Role
from phalanx.core.spec.watch import AbnormalKind
from phalanx.core.states import PLACED, TERMINAL, State
from phalanx.core.time_units import Micros

#: The numbers of tasks by state are packed into one integer, with this many bits for each state:
#: cheap to copy, and most pending jobs have only one task.
_WIDTH = 20
_FIELD = (1 << _WIDTH) - 1
_SHIFT: dict[State, int] = {state: n * _WIDTH for n, state in enumerate(State)}
#: One task in that state, as it is counted.
ONE: dict[State, int] = {state: 1 << shift for state, shift in _SHIFT.items()}
#: The bits of all states with a place.
_ANY_PLACED = sum(_FIELD << _SHIFT[state] for state in PLACED)
#: The bits of all states with a process.
_ANY_PROCESS = sum(_FIELD << _SHIFT[state] for state in (State.RUNNING, State.PREEMPTING))
#: The bits of all states in which a task may have started and is not stopping.
_ANY_STARTED = sum(_FIELD << _SHIFT[state] for state in (State.RESERVED, State.RUNNING))
#: The bits of all states in which a task belongs to the gang's world.
_ANY_MEMBER = _ANY_PLACED | _FIELD << _SHIFT[State.DONE]
#: The bits of all states that a task leaves before its job ends.
_ANY_UNFINISHED = sum(_FIELD << shift for state, shift in _SHIFT.items() if state not in TERMINAL)


_state = attrgetter("state")


def counted(tasks: list[Task]) -> int:
    """The numbers of tasks by state, packed."""
    if len(tasks) == 1:
        return ONE[tasks[0].state]
    return sum(ONE[state] * count for state, count in Counter(map(_state, tasks)).items())


def tasks_of(job: str, spec: JobSpec, state: State) -> list[Task]:
    """The tasks of a new job."""
    names = [role.name for role in spec.roles for _ in range(role.replicas)]
    return [Task(job, index, name, state) for index, name in enumerate(names)]


class GangProgress:
    """What the tasks of a gang have reported since they started. In memory only."""

    __slots__ = ("alarms", "at", "steps")

    def __init__(
        self,
        at: Micros,
        steps: dict[int, int],
        alarms: dict[tuple[int, str, AbnormalKind], int] | None = None,
    ) -> None:
        self.at = at
        self.steps = steps
        #: By task, value and rule: the last step of an abnormal value.
        self.alarms = alarms or {}

    def laggard(self) -> int | None:
        """The task that is furthest behind; None if all are at the same step."""
        if len(set(self.steps.values())) < 2:
            return None
        return min(self.steps, key=lambda index: (self.steps[index], index))


class Gang:
    __slots__ = ("accepted", "counts", "job", "missing", "progress", "tasks")

    def __init__(self, job: Job, tasks: list[Task]) -> None:
        self.job = job
        self.tasks = tasks
        self.counts = counted(tasks)
        #: Which tasks were accepted by their agents, one bit per task, and how many are missing.
        #: In memory only: a new leader asks the agents again.
        self.accepted = 0
        self.missing = 0
        self.progress: GangProgress | None = None

    def copy(self) -> "Gang":
        copy = Gang.__new__(Gang)
        copy.job = self.job
        copy.tasks = self.tasks.copy()
        copy.counts = self.counts
        copy.accepted = self.accepted
        copy.missing = self.missing
        copy.progress = self.progress
        return copy

    def count(self, state: State) -> int:
        return self.counts >> _SHIFT[state] & _FIELD

    @property
    def size(self) -> int:
        return len(self.tasks)

    @property
    def pending_state(self) -> State:
        """The state of its tasks without a place."""
        pending = self.job.pending
        is_eligible = pending is None or not pending.after
        return State.PENDING if len(self.tasks) == 1 and is_eligible else State.BLOCKED

    @property
    def is_idle(self) -> bool:
        """Whether no task has a place."""
        return not self.counts & _ANY_PLACED

    @property
    def is_over(self) -> bool:
        """Whether every task is in a terminal state."""
        return not self.counts & _ANY_UNFINISHED

    @property
    def places_tasks_alone(self) -> bool:
        """Whether tasks can be placed while others run: they restart alone, or are pods that never
        restart."""
        job = self.job
        restart = job.spec.restart
        return restart is Restart.TASK or (restart is Restart.NEVER and job.members is not None)

    def role(self, index: int) -> Role:
        return role_of(self.job.spec, index)

    def unreleased(self) -> list[Task]:
        """The start set that is reserved and not released."""
        if not self.count(State.RESERVED):
            return []
        return [t for t in self.tasks if t.state is State.RESERVED and not t.released]

    def started(self) -> list[Task]:
        """Tasks that have a process or may have one, and are not stopping."""
        if not self.counts & _ANY_STARTED:
            return []
        return [
            t
            for t in self.tasks
            if t.state is State.RUNNING or (t.state is State.RESERVED and t.released)
        ]

    def done(self) -> list[Task]:
        if not self.count(State.DONE):
            return []
        return [t for t in self.tasks if t.state is State.DONE]

    def unplaced(self) -> list[Task]:
        return [t for t in self.tasks if t.state in (State.BLOCKED, State.PENDING)]

    @property
    def room_to_run(self) -> int:
        """How many more tasks may have a place, by `max_running`."""
        most = self.job.spec.max_running
        if most is None:
            return len(self.tasks)
        return max(0, most - sum(map(self.count, PLACED)))

    def members(self) -> list[Task]:
        """The tasks that form the gang's world (as in WORLD_SIZE), in rank order."""
        if not self.counts & _ANY_MEMBER:
            return []
        return [
            t
            for t in self.tasks
            if t.state in (State.RESERVED, State.RUNNING, State.PREEMPTING, State.DONE)
        ]

    def meets_minimum(self, tasks: list[Task]) -> bool:
        """Whether these tasks meet the minimum of every role and of the gang."""
        spec = self.job.spec
        if len(tasks) < spec.min_available:
            return False
        if len(spec.roles) == 1:
            return len(tasks) >= spec.roles[0].min
        by_role: dict[str, int] = {}
        for task in tasks:
            by_role[task.role] = by_role.get(task.role, 0) + 1
        return all(by_role.get(role.name, 0) >= role.min for role in spec.roles)

    def may_start_with(self, placed: list[Task]) -> bool:
        """Whether the job's minimum and match policy allow to place these tasks now."""
        return self._suffices(placed, self.done())

    def _suffices(self, placed: list[Task], done: list[Task]) -> bool:
        """Whether these tasks can start beside the done tasks and the others that have started."""
        if not placed:
            return False
        job, match = self.job, self.job.spec.match
        started = self.started()
        if started:
            anew = {t.index for t in placed}
            started = [t for t in started if t.index not in anew]
        # A gang that has its minimum may grow by any number of tasks.
        if job.satisfied and (match is Match.ONCE_SATISFIED or self.meets_minimum(started + done)):
            return True
        counted = list(placed)
        if match in (Match.WAITING_AND_RUNNING, Match.WAITING_RUNNING_SUCCEED):
            counted += started
        if match is Match.WAITING_RUNNING_SUCCEED:
            counted += done
        return self.meets_minimum(counted)

    @property
    def is_short(self) -> bool:
        """Whether the gang has started and is now below a minimum that still applies."""
        job = self.job
        if job.spec.match is Match.ONCE_SATISFIED and job.satisfied:
            return False
        present = self.done() + self.started()
        return bool(present) and not self.meets_minimum(present)

    @property
    def is_complete(self) -> bool:
        """Whether the work is done, by `complete_when`.

        In a gang that is placed as one, tasks without a place beside finished ones were never
        needed: they are above the minimum.
        """
        spec, done = self.job.spec, self.count(State.DONE)
        if not done and self.job.stopping is None:
            return False
        surplus = State.DONE if self.places_tasks_alone else State.BLOCKED
        if spec.complete_when == "all" and self.job.stopping is None:
            unneeded = self.count(State.BLOCKED) if surplus is State.BLOCKED else 0
            return done + unneeded == len(self.tasks)
        wanted = [t for t in self.tasks if spec.complete_when in ("all", t.role)]
        finished = [t for t in wanted if _finished(t)]
        # While the gang stops, a task without a place may be one that was not claimed.
        may_lack = self.job.stopping is not None and surplus is State.BLOCKED
        if may_lack and not self._are_enough(finished):
            return False
        return bool(finished) and all(_finished(t) or t.state is surplus for t in wanted)

    def _are_enough(self, finished: list[Task]) -> bool:
        """Whether so many tasks of `complete_when` have finished as have to run together."""
        complete_when, roles = self.job.spec.complete_when, self.job.spec.roles
        if complete_when == "all":
            return self.meets_minimum(finished)
        return all(len(finished) >= role.min for role in roles if role.name == complete_when)

    @property
    def can_start_again(self) -> bool:
        """Whether the gang can start again without repeating done tasks."""
        if self.job.spec.restart is not Restart.TASK:
            return not self.count(State.DONE)
        rest = [t for t in self.tasks if t.state is not State.DONE]
        return self.may_start_with(rest) or self.can_continue_without_finished

    @property
    def repeats_done_tasks(self) -> bool:
        """Whether done tasks run again when the gang starts again (`on_partial_completion`)."""
        repeats = self.job.spec.on_partial_completion is PartialCompletion.RESTART
        return repeats and self.count(State.DONE) > 0 and not self.can_start_again

    @property
    def can_continue_without_finished(self) -> bool:
        """Whether the other tasks can start if those that succeeded while stopping are done."""
        finished = [t for t in self.tasks if _finished(t)]
        rest = [t for t in self.tasks if not _finished(t)]
        return self.job.spec.restart is Restart.TASK and self._suffices(rest, finished)

    def phase(self) -> Phase:
        """The phase of the job, derived from its stages and the states of its tasks."""
        job = self.job
        if job.end is not None:
            return job.end.verdict
        if job.stopping is not None:
            return Phase.STOPPING
        if not self.counts & _ANY_PLACED:
            return Phase.PENDING
        return Phase.RUNNING if self.counts & _ANY_PROCESS else Phase.STARTING


def rank_in(tasks: Sequence[Task], index: int) -> int:
    """A task's rank in its attempt, also when other tasks have stopped."""
    return sum(task.place is not None or task.state is State.DONE for task in tasks[:index])


def _finished(task: Task) -> bool:
    """Whether a task is done, or succeeded by itself while its gang was stopping."""
    if task.state is State.PREEMPTED:
        return task.exit is not None and task.exit.is_success
    return task.state is State.DONE
