"""Starting together: reserved in one commit, accepted, released as one, and only then run."""

import pytest
from tests.driver import Driver, spec

from phalanx.core.errors import Conflict, IllegalTransition, StaleEpoch, Unknown
from phalanx.core.events import (
    Accepted,
    CancelRequested,
    CheckpointSaved,
    Claimed,
    Event,
    Exited,
    HoldChanged,
    Placed,
    Placement,
    PollersCounted,
    PreparationReported,
    Progressed,
    SpawnFailed,
    Started,
    Stopped,
    Vanished,
    WorkerLost,
)
from phalanx.core.model import Assignment, Blob, Phase, Place, Protocol, Task
from phalanx.core.records import ReservationLost, TaskPreparing
from phalanx.core.states import State
from phalanx.core.time_units import SECOND

B, R, RUN = State.BLOCKED, State.RESERVED, State.RUNNING


def a_reserved_gang(size: int = 3) -> tuple[Driver, str]:
    driver = Driver()
    driver.fleet("a", "b", "c")
    job = driver.submit(spec(size))
    driver.place(job, "a", "b", "c")
    return driver, job


def released(driver: Driver, job: str) -> list[bool]:
    return [task.released for task in driver.gang(job).tasks]


# Placing


def test_placing_reserves_the_start_set_under_one_new_epoch() -> None:
    driver, job = a_reserved_gang()
    tasks = driver.gang(job).tasks
    assert [task.state for task in tasks] == [R, R, R]
    assert [task.worker for task in tasks] == ["a", "b", "c"]
    assert {task.epoch for task in tasks} == {driver.job(job).epoch} == {1}
    assert driver.phase(job) is Phase.STARTING


def test_every_reservation_has_its_own_epoch() -> None:
    driver, job = a_reserved_gang()
    driver.advance(31)
    assert driver.place(job, "a", "b", "c") == 2


def test_a_gang_of_one_is_pending_and_tasks_of_a_larger_one_are_blocked() -> None:
    driver = Driver()
    assert driver.states(driver.submit(spec(1))) == [State.PENDING]
    assert driver.states(driver.submit(spec(2))) == [B, B]


def test_a_part_of_the_minimum_is_not_reserved() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(3))
    placement = Placement(job, 0, (Assignment(0, "a"), Assignment(1, "b")))
    assert "2 tasks do not meet its minimum" in driver.refuse(Placed((placement,)), Conflict)


def test_a_minimum_binds_role_by_role() -> None:
    driver = Driver()
    driver.fleet("a", "b", "c")
    job = driver.submit(spec(2, min_available=2, role={"min": 2}))
    placement = Placement(job, 0, (Assignment(0, "a"),))
    driver.refuse(Placed((placement,)), Conflict)
    driver.place(job, "a", "b")
    assert driver.states(job) == [R, R]


@pytest.mark.parametrize(
    ("assignments", "why"),
    [
        ([(0, "a"), (0, "b")], "a task is assigned twice"),
        ([(0, "a"), (2, "b")], "names a task that does not exist"),
        ([(0, "a"), (-1, "b")], "names a task that does not exist"),
        ([], "0 tasks do not meet its minimum"),
    ],
)
def test_a_start_set_that_makes_no_sense_is_refused(
    assignments: list[tuple[int, str]], why: str
) -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(2))
    placement = Placement(job, 0, tuple(Assignment(*pair) for pair in assignments))
    assert why in driver.refuse(Placed((placement,)), Conflict)


def test_a_start_set_with_one_task_that_does_not_fit_is_refused_whole() -> None:
    driver = Driver()
    driver.worker("a", resources={"gpu": 1000})
    driver.worker("b")
    job = driver.submit(spec(2, role={"resources": {"gpu": 1}}))
    placement = Placement(job, 0, (Assignment(0, "a"), Assignment(1, "b")))
    assert "it has 0 gpu free, not 1000" in driver.refuse(Placed((placement,)), Conflict)
    assert driver.states(job) == [B, B]
    assert not driver.cluster.nodes["a"].charges


def test_nothing_is_placed_on_an_unknown_worker() -> None:
    driver = Driver()
    job = driver.submit(spec())
    driver.refuse(Placed((Placement(job, 0, (Assignment(0, "a"),)),)), Unknown)


