"""A pass ends once nothing can be done for the gangs that are left, and its plan is the one that it
would have made by serving all of them."""

from collections.abc import Callable
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.test_planner_properties import GPU, NOW, a_gang, requeued, running_gang

from phalanx.core.model import Queue
from phalanx.core.time_units import MINUTE, SECOND, Micros
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Evict, Plan, Reserve, TimeOut
from phalanx.plan.model import PendingGang, PlannerPolicy, RunningGang, RunningTask
from phalanx.plan.serving.serving import Serving
from phalanx.plan.state.nodes import NodeSpec
from phalanx.plan.state.planner_state import PlannerState

#: Two reserved starts and two searches in a pass, so that small clusters reach both bounds.
POLICY = PlannerPolicy(heads=2, searches=2, max_wait=2.0, starve_after=5 * MINUTE)


class History:
    """A cluster over time. Victims stop at once, and gangs end when they are told to."""

    def __init__(
        self,
        *gpus: int,
        queues: tuple[Queue, ...] = (Queue("a"),),
        policy: PlannerPolicy = POLICY,
        checkpoints: bool = False,
    ) -> None:
        """`checkpoints`: gangs save their work, so they can be moved."""
        self.now: Micros = NOW
        self.state = PlannerState(policy)
        self._checkpoints = checkpoints
        self.state.set_queues({queue.name: queue for queue in queues})
        self.gpus = {f"n{n}": count for n, count in enumerate(gpus)}
        self.closed: set[str] = set()
        self.pending: dict[str, PendingGang] = {}
        self.running: dict[str, RunningGang] = {}
        self.ended_at_once = False  #: whether the last plan served no gang
        self._count = 0
        for node in self.gpus:
            self._put_node(node)

    def submit(self, queue: str = "a", **fields: int | None) -> str:
        values = {"size": 1, "gpus": 1, "priority": 0, "duration": 60 * MINUTE} | fields
        expires, backoff = values.pop("expires", None), values.pop("backoff", None)
        self._count += 1
        gang = a_gang(self._count, queue, least=values["size"], waited=0, **values)  # type: ignore[arg-type]
        expires_at = None if expires is None else self.now + expires
        not_before = 0 if backoff is None else self.now + backoff
        gang = replace(gang, since=self.now, expires_at=expires_at, not_before=not_before)
        self._put(gang)
        return gang.job

    def _put(self, gang: PendingGang) -> None:
        self.pending[gang.job] = gang
        self.state.put_pending(gang)

    def end_one(self, number: int) -> None:
        """End one of the running gangs, if there are so many."""
        for job in sorted(self.running)[number : number + 1]:
            self.end(job)

    def end(self, job: str) -> None:
        gang = self.running.pop(job)
        self.state.remove_running(job)
        for node in {task.node for task in gang.tasks}:
            self._put_node(node)

    def close_or_open(self, node: str) -> None:
        self.closed ^= {node}
        self._put_node(node)

    def _put_node(self, name: str) -> None:
        tasks = [t for gang in self.running.values() for t in gang.tasks if t.node == name]
        used = {"gpu": sum(dict(task.resources)["gpu"] for task in tasks)}
        closed = "cordoned" if name in self.closed else ""
        capacity = {"gpu": self.gpus[name] * GPU}
        self.state.put_node(name, NodeSpec(capacity, used, {}, occupants=len(tasks), closed=closed))

    def plan(self) -> Plan:
        """Plan, check that a pass that serves all gangs has the same result, and carry it out."""
        with patch.object(Serving, "serve", autospec=True, side_effect=Serving.serve) as serve:
            made = plan(self.state, self.now)
        self.ended_at_once = not serve.called and not made.decisions
        with patch.object(Serving, "is_over", return_value=False):
            assert told(made) == told(plan(self.state, self.now))
        self.state.accept(made)
        for decision in made.decisions:
            if isinstance(decision, Evict):
                for victim in decision.victims:
                    self._put(replace(requeued(self.running[victim.job]), since=self.now))
                    self.end(victim.job)
                for move in decision.moves:
                    places = {place.task: place.worker for place in move.assignments}
                    self._start(move.job, places, moved_at=self.now)
            if isinstance(decision, Evict | Reserve):
                for placement in decision.placements:
                    self._start(placement.job, {a.task: a.worker for a in placement.assignments})
            if isinstance(decision, TimeOut):
                del self.pending[decision.job]
                self.state.remove_pending(decision.job)
        return made

    def _start(self, job: str, places: dict[int, str], moved_at: Micros | None = None) -> None:
        gang = self.pending.pop(job)
        self.state.remove_pending(job)
        end = None if gang.duration is None else self.now + gang.duration
        resources = gang.roles[0].request.resources
        tasks = tuple(
            RunningTask(task, "worker", node, resources, ends_at=end, safe_at=self.now)
            for task, node in places.items()
        )
        restart = replace(gang, since=None) if self._checkpoints else None
        started = replace(
            running_gang(gang, tasks), started_at=self.now, restart=restart, moved_at=moved_at
        )
        self.running[job] = started
        for node in set(places.values()):
            self._put_node(node)
        self.state.put_running(started)


