"""Workers: registration, inventories, loss and return, stray attempts, cordons and drains."""

import pytest
from msgspec.structs import replace
from tests.driver import Driver, spec

from phalanx.core.errors import Conflict, Unknown
from phalanx.core.events import (
    Accepted,
    CancelRequested,
    Claimed,
    CordonChanged,
    DrainRequested,
    Evicted,
    Exited,
    Gone,
    Inventoried,
    Placed,
    Placement,
    Started,
    WorkerLost,
    WorkerRegistered,
    WorkerRemoved,
    WorkerReturned,
)
from phalanx.core.model import Assignment, Phase, Protocol
from phalanx.core.states import State
from phalanx.core.time_units import SECOND

B, R, RUN = State.BLOCKED, State.RESERVED, State.RUNNING
STOPPING, STOPPED = State.PREEMPTING, State.PREEMPTED


def registration(name: str, incarnation: str = "1", **fields: object) -> WorkerRegistered:
    event = WorkerRegistered(name, incarnation, Protocol.SYNC, address=f"{name}:1")
    return replace(event, **fields)


def a_running_gang() -> tuple[Driver, str]:
    driver = Driver()
    driver.fleet("a", "b", resources={"gpu": 1000})
    job = driver.submit(spec(2, role={"resources": {"gpu": 1}}))
    driver.run(job, "a", "b")
    return driver, job


def is_open(driver: Driver, worker: str) -> bool:
    return driver.cluster.nodes[worker].is_open


def placing(driver: Driver, worker: str) -> Placed:
    job = driver.submit(spec(1))
    return Placed((Placement(job, 0, (Assignment(0, worker),)),))


# Registering


def test_registering_again_updates_the_worker_and_keeps_its_charges() -> None:
    driver, job = a_running_gang()
    driver.apply(registration("a", resources={"gpu": 4000}, labels={"zone": "x"}))
    node = driver.cluster.nodes["a"]
    assert node.free("gpu") == 3000
    assert node.worker.labels == {"zone": "x"}
    assert driver.states(job) == [RUN, RUN]
    assert is_open(driver, "a")


def test_every_change_of_a_worker_makes_older_plans_void() -> None:
    driver = Driver()
    driver.worker("a")
    before = driver.workers["a"].generation
    driver.apply(registration("a"))
    assert driver.workers["a"].generation == before + 1


def test_nothing_is_placed_on_an_agent_that_has_not_reported_its_tasks() -> None:
    driver = Driver()
    driver.apply(registration("a"))
    assert "it has not reported its tasks yet" in driver.refuse(placing(driver, "a"), Conflict)
    driver.inventory("a")
    driver.apply(placing(driver, "a"))


def test_after_a_change_of_leader_agents_report_their_tasks_again() -> None:
    driver = Driver()
    driver.worker("a")
    driver.plain("p")
    driver.restart()
    assert (is_open(driver, "a"), is_open(driver, "p")) == (False, True)
    driver.inventory("a")
    assert is_open(driver, "a")


def test_a_cordon_and_suspicions_outlive_a_registration() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec())
    driver.run(job, "a")
    driver.fail(job, 0)
    driver.apply(registration("a", "2"))
    assert [suspicion.job for suspicion in driver.workers["a"].suspicions] == [job]
    driver.apply(CordonChanged("a", "a fan is broken"))
    driver.apply(registration("a", "3"))
    assert driver.workers["a"].cordoned == "a fan is broken"


def test_a_worker_that_changes_to_the_plain_protocol_needs_no_inventory() -> None:
    driver = Driver()
    driver.apply(registration("a"))
    driver.apply(registration("a", protocol=Protocol.PLAIN))
    assert is_open(driver, "a")


def test_a_worker_that_changes_to_sync_needs_an_inventory() -> None:
    driver = Driver()
    driver.plain("a")
    driver.apply(registration("a"))
    assert not is_open(driver, "a")


# Inventories


def test_a_running_task_that_is_missing_has_vanished() -> None:
    driver, job = a_running_gang()
    driver.inventory("a")
    assert driver.states(job) == [STOPPED, STOPPING]
    assert driver.job(job).failures == 1
    assert driver.cluster.nodes["a"].free("gpu") == 1000


def test_a_stopping_task_that_is_missing_has_stopped() -> None:
    driver, job = a_running_gang()
    driver.apply(Evicted(job, by="j-9", why="a test"))
    driver.inventory("a")
    assert driver.states(job) == [STOPPED, STOPPING]
    assert driver.job(job).failures == 0