def test_a_plan_made_for_an_older_version_of_the_job_is_refused() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec())
    version = driver.job(job).version
    driver.apply(HoldChanged(job, on_hold=True))
    driver.apply(HoldChanged(job, on_hold=False))
    stale = Placed((Placement(job, version, (Assignment(0, "a"),)),))
    assert "it has changed since version 0" in driver.refuse(stale, Conflict)


def test_a_gang_that_is_not_all_blocked_is_not_reserved_again() -> None:
    driver, job = a_reserved_gang()
    again = Placed((Placement(job, driver.job(job).version, (Assignment(0, "a"),)),))
    assert "it already has a reservation" in driver.refuse(again, Conflict)
    driver.accept(job)
    again = Placed((Placement(job, driver.job(job).version, (Assignment(0, "a"),)),))
    assert "it has started, and restarts only as a whole" in driver.refuse(again, Conflict)


def test_a_job_on_hold_is_not_placed() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec())
    driver.apply(HoldChanged(job, on_hold=True))
    held = Placed((Placement(job, driver.job(job).version, (Assignment(0, "a"),)),))
    assert "it is on hold" in driver.refuse(held, Conflict)


def test_at_most_per_node_tasks_of_a_role_share_a_node() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(3, role={"per_node": 2}))
    crowd = tuple(Assignment(n, "a") for n in range(3))
    refusal = driver.refuse(Placed((Placement(job, 0, crowd),)), Conflict)
    assert "role worker allows 2 tasks per worker" in refusal
    driver.place(job, "a", "a", "b")
    assert driver.states(job) == [R, R, R]


def test_placing_wakes_the_workers_that_have_to_prepare() -> None:
    driver = Driver()
    driver.fleet("a", "b", "c")
    job = driver.submit(spec(2))
    placement = Placement(job, 0, (Assignment(0, "a"), Assignment(1, "b")))
    assert driver.apply(Placed((placement,))).wake == {"a", "b"}


# Accepting and releasing


def test_a_gang_is_released_in_the_commit_in_which_the_last_agent_accepts() -> None:
    driver, job = a_reserved_gang()
    for index in (2, 0):
        driver.apply(Accepted(f"{job}.{index}", 1))
        assert released(driver, job) == [False, False, False]
    changes = driver.apply(Accepted(f"{job}.1", 1))
    assert released(driver, job) == [True, True, True]
    assert changes.wake == {"a", "b", "c"}
    assert "GangStarting" in driver.kinds(job)


def test_an_acceptance_reported_twice_counts_once() -> None:
    driver, job = a_reserved_gang()
    for _ in range(5):
        driver.apply(Accepted(f"{job}.0", 1))
    assert released(driver, job) == [False, False, False]


def test_acceptances_are_asked_for_again_after_a_change_of_leader() -> None:
    driver, job = a_reserved_gang()
    driver.apply(Accepted(f"{job}.0", 1))
    driver.apply(Accepted(f"{job}.1", 1))
    driver.restart()
    driver.apply(Accepted(f"{job}.2", 1))
    assert released(driver, job) == [False, False, False]
    driver.accept(job)
    assert released(driver, job) == [True, True, True]


def test_a_late_acceptance_does_not_release_the_next_reservation() -> None:
    driver, job = a_reserved_gang()
    driver.advance(31)
    driver.place(job, "a", "b", "c")
    driver.apply(Accepted(f"{job}.0", 2))
    driver.apply(Accepted(f"{job}.1", 2))
    driver.refuse(Accepted(f"{job}.2", 1), StaleEpoch)
    assert released(driver, job) == [False, False, False]


def test_an_acceptance_after_the_release_is_harmless() -> None:
    driver, job = a_reserved_gang()
    driver.accept(job)
    assert not driver.apply(Accepted(f"{job}.0", 1)).has_rows


def test_a_start_set_on_one_agent_is_placed_and_released_in_one_commit() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec(3))
    driver.place(job, "a", "a", "a")
    assert released(driver, job) == [True, True, True]
    assert {task.releases for task in driver.gang(job).tasks} == {1}


def test_a_start_set_on_two_agents_is_not() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(3))
    driver.place(job, "a", "b", "a")
    assert released(driver, job) == [False, False, False]


