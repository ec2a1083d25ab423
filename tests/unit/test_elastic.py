"""Elastic gangs: they start with the tasks that fit, and give up tasks above their minimum."""

from typing import Any

import pytest
from tests.driver import Driver, spec

from phalanx.core.errors import Conflict
from phalanx.core.events import (
    CheckpointSaved,
    Evicted,
    Placed,
    Placement,
    Shrunk,
    WorkerLost,
)
from phalanx.core.model import Assignment, Blob, Phase
from phalanx.core.spec.validation import job_spec
from phalanx.core.states import State
from phalanx.plan.cycle import plan
from phalanx.plan.state.planner_state import PlannerState

B, R, RUN = State.BLOCKED, State.RESERVED, State.RUNNING
STOPPING, STOPPED = State.PREEMPTING, State.PREEMPTED
DONE, FAILED, CANCELLED = State.DONE, State.FAILED, State.CANCELLED


def an_elastic_gang(*workers: str, **fields: Any) -> tuple[Driver, str]:
    driver = Driver()
    driver.fleet("a", "b", "c", "d")
    job = driver.submit(spec(4, role={"min": 2}, **fields))
    driver.run(job, *workers)
    return driver, job


def test_a_gang_starts_with_its_minimum() -> None:
    driver, job = an_elastic_gang("a", "b")
    assert driver.states(job) == [RUN, RUN, B, B]
    assert driver.phase(job) is Phase.RUNNING


def test_a_gang_does_not_start_with_less() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec(4, role={"min": 2}))
    driver.refuse(Placed((Placement(job, 0, (Assignment(0, "a"),)),)), Conflict)


def test_a_gang_that_restarts_as_one_grows_at_its_next_start() -> None:
    driver, job = an_elastic_gang("a", "b")
    more = Placement(job, driver.job(job).version, (Assignment(2, "c"),))
    driver.refuse(Placed((more,)), Conflict)
    driver.fail(job, 0)
    driver.stop(job)
    driver.run(job, "a", "b", "c", "d")
    assert driver.states(job) == [RUN] * 4


def test_a_gang_that_restarts_by_task_grows_while_it_runs() -> None:
    driver, job = an_elastic_gang("a", "b", restart="task")
    driver.place(job, "c", tasks=[2])
    driver.start(job)
    assert driver.states(job) == [RUN, RUN, RUN, B]


def test_tasks_that_never_had_a_place_are_cancelled_when_the_work_is_done() -> None:
    driver, job = an_elastic_gang("a", "b")
    driver.exit(job, 0)
    driver.exit(job, 1)
    assert driver.phase(job) is Phase.DONE
    assert driver.states(job) == [DONE, DONE, CANCELLED, CANCELLED]


def test_tasks_without_a_place_fail_with_their_job() -> None:
    driver, job = an_elastic_gang("a", "b", max_retries=1)
    driver.fail(job, 0)
    driver.stop(job)
    assert driver.states(job) == [FAILED] * 4


def test_a_shrink_stops_only_the_tasks_above_the_minimum() -> None:
    driver, job = an_elastic_gang("a", "b", "c", "d")
    changes = driver.apply(Shrunk(job, (2, 3), by="j-9"))
    assert driver.states(job) == [RUN, RUN, STOPPING, STOPPING]
    assert changes.wake == {"c", "d"}
    assert driver.phase(job) is Phase.RUNNING
    assert driver.job(job).stopping is None
    driver.stop(job, 2)
    driver.exit(job, 3, 1)
    assert driver.states(job) == [RUN, RUN, B, B]
    assert driver.job(job).failures == 0
    assert [len(node.charges) for node in driver.cluster.nodes.values()] == [1, 1, 0, 0]


@pytest.mark.parametrize("tasks", [(1, 2, 3), (0, 1, 2, 3)])
def test_a_shrink_below_the_minimum_is_refused(tasks: tuple[int, ...]) -> None:
    driver, job = an_elastic_gang("a", "b", "c", "d")
    refusal = driver.refuse(Shrunk(job, tasks, by="j-9"), Conflict)
    assert refusal == f"job {job} would fall below its minimum; evict it whole instead"


@pytest.mark.parametrize("tasks", [(), (2,), (0, 7)])
def test_a_shrink_takes_only_tasks_that_have_started(tasks: tuple[int, ...]) -> None:
    driver, job = an_elastic_gang("a", "b")
    driver.refuse(Shrunk(job, tasks, by="j-9"), Conflict)


def test_stopping_tasks_do_not_count_towards_the_minimum() -> None:
    driver, job = an_elastic_gang("a", "b", "c")
    driver.apply(Shrunk(job, (2,), by="j-9"))
    driver.refuse(Shrunk(job, (1,), by="j-9"), Conflict)


def test_a_gang_that_would_give_up_all_its_tasks_is_evicted_as_a_whole() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec(match="once-satisfied", checkpoint="all"))
    driver.run(job, "a")
    driver.apply(Shrunk(job, (0,), by="ml/big"))
    assert str(driver.job(job).cause) == "task worker preempted by job ml/big"
    driver.apply(CheckpointSaved(f"{job}.0", 1, Blob("b", 10)))
    driver.stop(job)
    task = driver.task(job, 0)
    assert (task.state, task.checkpoint) == (State.PENDING, Blob("b", 10, driver.now - 1))


