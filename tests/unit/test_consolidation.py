"""Consolidation: gangs are moved so that a pending gang fits; the new places are kept for all."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.driver import Driver, spec
from tests.unit.test_pass_end import History
from tests.unit.test_planner_properties import GPU

from phalanx.core.events import CancelRequested, HoldChanged, QueueSet
from phalanx.core.model import Phase, Queue, ReclaimFrom
from phalanx.core.records import JobEvicted
from phalanx.core.spec.job import JobSpec
from phalanx.core.time_units import SECOND
from phalanx.engine.planner_loop import event_of
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Evict, Plan, Reserve
from phalanx.plan.explain.whatif import WithMoves, alternatives
from phalanx.plan.model import PlannerPolicy
from phalanx.plan.state.planner_state import PlannerState
from phalanx.wire.event_text import sentence

POLICY = PlannerPolicy(min_runtime=0)


def gpus(count: int, **fields: object) -> JobSpec:
    return spec(1, role={"resources": {"gpu": count}}, checkpoint="each", **fields)


def fragmented(*, consolidation: bool = True) -> Driver:
    """Two workers of 4 GPUs with a gang of 2 GPUs each, and a pending gang of 4 GPUs."""
    driver = Driver()
    driver.apply(QueueSet(Queue("small", consolidation=consolidation)))
    driver.fleet("w-1", "w-2", resources={"gpu": 4000})
    for job, worker in (("j-1", "w-1"), ("j-2", "w-2")):
        driver.submit(gpus(2, queue="small", name=job), job)
        driver.run(job, worker)
    driver.advance(6)
    driver.submit(gpus(4, name="train-9"), "j-big")
    return driver


def planned(driver: Driver) -> Plan:
    made = plan(PlannerState.of(driver.cluster, POLICY), driver.now)
    for decision in made.decisions:
        driver.apply(event_of(decision))
    return made


def moving() -> tuple[Driver, str]:
    """A cluster in which a gang is moved, and the job that is."""
    driver = fragmented()
    [decision] = planned(driver).decisions
    assert isinstance(decision, Evict)
    [victim] = decision.victims
    return driver, victim.job


def test_a_moved_gang_and_the_pending_one_both_start_when_it_has_stopped() -> None:
    driver, moved = moving()
    old, new = ("w-1", "w-2") if moved == "j-1" else ("w-2", "w-1")
    assert driver.phase(moved) is Phase.STOPPING
    driver.stop(moved)
    made = planned(driver)
    assert len(made.decisions) == 2
    assert all(isinstance(decision, Reserve) for decision in made.decisions)
    assert driver.place_of(moved, 0).worker == new
    assert driver.place_of("j-big", 0).worker == old


def test_the_event_names_the_worker_the_job_and_the_lost_work() -> None:
    driver, moved = moving()
    [record] = [each for each in driver.records if isinstance(each, JobEvicted)]
    new = "w-2" if moved == "j-1" else "w-1"
    text = f"moved to {new} so that default/train-9 can start"
    assert sentence(record) == f"{text}; 12 GPU-seconds since the last checkpoint lost"


def test_no_other_gang_takes_the_kept_places() -> None:
    driver, moved = moving()
    driver.submit(gpus(2, name="late", priority=5), "j-late")
    assert not planned(driver).decisions
    driver.stop(moved)
    planned(driver)
    assert {driver.phase(job) for job in (moved, "j-big")} == {Phase.STARTING}
    assert driver.phase("j-late") is Phase.PENDING


def test_kept_places_are_released_when_the_moved_gang_does_not_start() -> None:
    driver, moved = moving()
    driver.stop(moved)
    assert driver.pending(moved).nomination is not None
    driver.restart()
    driver.advance(600)
    assert driver.pending(moved).nomination is None


def test_a_moved_gang_that_is_cancelled_or_put_on_hold_keeps_no_places() -> None:
    driver, moved = moving()
    driver.apply(CancelRequested(moved))
    driver.stop(moved)
    assert driver.phase(moved) is Phase.CANCELLED
    driver, moved = moving()
    driver.apply(HoldChanged(moved, on_hold=True))
    driver.stop(moved)
    assert driver.pending(moved).nomination is None


def test_the_planner_knows_when_a_gang_was_last_moved() -> None:
    driver, moved = moving()
    driver.stop(moved)
    planned(driver)
    driver.accept(moved)
    driver.start(moved)
    driver.advance(60)
    moved_at = PlannerState.of(driver.cluster).running.by_job[moved].gang.moved_at
    assert moved_at is not None
    assert 60 * SECOND <= driver.now - moved_at < 61 * SECOND


def test_why_names_the_queue_that_does_not_allow_moves() -> None:
    driver = fragmented(consolidation=False)
    state = PlannerState.of(driver.cluster, POLICY)
    made = plan(state, driver.now)
    assert not made.decisions
    found = alternatives(state, driver.now, "j-big", made.reasons["j-big"], 0)
    assert WithMoves(1, "small") in found


def test_a_gang_that_would_be_kept_from_starting_again_is_not_moved() -> None:
    driver = fragmented()
    driver.apply(QueueSet(Queue("small", consolidation=True, stopped=True)))
    assert not planned(driver).decisions
    driver = fragmented()
    for job in ("j-1", "j-2"):
        driver.apply(HoldChanged(job, on_hold=True))
    assert not planned(driver).decisions


# Over many clusters


@st.composite
def scattered(draw: st.DrawFn) -> History:
    """Clusters on which gangs of several sizes have come and gone, and further gangs."""
    nodes = draw(st.integers(2, 3))
    queues = tuple(
        Queue(name, consolidation=is_open, reclaim_from_siblings=ReclaimFrom.NEVER)
        for name, is_open in (("a", True), ("b", draw(st.booleans())))
    )
    history = History(*[4] * nodes, queues=queues, policy=POLICY, checkpoints=True)
    for _ in range(3 * nodes):
        gpus = draw(st.sampled_from([1, 1, 2]))
        history.submit(draw(st.sampled_from("aab")), gpus=gpus, duration=None)
    history.plan()
    for job in sorted(history.running):
        if draw(st.booleans()):
            history.end(job)
    for _ in range(draw(st.integers(1, 3))):
        history.submit(draw(st.sampled_from("ab")), gpus=draw(st.integers(2, 4)), duration=None)
    history.now += 60 * SECOND
    return history


@given(scattered())
@settings(max_examples=80, deadline=None)
def test_moves_end_and_leave_every_gang_a_place(history: History) -> None:
    moved: list[str] = []
    for _ in range(len(history.pending) + 1):
        running = set(history.running)
        for decision in history.plan().decisions:
            if isinstance(decision, Evict):
                assert {move.job for move in decision.moves} == {v.job for v in decision.victims}
                assert sum(victim.lost for victim in decision.victims) <= POLICY.move_work
                moved += (move.job for move in decision.moves)
        assert running <= set(history.running), "a moved gang has no place"
        assert max(overused(history).values()) <= 0
    assert not history.plan().decisions, "moves do not end"
    assert len(moved) == len(set(moved)), "a gang was moved twice in its cooldown"


def overused(history: History) -> dict[str, int]:
    """By node: what its tasks use above its capacity; negative if some is free."""
    excess = {node: -gpus * GPU for node, gpus in history.gpus.items()}
    for gang in history.running.values():
        for task in gang.tasks:
            excess[task.node] += dict(task.resources)["gpu"]
    return excess