def told(made: Plan) -> tuple[object, ...]:
    """Everything that a plan says."""
    starts = (made.reserved_starts, made.broken_starts)
    return made.at, made.decisions, dict(made.reasons), *starts, made.cursor, made.unused_shares


Step = Callable[[History], object]
# Strategies are checked when they are first used, which takes longer than a draw.
KINDS = st.sampled_from(["submit", "submit", "submit", "end", "end", "wait", "node"])
QUEUES, PRIORITIES = st.sampled_from("aab"), st.sampled_from([0, 0, 0, 1])
SIZES = st.sampled_from([1, 1, 2, 4])
MINUTES = st.integers(0, 90).map(lambda n: n * MINUTE)
DURATIONS = st.one_of(st.none(), MINUTES.filter(bool), MINUTES.filter(bool))
EXPIRIES = st.one_of(st.none(), st.none(), MINUTES)
BACKOFFS = st.one_of(st.none(), st.none(), st.none(), MINUTES)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    kind = draw(KINDS)
    number = draw(st.integers(0, 5))
    if kind == "submit":
        queue, priority = draw(QUEUES), draw(PRIORITIES)
        size, gpus = draw(SIZES), draw(st.integers(1, 2))
        duration, expires, backoff = draw(DURATIONS), draw(EXPIRIES), draw(BACKOFFS)
        fields = {"duration": duration, "expires": expires, "backoff": backoff}
        return lambda h: h.submit(queue, size=size, gpus=gpus, priority=priority, **fields)
    if kind == "end":
        return lambda h: h.end_one(number)
    if kind == "node":
        return lambda h: h.close_or_open(sorted(h.gpus)[number % len(h.gpus)])
    passed = draw(MINUTES)
    return lambda h: setattr(h, "now", h.now + passed)


AMOUNTS: st.SearchStrategy[dict[str, int]] = st.one_of(
    st.just({}), st.integers(1, 4).map(lambda n: {"gpu": n * GPU})
)
NODES = st.lists(st.integers(1, 4), min_size=1, max_size=3)
SERIES = st.lists(steps(), min_size=5, max_size=40)


@st.composite
def histories(draw: st.DrawFn) -> tuple[History, list[Step]]:
    queues = (
        Queue("a", quota=draw(AMOUNTS), weight=draw(st.integers(0, 2))),
        Queue("b", quota=draw(AMOUNTS), limit=draw(AMOUNTS)),
    )
    return History(*draw(NODES), queues=queues), draw(SERIES)


@given(histories())
@settings(max_examples=120, deadline=None)
def test_a_pass_that_ends_early_makes_the_plan_of_a_pass_that_serves_all_gangs(
    drawn: tuple[History, list[Step]],
) -> None:
    history, each = drawn
    for step in each:
        step(history)
        history.plan()
        history.now += SECOND
        history.plan()


@given(histories())
@settings(max_examples=80, deadline=None)
def test_a_gang_without_enough_places_is_served_as_by_trial_placements(
    drawn: tuple[History, list[Step]],
) -> None:
    history, each = drawn
    for step in each:
        step(history)
        with patch.object(Serving, "_is_short", return_value=False):
            by_trials = told(plan(history.state, history.now))
        assert told(history.plan()) == by_trials
        history.now += SECOND


# When no gang is served


def busy() -> History:
    """4 of 4 GPUs are in use, and two gangs of 2 GPUs have reserved starts."""
    history = History(4)
    for _ in range(2):
        history.submit(gpus=2)
    history.plan()
    for _ in range(2):
        history.submit(gpus=2)
    for _ in range(2):
        history.now += SECOND
        history.plan()
    assert len(history.state.reserved_starts) == 1
    return history