@pytest.mark.parametrize("how", ["reported", "timed out"])
def test_the_only_task_of_a_gang_that_never_restarts_is_pending_after_a_shrink(how: str) -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec(match="once-satisfied", restart="never"))
    driver.run(job, "a")
    driver.apply(Shrunk(job, (0,), by="ml/big"))
    if how == "reported":
        driver.stop(job)
    else:
        driver.advance(60)
    assert driver.states(job) == [State.PENDING]


def test_a_stopping_job_cannot_be_shrunk() -> None:
    driver, job = an_elastic_gang("a", "b", "c")
    driver.apply(Evicted(job, by="j-9", why="a test"))
    driver.refuse(Shrunk(job, (2,), by="j-9"), Conflict)


def test_a_shrink_that_times_out_leaves_its_worker_charged() -> None:
    driver, job = an_elastic_gang("a", "b", "c")
    driver.apply(Shrunk(job, (2,), by="j-9"))
    driver.advance(45)
    assert driver.states(job) == [RUN, RUN, B, B]
    assert (f"{job}.2", 1) in driver.residues


def test_a_shrunk_task_that_succeeded_by_itself_is_done() -> None:
    driver, job = an_elastic_gang("a", "b", "c")
    driver.apply(Shrunk(job, (2,), by="j-9"))
    driver.exit(job, 2)
    assert driver.states(job) == [RUN, RUN, DONE, B]


def test_the_last_stop_of_a_shrink_completes_a_gang_whose_rest_is_done() -> None:
    driver, job = an_elastic_gang("a", "b", "c")
    driver.apply(Shrunk(job, (2,), by="j-9"))
    driver.exit(job, 0)
    driver.exit(job, 1)
    assert driver.phase(job) is Phase.RUNNING
    driver.stop(job, 2)
    assert driver.states(job) == [DONE, DONE, CANCELLED, CANCELLED]


def test_a_stop_of_the_gang_takes_over_a_shrink_and_its_timer() -> None:
    driver, job = an_elastic_gang("a", "b", "c")
    driver.apply(Shrunk(job, (2,), by="j-9"))
    driver.advance(30)
    driver.apply(Evicted(job, by="j-9", why="a test"))
    driver.advance(15)
    assert driver.states(job) == [STOPPING, STOPPING, STOPPED, B]
    driver.advance(30)
    assert driver.states(job) == [B] * 4


def test_a_gang_with_a_task_that_still_stops_is_not_started_anew() -> None:
    driver, job = an_elastic_gang("a", "b", "c")
    driver.apply(Shrunk(job, (2,), by="j-9"))
    driver.exit(job, 0)
    driver.exit(job, 1)
    more = Placement(job, driver.job(job).version, (Assignment(3, "d"),))
    assert "it has started, and restarts only as a whole" in driver.refuse(
        Placed((more,)), Conflict
    )


def test_a_lost_worker_can_complete_a_gang_and_end_its_other_tasks() -> None:
    """The shrunk worker was the last of its role; its server was on the same machine."""
    driver = Driver()
    driver.fleet("a", "b")
    roles = {"ps": {"command": "serve"}, "worker": {"command": "train", "replicas": 2, "min": 1}}
    job = driver.submit(job_spec({"roles": roles, "complete_when": "worker"}))
    driver.run(job, "a", "b", "a")
    driver.apply(Shrunk(job, (2,), by="j-9"))
    driver.exit(job, 1)
    driver.apply(WorkerLost("a"))
    assert driver.phase(job) is Phase.DONE
    assert driver.states(job) == [DONE, DONE, CANCELLED]
    assert driver.job(job).finished_at == driver.now


def test_roles_keep_their_own_minimum_in_a_shrink() -> None:
    driver = Driver()
    driver.fleet("a", "b", "c")
    roles = {"ps": {"command": "serve"}, "worker": {"command": "train", "replicas": 2, "min": 1}}
    job = driver.submit(job_spec({"roles": roles}))
    driver.run(job, "a", "b", "c")
    driver.refuse(Shrunk(job, (0,), by="j-9"), Conflict)
    driver.apply(Shrunk(job, (2,), by="j-9"))
    assert driver.states(job) == [RUN, RUN, STOPPING]


def test_shrunk_tasks_come_back_at_the_next_start() -> None:
    driver, job = an_elastic_gang("a", "b", "c")
    driver.apply(Shrunk(job, (2,), by="j-9"))
    driver.stop(job, 2)
    driver.apply(Evicted(job, by="j-9", why="a test"))
    driver.stop(job)
    driver.run(job, "a", "b", "c", "d")
    assert driver.states(job) == [RUN] * 4


def test_a_job_runs_at_most_so_many_tasks_at_a_time() -> None:
    driver = Driver()
    driver.fleet("a")
    job = driver.submit(spec(5, restart="task", min_available=1, max_running=2))
    ran: list[list[int]] = []
    while driver.phase(job) is not Phase.DONE:
        for start in plan(PlannerState.of(driver.cluster), driver.now).reserved():
            driver.apply(Placed((start,)))
            driver.start(job)
        assert not list(plan(PlannerState.of(driver.cluster), driver.now).reserved())
        running = driver.indices(job, RUN)
        ran.append(running)
        for index in running[:1]:
            driver.exit(job, index)
    assert ran == [[0, 1], [1, 2], [2, 3], [3, 4], [4]]


def test_no_plan_exceeds_the_tasks_that_run_at_a_time() -> None:
    driver = Driver()
    driver.fleet("a")
    job = driver.submit(spec(5, restart="task", min_available=1, max_running=2))
    three = tuple(Assignment(index, "a") for index in range(3))
    said = driver.refuse(Placed((Placement(job, 0, three),)), Conflict)
    assert said.endswith("more than 2 tasks would run")
