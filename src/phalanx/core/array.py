"""An array as the core has it in memory: a job without tasks, and one character per element.

Elements that are placed next, and those that run, are jobs of their own (`ARRAY[INDEX]`), which
share the specification of the array. All others are only characters, so an array of 10,000 costs
little more than one job. `Changes` works on copies; all other code only reads.
"""

from collections.abc import Iterable, Iterator

from phalanx.core.gang import Gang
from phalanx.core.ids import element_id
from phalanx.core.model import ElementBlock, ElementCounts, Job, Phase
from phalanx.core.spec.arrays import Indices

#: Elements whose states are stored in one row.
BLOCK = 256
#: Pending elements of one array that are jobs of their own.
WINDOW = 256
#: The highest number of attempts that fits a byte; `Job.epoch` of the array has higher ones.
MOST_ATTEMPTS = 255

#: The state of an element that is not a job of its own yet.
WAITING = "."
#: The states of elements that are jobs of their own.
LIVE: dict[Phase, str] = {
    Phase.PENDING: "p",
    Phase.STARTING: "s",
    Phase.RUNNING: "r",
    Phase.STOPPING: "x",
}
#: The states of ended elements. Upper case: the element ended without an attempt.
ENDS: dict[Phase, str] = {
    Phase.DONE: "d",
    Phase.FAILED: "f",
    Phase.CANCELLED: "c",
    Phase.TIMED_OUT: "t",
}
#: The states of elements that ended without an attempt.
NEVER_RAN = frozenset(state.upper() for state in ENDS.values())
UNFINISHED = frozenset({WAITING, *LIVE.values()})
#: The phase that users see.
PHASES: dict[str, Phase] = (
    {WAITING: Phase.PENDING}
    | {state: phase for phase, state in (LIVE | ENDS).items()}
    | {state.upper(): phase for phase, state in ENDS.items()}
)


def end_state(verdict: Phase, attempts: int) -> str:
    """The state of an element that has ended."""
    state = ENDS[verdict]
    return state if attempts else state.upper()


def new_blocks(array: str, size: int) -> list[ElementBlock]:
    """The states of the elements of a new array."""
    sizes = [min(BLOCK, size - first) for first in range(0, size, BLOCK)]
    return [
        ElementBlock(array, number, WAITING * count, bytes(count))
        for number, count in enumerate(sizes)
    ]


class Array(Gang):
    __slots__ = ("blocks", "tally")

    def __init__(self, job: Job, blocks: list[ElementBlock]) -> None:
        super().__init__(job, [])
        self.blocks = blocks
        #: How many elements are in each state.
        self.tally = tally_of(blocks)

    def copy(self) -> "Array":
        copy = Array.__new__(Array)
        copy.job = self.job
        copy.tasks = []
        copy.counts = copy.accepted = copy.missing = 0
        copy.progress = None
        copy.blocks = self.blocks.copy()
        copy.tally = self.tally.copy()
        return copy

    def set_block(self, block: ElementBlock) -> None:
        before = self.blocks[block.number].states
        for state in {*before, *block.states}:
            more = block.states.count(state) - before.count(state)
            self.tally[state] = self.tally.get(state, 0) + more
        self.blocks[block.number] = block

    def state(self, position: int) -> str:
        return self.blocks[position // BLOCK].states[position % BLOCK]

    def attempts(self, position: int) -> int:
        """How many attempts an element that has ended or waits has had."""
        attempts = self.blocks[position // BLOCK].attempts[position % BLOCK]
        return attempts if attempts < MOST_ATTEMPTS else max(attempts, self.job.epoch)

    def number_in(self, states: Iterable[str]) -> int:
        """How many elements are in one of these states."""
        tally, count = self.tally, 0
        for state in states:
            count += tally.get(state, 0)
        return count

    @property
    def unfinished(self) -> int:
        return self.number_in(UNFINISHED)

    def positions(self, states: Iterable[str]) -> Iterator[int]:
        """The elements that are in one of these states, in order."""
        wanted = frozenset(states)
        for block in self.blocks:
            if not wanted.isdisjoint(block.states):
                first = block.number * BLOCK
                for offset, state in enumerate(block.states):
                    if state in wanted:
                        yield first + offset

    def first_waiting(self) -> int | None:
        """The element that becomes a job next."""
        for block in self.blocks:
            offset = block.states.find(WAITING)
            if offset >= 0:
                return block.number * BLOCK + offset
        return None

    def index(self, position: int) -> int:
        return elements_of(self.job)[position]

    def position(self, index: int) -> int | None:
        return elements_of(self.job).position(index)

    def element(self, position: int) -> str:
        """The job of an element."""
        return element_id(self.job.id, self.index(position))

    def first_pending(self) -> str | None:
        """The first element that is a job of its own and is pending."""
        return next(map(self.element, self.positions(LIVE[Phase.PENDING])), None)

    def new_job(self, position: int) -> Job:
        """The job of an element that has not been placed yet.

        Elements are created with their array, each a microsecond after the one before, so that they
        are placed in order.
        """
        array, index = self.job, self.index(position)
        return Job(
            id=element_id(array.id, index),
            name=element_id(array.name, index),
            spec=array.spec,
            phase=Phase.PENDING,
            created_at=array.created_at + position,
            priority=array.priority,
            owner=array.owner,
            epoch=self.attempts(position),
            on_hold=array.on_hold,
            array=array.id,
            index=index,
        )

    def live_elements(self) -> list[str]:
        return [self.element(position) for position in self.positions(LIVE.values())]

    @property
    def free_slots(self) -> int:
        """How many more elements can become jobs now."""
        job, array = self.job, self.job.spec.array
        if job.is_ending or job.on_hold or job.pending is not None or array is None:
            return 0
        most = WINDOW - self.number_in(LIVE[Phase.PENDING])
        if array.parallel is not None:
            most = min(most, array.parallel - self.number_in(LIVE.values()))
        return max(0, min(most, self.number_in(WAITING)))

    @property
    def is_over(self) -> bool:
        return not self.unfinished

    def phase(self) -> Phase:
        job = self.job
        if job.end is not None:
            return job.end.verdict
        if job.stopping is not None:
            return Phase.STOPPING
        for phase in (Phase.RUNNING, Phase.STARTING, Phase.STOPPING):
            if self.tally.get(LIVE[phase]):
                return phase
        return Phase.PENDING

    @property
    def element_counts(self) -> ElementCounts:
        count = self.number_in
        return ElementCounts(
            pending=count((WAITING, LIVE[Phase.PENDING])),
            starting=count(LIVE[Phase.STARTING]),
            running=count(LIVE[Phase.RUNNING]),
            stopping=count(LIVE[Phase.STOPPING]),
            done=count(ENDS[Phase.DONE]),
            failed=count(ENDS[Phase.FAILED]),
            cancelled=count(ENDS[Phase.CANCELLED]),
            timed_out=count(ENDS[Phase.TIMED_OUT]),
            never_ran=count(NEVER_RAN),
        )


def elements_of(job: Job) -> Indices:
    """The indices of an array."""
    if job.spec.array is None:
        raise AssertionError(f"bug: job {job.id} is not an array")
    return job.spec.array.elements


def name_an_element(job: Job) -> str:
    """The error of what can only be done to one element."""
    return f"job {job.id} is an array; name an element, like {job.name}[{elements_of(job)[0]}]"


def tally_of(blocks: Iterable[ElementBlock]) -> dict[str, int]:
    """How many elements are in each state."""
    tally: dict[str, int] = {}
    for block in blocks:
        for state in set(block.states):
            tally[state] = tally.get(state, 0) + block.states.count(state)
    return tally
