"""A job with its tasks, as the core holds it in memory, and what can be asked of it.

`Changes` works on copies; everybody else only reads.
"""

from phalanx.core.model import Job, Phase, Task, role_of
from phalanx.core.spec.job import Match, Micros, Restart, Role
from phalanx.core.states import PLACED, TERMINAL, State

#: Counts of tasks by state are one integer, with a field of this width for each state: it is copied
#: for free, and most jobs that wait have but one task.
_WIDTH = 20
_FIELD = (1 << _WIDTH) - 1
_SHIFT: dict[State, int] = {state: n * _WIDTH for n, state in enumerate(State)}
#: What one task in that state adds to the counts.
ONE: dict[State, int] = {state: 1 << shift for state, shift in _SHIFT.items()}
#: Whether any task has a place.
_ANY_PLACED = sum(_FIELD << _SHIFT[state] for state in PLACED)
#: Whether any task has had a process.
_ANY_PROCESS = sum(_FIELD << _SHIFT[state] for state in (State.RUNNING, State.PREEMPTING))


class GangProgress:
    """What a gang's tasks have reported since they started. Kept in memory only."""

    __slots__ = ("at", "steps")

    def __init__(self, at: Micros, steps: dict[int, int]) -> None:
        self.at = at
        self.steps = steps

    def laggard(self) -> int | None:
        """The task that is furthest behind, if there is one."""
        if len(set(self.steps.values())) < 2:
            return None
        return min(self.steps, key=lambda index: (self.steps[index], index))


class Gang:
    __slots__ = ("accepted", "counts", "job", "missing", "progress", "tasks")

    def __init__(self, job: Job, tasks: list[Task]) -> None:
        self.job = job
        self.tasks = tasks
        self.counts = sum(ONE[task.state] for task in tasks)
        #: Which agents have accepted, a bit per task, and how many are still to. In memory only:
        #: after a restart the agents say it again.
        self.accepted = 0
        self.missing = 0
        self.progress: GangProgress | None = None

    def copy(self) -> "Gang":
        twin = Gang.__new__(Gang)
        twin.job = self.job
        twin.tasks = self.tasks.copy()
        twin.counts = self.counts
        twin.accepted = self.accepted
        twin.missing = self.missing
        twin.progress = self.progress
        return twin

    def count(self, state: State) -> int:
        return self.counts >> _SHIFT[state] & _FIELD

    @property
    def size(self) -> int:
        return len(self.tasks)

    @property
    def rest_state(self) -> State:
        """Where its tasks wait."""
        return State.PENDING if len(self.tasks) == 1 and not self.job.waits_for else State.BLOCKED

    @property
    def is_idle(self) -> bool:
        """No task is placed."""
        return not self.counts & _ANY_PLACED

    @property
    def is_over(self) -> bool:
        return sum(map(self.count, TERMINAL)) == len(self.tasks)

    def role(self, index: int) -> Role:
        return role_of(self.job.spec, index)

    def unreleased(self) -> list[Task]:
        """The start set that waits for its release."""
        if not self.count(State.RESERVED):
            return []
        return [t for t in self.tasks if t.state is State.RESERVED and t.released_at is None]

    def started(self) -> list[Task]:
        """Tasks that have a process or may have one, as far as anybody knows."""
        return [
            t
            for t in self.tasks
            if t.state is State.RUNNING or (t.state is State.RESERVED and t.released_at is not None)
        ]

    def waiting(self) -> list[Task]:
        return [t for t in self.tasks if t.state in (State.BLOCKED, State.PENDING)]

    def members(self) -> list[Task]:
        """The tasks that make up the present world, in rank order."""
        return [
            t
            for t in self.tasks
            if t.state in (State.RESERVED, State.RUNNING, State.PREEMPTING, State.DONE)
        ]

    def meets_minimum(self, tasks: list[Task]) -> bool:
        """Whether these tasks are enough, role by role and over all."""
        spec = self.job.spec
        if len(tasks) < spec.min_available:
            return False
        by_role: dict[str, int] = {}
        for task in tasks:
            by_role[task.role] = by_role.get(task.role, 0) + 1
        return all(by_role.get(role.name, 0) >= role.min for role in spec.roles)

    def may_start_with(self, placed: list[Task]) -> bool:
        """Whether placing these now would be lawful under the job's minimum and match policy."""
        return self._suffices(placed, [t for t in self.tasks if t.state is State.DONE])

    def _suffices(self, placed: list[Task], done: list[Task]) -> bool:
        """Whether these may start beside those that are done and the others that have started."""
        if not placed:
            return False
        job, match = self.job, self.job.spec.match
        anew = {t.index for t in placed}
        started = [t for t in self.started() if t.index not in anew]
        # A gang that has its minimum grows as it likes.
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
        """It has started, and what is left of it is below a minimum that still binds."""
        job = self.job
        if job.spec.match is Match.ONCE_SATISFIED and job.satisfied:
            return False
        left = [t for t in self.tasks if t.state is State.DONE] + self.started()
        return bool(left) and not self.meets_minimum(left)

    @property
    def is_complete(self) -> bool:
        """Whether the work is done, by `complete_when`.

        In a gang that restarts as one, tasks that wait beside finished ones are surplus that never
        got a place; they are not needed any more.
        """
        spec = self.job.spec
        if not self.count(State.DONE) and self.job.drain is None:
            return False
        surplus = State.BLOCKED if spec.restart is not Restart.TASK else State.DONE
        if spec.complete_when == "all" and self.job.drain is None:
            waiting = self.count(State.BLOCKED) if surplus is State.BLOCKED else 0
            return self.count(State.DONE) + waiting == len(self.tasks)
        wanted = [t for t in self.tasks if spec.complete_when in ("all", t.role)]
        finished = [t for t in wanted if _finished(t)]
        return bool(finished) and all(_finished(t) or t.state is surplus for t in wanted)

    @property
    def can_start_again(self) -> bool:
        """Whether its tasks could still start without running done ones again."""
        if self.job.spec.restart is not Restart.TASK:
            return not self.count(State.DONE)
        return self.may_start_with([t for t in self.tasks if t.state is not State.DONE])

    @property
    def can_go_on_alone(self) -> bool:
        """Whether the unfinished tasks could start if those that ended well in a drain are done."""
        finished = [t for t in self.tasks if _finished(t)]
        rest = [t for t in self.tasks if not _finished(t)]
        return self.job.spec.restart is Restart.TASK and self._suffices(rest, finished)

    def phase(self) -> Phase:
        job = self.job
        if job.verdict is not None:
            return job.verdict
        if job.drain is not None:
            return Phase.STOPPING
        if not self.counts & _ANY_PLACED:
            return Phase.PENDING
        return Phase.RUNNING if self.counts & _ANY_PROCESS else Phase.STARTING


def _finished(task: Task) -> bool:
    """Done, or stopped in a drain after it had ended well by itself."""
    if task.state is State.PREEMPTED:
        return task.exit is not None and task.exit.is_success
    return task.state is State.DONE