def test_an_inventory_that_names_all_changes_nothing() -> None:
    driver, job = a_running_gang()
    changes = driver.apply(Inventoried("a", "1", ((f"{job}.0", 1),)))
    assert not changes.has_rows
    assert driver.states(job) == [RUN, RUN]


def test_an_unreleased_task_that_is_missing_is_prepared_again() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(2))
    driver.place(job, "a", "b")
    driver.apply(Accepted(f"{job}.0", 1))
    driver.inventory("a")
    assert driver.states(job) == [R, R]
    driver.apply(Accepted(f"{job}.1", 1))
    assert driver.gang(job).unreleased()
    driver.apply(Accepted(f"{job}.0", 1))
    assert not driver.gang(job).unreleased()


def test_a_released_task_that_has_not_reached_its_agent_is_not_missed() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec())
    driver.place(job, "a")
    driver.inventory("a")
    assert driver.states(job) == [R]
    driver.start(job)
    assert driver.states(job) == [RUN]


def test_a_superseded_incarnation_is_refused() -> None:
    driver = Driver()
    driver.worker("a")
    driver.apply(registration("a", "2"))
    refusal = driver.refuse(Inventoried("a", "1", ()), Conflict)
    assert refusal == "worker a was registered again; incarnation 1 must stop"


def test_an_unknown_worker_must_register_first() -> None:
    Driver().refuse(Inventoried("a", "1", ()), Unknown)


# A new incarnation


def test_a_new_incarnation_without_its_running_task_has_lost_it() -> None:
    driver, job = a_running_gang()
    driver.apply(registration("a", "2", resources={"gpu": 1000}))
    assert driver.states(job) == [RUN, RUN]
    assert not is_open(driver, "a")
    driver.inventory("a")
    assert driver.states(job) == [STOPPED, STOPPING]
    assert not driver.residues


def test_a_new_incarnation_may_have_kept_its_running_task() -> None:
    driver, job = a_running_gang()
    driver.apply(registration("a", "2", resources={"gpu": 1000}))
    driver.inventory("a", (f"{job}.0", 1))
    assert driver.states(job) == [RUN, RUN]
    assert is_open(driver, "a")


def test_a_released_task_of_an_earlier_incarnation_may_have_run_and_is_lost() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec())
    driver.place(job, "a")
    driver.apply(registration("a", "2"))
    driver.inventory("a")
    assert driver.states(job) == [State.PENDING]
    assert driver.job(job).failures == 1


def test_a_new_incarnation_must_accept_for_itself() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(2))
    driver.place(job, "a", "b")
    driver.apply(Accepted(f"{job}.0", 1))
    driver.apply(registration("a", "2"))
    driver.apply(Accepted(f"{job}.1", 1))
    assert len(driver.gang(job).unreleased()) == 2
    driver.inventory("a")
    driver.apply(Accepted(f"{job}.0", 1))
    assert not driver.gang(job).unreleased()


def test_a_task_released_to_the_new_incarnation_is_not_missed_before_it_arrived() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(2))
    driver.place(job, "a", "b")
    driver.apply(registration("a", "2"))
    driver.accept(job)
    driver.inventory("a")
    assert driver.states(job) == [R, R]
    assert driver.job(job).failures == 0


# Lost and found


def test_a_lost_worker_loses_its_tasks_and_stays_charged_for_them() -> None:
    driver, job = a_running_gang()
    driver.apply(WorkerLost("a"))
    assert driver.states(job) == [STOPPED, STOPPING]
    assert driver.cluster.nodes["a"].free("gpu") == 0
    assert "it is lost" in driver.refuse(placing(driver, "a"), Conflict)


def test_losing_a_worker_twice_or_an_unknown_one_is_harmless() -> None:
    driver, _ = a_running_gang()
    driver.apply(WorkerLost("a"))
    assert not driver.apply(WorkerLost("a")).has_rows
    assert not driver.apply(WorkerLost("unknown")).has_rows


def test_a_worker_that_returns_with_its_old_task_must_stop_it() -> None:
    driver, job = a_running_gang()
    driver.apply(WorkerLost("a"))
    driver.stop(job)
    zombie = (f"{job}.0", 1)
    driver.inventory("a", zombie)
    assert driver.workers["a"].lost_at is None
    assert list(driver.residues) == [zombie]
    assert driver.cluster.nodes["a"].free("gpu") == 0
    refusal = driver.refuse(
        Placed(
            (Placement(job, driver.job(job).version, (Assignment(0, "a"), Assignment(1, "b"))),)
        ),
        Conflict,
    )
    assert "it has 0 gpu free" in refusal
    driver.apply(Gone("a", *zombie))
    driver.run(job, "a", "b")
    assert driver.states(job) == [RUN, RUN]