@pytest.mark.parametrize(
    "report",
    [
        Started("j-1.0", 1),
        Exited("j-1.0", 1, 0),
        Exited("j-1.0", 1, 1),
        Exited("j-1.0", 1, signalled=True),
        Vanished("j-1.0", 1),
    ],
)
def test_nothing_may_have_run_before_the_release(report: Event) -> None:
    driver = Driver()
    driver.fleet("a", "b")
    driver.submit(spec(2), "j-1")
    driver.place("j-1", "a", "b")
    driver.apply(Accepted("j-1.0", 1))
    assert "j-1.0 is reserved in attempt 1" in driver.refuse(report, IllegalTransition)


# Before the release a loss costs nothing


def test_a_start_set_that_is_not_accepted_in_time_is_given_back_whole() -> None:
    driver, job = a_reserved_gang()
    driver.apply(Accepted(f"{job}.0", 1))
    driver.advance(29)
    assert driver.states(job) == [R, R, R]
    driver.advance(1)
    assert driver.states(job) == [B, B, B]
    assert driver.phase(job) is Phase.PENDING
    assert driver.job(job).failures == 0
    assert not any(node.charges for node in driver.cluster.nodes.values())


def test_workers_that_did_not_accept_are_tried_last() -> None:
    driver, job = a_reserved_gang()
    driver.apply(Accepted(f"{job}.1", 1))
    driver.advance(30)
    assert driver.job(job).avoid == ("a", "c")


def test_a_worker_lost_before_the_release_returns_the_whole_start_set() -> None:
    driver, job = a_reserved_gang()
    driver.apply(Accepted(f"{job}.0", 1))
    changes = driver.apply(WorkerLost("b"))
    assert driver.states(job) == [B, B, B]
    assert driver.job(job).avoid == ("b",)
    assert driver.job(job).failures == 0
    assert not driver.residues
    assert changes.wake >= {"a", "c"}


def test_a_spawn_that_fails_in_preparation_returns_the_whole_start_set() -> None:
    driver, job = a_reserved_gang()
    driver.apply(SpawnFailed(f"{job}.2", 1, "no such file"))
    assert driver.states(job) == [B, B, B]
    assert (driver.job(job).failures, driver.job(job).avoid) == (0, ("c",))