def serves_none(history: History, after: Micros = SECOND) -> bool:
    """Whether a plan some time later serves no gang."""
    history.now += after
    history.plan()
    return history.ended_at_once


def test_a_job_that_joins_a_line_whose_first_gang_does_not_fit_needs_no_turn() -> None:
    history = busy()
    history.submit(gpus=2)
    assert serves_none(history)
    assert set(history.plan().reasons) == set(history.pending)


def test_a_start_that_leaves_too_little_for_the_others_needs_no_turn() -> None:
    history = busy()
    history.end(next(iter(history.running)))
    assert history.plan().decisions
    history.now += SECOND
    history.plan()  # the next gang is reserved a start
    assert serves_none(history)


def test_an_end_that_frees_too_little_needs_no_turn() -> None:
    history = History(4)
    small = history.submit(gpus=1)
    history.submit(gpus=3)
    history.plan()
    history.submit(gpus=4)
    history.plan()
    history.end(small)
    assert serves_none(history)


def test_an_end_that_frees_too_little_needs_no_turn_where_no_other_end_is_known() -> None:
    history = History(4)
    small = history.submit(gpus=1, duration=None)
    history.submit(gpus=3, duration=None)
    history.plan()
    history.submit(gpus=4)
    history.plan()
    history.end(small)
    assert serves_none(history)


def test_gangs_are_served_where_no_end_is_known_and_a_gang_may_evict_others_or_starves() -> None:
    for priority, after in ((1, SECOND), (0, POLICY.starve_after)):
        history = History(4)
        history.submit(gpus=4, duration=None)
        history.plan()
        history.submit(gpus=4, duration=None, priority=priority)
        assert not serves_none(history, after)


def test_gangs_are_served_when_the_freed_capacity_could_serve_a_gang() -> None:
    history = busy()
    history.end(next(iter(history.running)))
    assert not serves_none(history)


def test_gangs_are_served_when_a_timeout_ends() -> None:
    history = busy()
    job = history.submit(gpus=2, expires=MINUTE)
    assert serves_none(history, after=59 * SECOND)
    assert not serves_none(history)
    assert job not in history.pending


def test_the_reserved_start_of_a_gang_whose_timeout_ends_is_not_kept() -> None:
    history = History(4)
    history.submit(gpus=4)
    history.plan()
    job = history.submit(gpus=2, expires=MINUTE)
    for after in (SECOND, 58 * SECOND):
        history.now += after
        assert [start.job for start in history.plan().reserved_starts] == [job]
    history.now += SECOND
    assert not history.plan().reserved_starts


def test_gangs_are_served_when_a_backoff_ends_and_the_gang_fits() -> None:
    history = History(4)
    job = history.submit(gpus=1, backoff=MINUTE)
    assert serves_none(history, after=59 * SECOND)
    assert not serves_none(history)
    assert job in history.running


def test_gangs_are_served_when_the_time_of_a_reserved_start_has_come() -> None:
    history = busy()
    [start] = history.state.reserved_starts
    assert start.at is not None
    assert serves_none(history, after=start.at - SECOND - history.now)
    assert not serves_none(history)


def test_gangs_are_served_when_a_gang_without_a_reserved_start_is_overdue() -> None:
    history = busy()
    history.submit(gpus=3)
    for _ in range(2):
        history.now += SECOND
        history.plan()
    assert len(history.state.reserved_starts) == POLICY.heads
    late = history.submit(gpus=4, duration=10 * MINUTE)
    assert serves_none(history, after=20 * MINUTE - SECOND)
    assert not serves_none(history)
    assert late in {start.job for start in history.state.reserved_starts}


def test_gangs_are_served_for_a_gang_that_may_evict_others() -> None:
    history = busy()
    assert serves_none(history)
    history.submit(gpus=2, priority=1)
    assert not serves_none(history)


def test_no_gang_is_served_when_a_shorter_gang_overtakes_one_with_a_reserved_start() -> None:
    history = busy()
    history.submit(gpus=3)
    for _ in range(2):
        history.now += SECOND
        history.plan()
    reserved = history.state.reserved_starts
    history.submit(gpus=2, duration=50 * MINUTE)
    assert serves_none(history)
    assert history.state.reserved_starts == reserved


def test_a_reserved_start_is_not_kept_when_its_node_is_closed() -> None:
    history = busy()
    assert serves_none(history)
    history.close_or_open("n0")
    assert not history.plan().reserved_starts