def test_a_zombie_cannot_finish_the_next_attempt() -> None:
    driver, job = a_running_gang()
    driver.worker("c", resources={"gpu": 1000})
    driver.apply(WorkerLost("a"))
    driver.stop(job)
    driver.run(job, "c", "b")
    driver.refuse(Exited(f"{job}.0", 1, 0), Conflict)
    driver.refuse(Exited(f"{job}.0", 1, 1), Conflict)
    assert driver.states(job) == [RUN, RUN]


def test_a_worker_that_returns_without_its_old_task_is_free_again() -> None:
    driver, _ = a_running_gang()
    driver.apply(WorkerLost("a"))
    driver.inventory("a")
    assert not driver.residues
    assert driver.cluster.nodes["a"].free("gpu") == 1000
    assert is_open(driver, "a")


def test_a_lost_worker_that_registers_again_without_its_task_is_free_again() -> None:
    driver, _ = a_running_gang()
    driver.apply(WorkerLost("a"))
    driver.apply(registration("a", "2", resources={"gpu": 1000}))
    assert driver.cluster.nodes["a"].free("gpu") == 0
    driver.inventory("a")
    assert driver.cluster.nodes["a"].free("gpu") == 1000


def test_nothing_is_placed_on_a_worker_with_stray_attempts() -> None:
    driver = Driver()
    driver.worker("a")
    strays = (("j-9.0", 3), ("j-9.1", 3))
    assert driver.apply(Inventoried("a", "1", strays)).wake == {"a"}
    assert "2 unassigned tasks still run there" in driver.refuse(placing(driver, "a"), Conflict)
    driver.apply(Gone("a", *strays[0]))
    assert not is_open(driver, "a")
    assert driver.apply(Gone("a", *strays[1])).replan
    assert is_open(driver, "a")


def test_strays_that_the_next_inventory_does_not_name_are_gone() -> None:
    driver = Driver()
    driver.worker("a")
    driver.inventory("a", ("j-9.0", 3))
    assert driver.apply(Inventoried("a", "1", ())).replan
    assert is_open(driver, "a")


def test_a_removed_worker_that_comes_back_with_its_tasks_has_strays() -> None:
    driver, job = a_running_gang()
    driver.apply(WorkerRemoved("a", by="eve"))
    assert driver.states(job) == [STOPPED, STOPPING]
    assert not driver.residues
    driver.stop(job)
    driver.apply(registration("a", resources={"gpu": 1000}))
    driver.inventory("a", (f"{job}.0", 1))
    assert not is_open(driver, "a")


def test_an_older_attempt_on_the_same_worker_is_a_stray() -> None:
    driver, job = a_running_gang()
    driver.fail(job, 0)
    driver.stop(job)
    driver.run(job, "a", "b")
    driver.inventory("a", (f"{job}.0", 2), (f"{job}.0", 1))
    assert driver.states(job) == [RUN, RUN]
    assert not is_open(driver, "a")


def test_a_removed_worker_is_forgotten() -> None:
    driver = Driver()
    driver.worker("a")
    driver.apply(WorkerRemoved("a"))
    assert "a" not in driver.cluster.nodes
    driver.refuse(WorkerRemoved("a"), Unknown)


def test_removing_a_worker_returns_its_reservation() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(2))
    driver.place(job, "a", "b")
    driver.apply(WorkerRemoved("a"))
    assert driver.states(job) == [B, B]
    assert driver.job(job).failures == 0


def test_one_lost_worker_fails_each_of_its_gangs_once() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    jobs = [driver.submit(spec(2)) for _ in range(3)]
    for job in jobs:
        driver.run(job, "a", "b")
    driver.apply(WorkerLost("a"))
    assert [driver.job(job).failures for job in jobs] == [1, 1, 1]
    assert driver.workers["a"].cordoned is None


# Plain workers


def test_a_plain_worker_that_is_heard_again_has_returned() -> None:
    driver = Driver()
    driver.plain("p")
    driver.apply(WorkerLost("p"))
    driver.apply(WorkerReturned("p"))
    assert is_open(driver, "p")
    assert not driver.apply(WorkerReturned("p")).has_rows