def test_repeatedly_lost_reservations_lead_to_a_backoff() -> None:
    driver, job = a_reserved_gang()
    pauses = []
    for _ in range(8):
        driver.advance(30)
        lost_at = [record.at for record in driver.records if isinstance(record, ReservationLost)][
            -1
        ]
        pauses.append((driver.pending(job).not_before - lost_at) // SECOND)
        driver.advance(pauses[-1])
        driver.place(job, "a", "b", "c")
    assert pauses == [0, 10, 20, 40, 80, 160, 300, 300]
    assert driver.job(job).failures == 0


def test_no_reservation_is_made_before_the_backoff_has_ended() -> None:
    driver, job = a_reserved_gang()
    driver.advance(30)
    driver.place(job, "a", "b", "c")
    driver.advance(31)
    version = driver.job(job).version
    early = Placed((Placement(job, version, tuple(map(Assignment, range(3), "abc"))),))
    assert "its backoff has not ended" in driver.refuse(early, Conflict)
    driver.advance(10)
    driver.place(job, "a", "b", "c")
    assert driver.states(job) == [R, R, R]


def test_a_release_ends_the_row_of_lost_reservations() -> None:
    driver, job = a_reserved_gang()
    driver.advance(31)
    assert driver.pending(job).lost_reservations == 1
    driver.run(job, "a", "b", "c")
    assert driver.pending(job).lost_reservations == 0


# After the release it is a failure


def test_a_released_task_that_does_not_start_in_time_has_failed() -> None:
    driver, job = a_reserved_gang()
    driver.accept(job)
    driver.apply(Started(f"{job}.0", 1))
    driver.apply(Started(f"{job}.1", 1))
    driver.advance(31)
    assert driver.states(job) == [State.PREEMPTING, State.PREEMPTING, State.PREEMPTED]
    assert driver.job(job).failures == 1
    assert (f"{job}.2", 1) in driver.residues


def test_a_gang_that_has_started_is_not_touched_by_its_start_timer() -> None:
    driver, job = a_reserved_gang()
    driver.accept(job)
    driver.start(job)
    driver.advance(3000)
    assert driver.states(job) == [RUN, RUN, RUN]


def test_a_process_that_starts_and_exits_in_one_step_is_done() -> None:
    driver, job = a_reserved_gang()
    driver.accept(job)
    driver.exit(job, 0)
    assert driver.states(job) == [State.DONE, R, R]
    driver.start(job)
    driver.exit(job, 1)
    driver.exit(job, 2)
    assert driver.phase(job) is Phase.DONE


def test_a_start_that_is_reported_twice_changes_nothing() -> None:
    driver, job = a_reserved_gang()
    driver.accept(job)
    driver.start(job)
    assert not driver.apply(Started(f"{job}.0", 1)).has_rows


# Stale epochs

REPORTS: list[Event] = [
    Accepted("j-1.0", 1),
    Started("j-1.0", 1),
    Exited("j-1.0", 1, 0),
    Exited("j-1.0", 1, 1),
    SpawnFailed("j-1.0", 1, "no such file"),
    Stopped("j-1.0", 1),
    Vanished("j-1.0", 1),
    Progressed("j-1.0", 1, step=3, safe=True),
    CheckpointSaved("j-1.0", 1, Blob("b1", 3)),
]


def at_epoch_two(stage: State) -> Driver:
    """A gang in its second attempt, with its first task at that stage."""
    driver = Driver()
    driver.fleet("a", "b")
    driver.submit(spec(2), "j-1")
    driver.run("j-1", "a", "b")
    driver.fail("j-1", 1)
    driver.stop("j-1")
    driver.place("j-1", "a", "b")
    if stage is not State.RESERVED:
        driver.accept("j-1")
        driver.start("j-1")
    if stage is State.PREEMPTING:
        driver.fail("j-1", 1)
    assert driver.task("j-1", 0).state is stage
    return driver


@pytest.mark.parametrize("stage", [State.RESERVED, State.RUNNING, State.PREEMPTING])
@pytest.mark.parametrize("report", REPORTS)
def test_a_report_about_an_earlier_attempt_changes_nothing(report: Event, stage: State) -> None:
    refusal = at_epoch_two(stage).refuse(report, StaleEpoch)
    assert refusal == "task j-1.0 is in attempt 2; the message is about attempt 1"


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_about_a_task_that_does_not_exist_is_refused(report: Event) -> None:
    Driver().refuse(report, Unknown)
    driver = Driver()
    driver.submit(spec(2), "j-1")
    beyond = type(report)(
        **{**{f: getattr(report, f) for f in report.__struct_fields__}, "task": "j-1.2"}
    )
    assert "there is no task j-1.2; job j-1 has 2 tasks" in driver.refuse(beyond, Unknown)


# The plain protocol


def a_mixed_gang() -> tuple[Driver, str]:
    """One task on a plain worker, two on agents."""
    driver = Driver()
    driver.plain("p")
    driver.fleet("a", "b")
    job = driver.submit(spec(3))
    driver.place(job, "p", "a", "b")
    return driver, job


def test_a_plain_worker_has_the_slots_that_it_registers_or_polls_for() -> None:
    driver = Driver()
    driver.plain("p", "polls", slots=None)
    driver.plain("q", slots=4)
    driver.worker("a")
    for worker in ("polls", "q", "a"):
        driver.apply(PollersCounted(worker, 3))
        driver.apply(PollersCounted(worker, 2))
    driver.restart()
    slots = {name: node.worker.slots for name, node in driver.cluster.nodes.items()}
    assert slots == {"p": 1, "polls": 3, "q": 4, "a": None}
    # The same process keeps them when it registers again; another one starts anew.
    driver.worker("polls", Protocol.PLAIN, slots=None)
    assert driver.cluster.nodes["polls"].worker.slots == 3
    driver.worker("polls", Protocol.PLAIN, slots=None, incarnation="2")
    assert driver.cluster.nodes["polls"].worker.slots == 1


def test_a_claim_by_the_right_worker_starts_the_task() -> None:
    driver = Driver()
    driver.plain("p", "q")
    job = driver.submit(spec(2))
    driver.place(job, "p", "q")
    driver.claim(job, 0)
    assert driver.states(job) == [RUN, R]
    assert released(driver, job) == [True, True]


@pytest.mark.parametrize("claimant", ["q", "a", "unknown", None])
def test_a_claim_by_a_wrong_worker_is_refused(claimant: str | None) -> None:
    driver = Driver()
    driver.plain("p", "q")
    driver.worker("a")
    job = driver.submit(spec())
    driver.place(job, "p")
    driver.refuse(Claimed(f"{job}.0", claimant), Conflict)


def test_a_task_is_claimed_once() -> None:
    driver = Driver()
    driver.plain("p")
    job = driver.submit(spec())
    driver.place(job, "p")
    driver.claim(job, 0)
    driver.refuse(Claimed(f"{job}.0", "p"), Conflict)


def test_a_plain_workers_claim_is_refused_until_the_agents_have_accepted() -> None:
    driver, job = a_mixed_gang()
    waits = Claimed(f"{job}.0", "p")
    assert "before all agents of its gang are ready" in driver.refuse(waits, Conflict)
    driver.apply(Accepted(f"{job}.1", 1))
    driver.refuse(waits, Conflict)
    driver.apply(Accepted(f"{job}.2", 1))
    driver.apply(waits)
    assert driver.states(job) == [RUN, R, R]


def test_agents_that_accepted_release_a_mixed_gang_without_the_plain_worker() -> None:
    driver, job = a_mixed_gang()
    driver.apply(Accepted(f"{job}.1", 1))
    assert released(driver, job) == [False, False, False]
    driver.apply(Accepted(f"{job}.2", 1))
    assert released(driver, job) == [True, True, True]


def test_a_plain_worker_cannot_accept_in_an_agents_place() -> None:
    driver, job = a_mixed_gang()
    driver.apply(Accepted(f"{job}.0", 1))
    driver.apply(Accepted(f"{job}.1", 1))
    assert released(driver, job) == [False, False, False]


def test_a_plain_worker_whose_claim_was_refused_is_not_suspected() -> None:
    driver, job = a_mixed_gang()
    driver.apply(Accepted(f"{job}.1", 1))
    driver.advance(30)
    assert driver.job(job).avoid == ("b",)


def test_plain_workers_that_never_claimed_are_suspected() -> None:
    driver = Driver()
    driver.plain("p", "q")
    job = driver.submit(spec(2))
    driver.place(job, "p", "q")
    driver.advance(30)
    assert driver.states(job) == [B, B]
    assert driver.job(job).avoid == ("p", "q")


def test_a_start_set_on_one_plain_worker_waits_for_its_claim() -> None:
    driver = Driver()
    driver.plain("p", slots=2)
    job = driver.submit(spec(2))
    driver.place(job, "p", "p")
    assert released(driver, job) == [False, False]


def test_a_worker_with_all_slots_taken_is_given_no_more() -> None:
    driver = Driver()
    driver.plain("p")
    driver.place(driver.submit(spec()), "p")
    second = driver.submit(spec())
    full = Placed((Placement(second, 0, (Assignment(0, "p"),)),))
    assert "its only slot is taken" in driver.refuse(full, Conflict)


# Claiming without a name


def test_any_worker_may_claim_a_job_without_resources_and_selector() -> None:
    driver = Driver()
    job = driver.submit(spec())
    driver.apply(Claimed(f"{job}.0"))
    task = driver.task(job, 0)
    assert (task.state, task.epoch, task.worker, task.releases) == (RUN, 1, None, 1)
    driver.exit(job, 0)
    assert driver.phase(job) is Phase.DONE


@pytest.mark.parametrize(
    "role",
    [{"resources": {"gpu": 1}}, {"resources": {"licence": 1}}, {"node_selector": {"a": "b"}}],
)
@pytest.mark.parametrize("worker", [None, "p"])
def test_a_job_with_resources_or_a_selector_must_be_placed_first(
    role: dict[str, object], worker: str | None
) -> None:
    driver = Driver()
    driver.plain("p", resources={"gpu": 1000, "licence": 1}, labels={"a": "b"})
    job = driver.submit(spec(role=role))
    refusal = driver.refuse(Claimed(f"{job}.0", worker), Conflict)
    assert refusal == f"task {job}.0 requests resources and has no reservation yet"


def test_a_member_of_a_group_cannot_be_claimed_alone() -> None:
    driver = Driver()
    job = driver.submit(spec(group=["default/other"]))
    driver.refuse(Claimed(f"{job}.0"), Conflict)


def test_a_task_of_a_pending_gang_cannot_be_claimed() -> None:
    driver = Driver()
    job = driver.submit(spec(2))
    driver.refuse(Claimed(f"{job}.0"), Conflict)


@pytest.mark.parametrize("worker", [None, "p"])
def test_a_pending_task_is_claimed_by_one_only(worker: str | None) -> None:
    driver = Driver()
    driver.plain("p", slots=2)
    job = driver.submit(spec())
    driver.apply(Claimed(f"{job}.0", worker))
    driver.refuse(Claimed(f"{job}.0", worker), Conflict)
    driver.refuse(Claimed(f"{job}.0"), Conflict)


def test_a_job_on_hold_or_in_backoff_cannot_be_claimed() -> None:
    driver = Driver()
    job = driver.submit(spec(max_retries=5))
    claim = Claimed(f"{job}.0")
    driver.apply(HoldChanged(job, on_hold=True))
    assert driver.refuse(claim, Conflict) == f"job {job} cannot start: on hold until it is released"
    driver.apply(HoldChanged(job, on_hold=False))
    for _ in range(2):
        driver.apply(claim)
        driver.fail(job, 0)
    driver.refuse(claim, Conflict)
    driver.advance(10)
    driver.apply(claim)
    assert driver.states(job) == [RUN]


def test_a_claim_charges_a_slot_of_the_worker_that_names_itself() -> None:
    driver = Driver()
    driver.plain("p")
    one, two = driver.submit(spec()), driver.submit(spec())
    driver.apply(Claimed(f"{one}.0", "p"))
    assert "its only slot is taken" in driver.refuse(Claimed(f"{two}.0", "p"), Conflict)
    driver.exit(one, 0)
    driver.apply(Claimed(f"{two}.0", "p"))
    assert driver.task(two, 0).state is RUN


def test_a_claim_while_the_job_lost_reservations_ends_their_row() -> None:
    driver = Driver()
    driver.plain("p")
    job = driver.submit(spec())
    driver.place(job, "p")
    driver.advance(31)
    driver.apply(Claimed(f"{job}.0"))
    assert driver.pending(job).lost_reservations == 0


def test_the_attempts_of_a_task_only_grow() -> None:
    driver, job = a_reserved_gang()
    seen = []
    for _ in range(3):
        driver.accept(job)
        seen.append(driver.task(job, 1).releases)
        if driver.job(job).failures < 2:
            driver.start(job)
            driver.fail(job, 0)
            driver.stop(job)
            driver.advance(30)
            driver.place(job, "a", "b", "c")
    assert seen == [1, 2, 3]


def test_a_reservation_charges_its_worker_at_once() -> None:
    driver = Driver()
    driver.fleet("a", "b", resources={"gpu": 2000})
    one = driver.submit(spec(2, role={"resources": {"gpu": 2}}))
    driver.place(one, "a", "b")
    assert [driver.cluster.nodes[name].free("gpu") for name in "ab"] == [0, 0]


def test_a_task_describes_its_attempt_in_one_line() -> None:
    task = Task("j-1", 2, "worker", State.RUNNING, epoch=4, place=Place("a", 5, released_at=6))
    assert task.story == "j-1.2 is running in attempt 4, on a, placed_at=5, released_at=6"


# Images


def a_gang_with_images() -> tuple[Driver, str]:
    driver = Driver()
    driver.fleet("a", labels={"runtime": "containers"})
    job = driver.submit(spec(2, role={"image": "train:1"}))
    driver.place(job, "a", "a")
    return driver, job


def test_a_gang_with_images_is_released_only_when_they_are_prepared() -> None:
    driver, job = a_gang_with_images()
    assert released(driver, job) == [False, False], "also on one worker"
    driver.advance(1800)
    assert driver.states(job) == [R, R], "a pull takes longer than an acknowledgement"
    driver.accept(job)
    assert released(driver, job) == [True, True]


def test_what_a_worker_prepares_is_recorded_once() -> None:
    driver, job = a_gang_with_images()
    report = PreparationReported(f"{job}.0", 1, "pulling image train:1")
    first, again = driver.apply(report), driver.apply(report)
    assert [each.message for each in first.records if isinstance(each, TaskPreparing)] == [
        "pulling image train:1"
    ]
    assert not again.has_rows


def test_a_reservation_asks_for_no_plan_and_the_end_of_its_gang_does() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(2))
    placement = Placement(job, driver.job(job).version, (Assignment(0, "a"), Assignment(1, "b")))
    assert not driver.apply(Placed((placement,))).replan
    assert driver.apply(CancelRequested(job)).replan