def test_an_agent_returns_only_with_its_inventory() -> None:
    driver = Driver()
    driver.worker("a")
    driver.apply(WorkerLost("a"))
    driver.refuse(WorkerReturned("a"), Conflict)


def test_a_plain_worker_that_returns_stays_charged_for_what_it_had() -> None:
    driver = Driver()
    driver.plain("p")
    job = driver.submit(spec())
    driver.apply(Claimed(f"{job}.0", "p"))
    driver.apply(WorkerLost("p"))
    driver.apply(WorkerReturned("p"))
    assert (f"{job}.0", 1) in driver.residues
    refusal = driver.refuse(Claimed(f"{job}.0", "p"), Conflict)
    assert "a process of an earlier attempt may still run there" in refusal


def test_a_plain_worker_that_registers_again_has_no_residues() -> None:
    driver = Driver()
    driver.plain("p")
    job = driver.submit(spec())
    driver.apply(Claimed(f"{job}.0", "p"))
    driver.apply(WorkerLost("p"))
    driver.plain("p")
    assert not driver.residues
    driver.apply(Claimed(f"{job}.0", "p"))
    assert driver.states(job) == [RUN]


# Cordons


def test_nothing_new_is_placed_on_a_cordoned_worker_and_nothing_is_stopped() -> None:
    driver, job = a_running_gang()
    driver.apply(CordonChanged("a", "a fan is broken"))
    assert driver.states(job) == [RUN, RUN]
    assert "it is cordoned: a fan is broken" in driver.refuse(placing(driver, "a"), Conflict)
    assert driver.apply(CordonChanged("a", None)).replan
    driver.apply(placing(driver, "a"))


def test_the_same_cordon_again_changes_nothing() -> None:
    driver = Driver()
    driver.worker("a")
    driver.apply(CordonChanged("a", "x"))
    assert not driver.apply(CordonChanged("a", "x")).has_rows


def test_a_selector_keeps_a_task_from_workers_without_its_label() -> None:
    driver = Driver()
    driver.worker("a", labels={"gpu_model": "h100"})
    driver.worker("b", labels={"gpu_model": "a100"})
    job = driver.submit(spec(role={"node_selector": {"gpu_model": "h100"}}))
    there = Placed((Placement(job, 0, (Assignment(0, "b"),)),))
    assert "its label gpu_model is not h100" in driver.refuse(there, Conflict)
    driver.place(job, "a")
    assert driver.states(job) == [R]


@pytest.mark.parametrize("is_stopping", [True, False])
def test_a_gone_task_that_should_be_there_has_vanished(is_stopping: bool) -> None:
    driver, job = a_running_gang()
    if is_stopping:
        driver.apply(CancelRequested(job))
    driver.apply(Gone("a", f"{job}.0", 1))
    assert driver.states(job) == [STOPPED, STOPPING]
    assert driver.job(job).failures == (0 if is_stopping else 1)


def test_a_report_of_a_start_does_not_bring_back_a_lost_task() -> None:
    driver, job = a_running_gang()
    driver.apply(WorkerLost("a"))
    driver.refuse(Started(f"{job}.0", 1))


def test_draining_a_worker_at_once_evicts_its_jobs() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec())
    driver.run(job, "a")
    driver.apply(DrainRequested("a", "for repair", by="ada"))
    assert driver.phase(job) is Phase.STOPPING
    assert driver.workers["a"].cordoned == "for repair"
    driver.exit(job, 0, code=143, signalled=True)
    assert driver.job(job).failures == 0
    assert driver.phase(job) is Phase.PENDING


@pytest.mark.parametrize("restart", [False, True])
def test_a_worker_with_a_deadline_keeps_its_jobs_until_then(restart: bool) -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec())
    driver.run(job, "a")
    driver.apply(DrainRequested("a", "for repair", by="ada", deadline=driver.now + 60 * SECOND))
    if restart:
        driver.restart()
    driver.advance(59)
    assert driver.phase(job) is Phase.RUNNING
    driver.advance(2)
    assert driver.phase(job) is Phase.STOPPING


def test_a_worker_that_is_opened_again_is_not_drained() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec())
    driver.run(job, "a")
    driver.apply(DrainRequested("a", "for repair", by="ada", deadline=driver.now + 60 * SECOND))
    driver.apply(CordonChanged("a", None))
    driver.advance(120)
    assert driver.phase(job) is Phase.RUNNING
