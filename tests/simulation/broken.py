"""Rules broken on purpose, to see that the simulator notices: each function breaks one."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from phalanx.core import cluster, events
from phalanx.core.array import WAITING, Array
from phalanx.core.changes import Changes
from phalanx.core.gang import Gang
from phalanx.core.handlers import arrays, fail, reserve, start, workers
from phalanx.core.invariants import Invariant
from phalanx.core.model import Task
from phalanx.engine import agent_instructions, agent_sync, writer
from phalanx.engine.commits import Commits
from phalanx.sim.invariants import SimulationInvariant
from phalanx.store.memory import MemoryStore
from phalanx.store.protocol import Batch, CommitFailed, Deposed
from phalanx.wire.sync import Want

Break = Callable[[pytest.MonkeyPatch], None]


def the_epoch_of_a_report_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Changes, "attempt", lambda self, task, epoch: self.task(task))
    patch.setattr(agent_sync, "_not_current", lambda *args: None)


def one_acceptance_releases_the_whole_start_set(patch: pytest.MonkeyPatch) -> None:
    def accepted(tx: Changes, event: Any) -> None:
        gang, _ = tx.attempt(event.task, event.epoch)
        if gang.unreleased():
            reserve.release(tx, reserve.with_group(tx, gang))

    patch.setitem(cluster._HANDLERS, events.Accepted, accepted)


def an_agent_runs_what_it_has_only_prepared(patch: pytest.MonkeyPatch) -> None:
    original = agent_instructions._want

    def want(gang: Gang, task: Task) -> Any:
        found = original(gang, task)
        return Want.RUN if found is Want.PREPARE else found

    patch.setattr(agent_instructions, "_want", want)


def a_settled_task_occupies_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Changes, "keep_charged", Changes.free)


def siblings_of_a_failed_task_run_on(patch: pytest.MonkeyPatch) -> None:
    def fail_alone(tx: Changes, gang: Gang, failed: Any, how: Any) -> None:
        for task in failed:
            tx.free(task)
            tx.requeue(gang, task, how.move)

    for module in (fail, start):
        patch.setattr(module, "fail", fail_alone)


def failures_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fail, "count_failure", lambda tx, gang: False)


def a_deposed_leader_may_write(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryStore, "_check", lambda self, term: None)


def answers_leave_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    original = Commits.commit

    async def commit(self: Commits, *given: Any) -> None:
        try:
            await original(self, *given)
        except (Deposed, CommitFailed):
            return

    patch.setattr(Commits, "commit", commit)


def an_unknown_outcome_counts_as_success(patch: pytest.MonkeyPatch) -> None:
    async def resolve(self: Commits, batch: Batch) -> None:
        return None

    patch.setattr(Commits, "_resolve", resolve)


def an_unknown_outcome_counts_as_failure_and_memory_is_kept(patch: pytest.MonkeyPatch) -> None:
    original = writer.Writer._take_turn

    async def take_turn(self: writer.Writer) -> None:
        try:
            await original(self)
        except CommitFailed:
            return

    async def resolve(self: Commits, batch: Batch) -> None:
        raise CommitFailed("unknown")

    patch.setattr(writer.Writer, "_take_turn", take_turn)
    patch.setattr(Commits, "_resolve", resolve)


def old_reports_are_taken_for_new_ones(patch: pytest.MonkeyPatch) -> None:
    original = agent_sync.AgentSync._session

    def session(self: agent_sync.AgentSync, worker: str, request: Any) -> Any:
        found = original(self, worker, request)
        found.seq = -1
        return found

    patch.setattr(agent_sync.AgentSync, "_session", session)


def a_vanished_task_is_not_missed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(workers, "_should_be_there", lambda task, worker: False)


def a_lost_worker_keeps_its_tasks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(workers, "_lose_tasks", lambda tx, node: None)


def elements_ignore_the_parallel_limit(patch: pytest.MonkeyPatch) -> None:
    def free_slots(array: Array) -> int:
        job = array.job
        is_closed = job.is_ending or job.on_hold or job.pending is not None
        return 0 if is_closed else array.number_in(WAITING)

    patch.setattr(Array, "free_slots", property(free_slots))


def ended_elements_are_not_noted(patch: pytest.MonkeyPatch) -> None:
    original = arrays.note_element

    def note_element(tx: Changes, gang: Gang) -> None:
        if gang.job.end is None:
            original(tx, gang)

    patch.setattr(arrays, "note_element", note_element)


def the_window_is_filled_only_at_the_submission(patch: pytest.MonkeyPatch) -> None:
    original = arrays._add_element

    def add_element(tx: Changes, array: Array) -> None:
        if array.job.id in tx.added:
            original(tx, array)

    patch.setattr(arrays, "_add_element", add_element)


class Found(NamedTuple):
    """How a broken rule is found."""

    first_seed: int  #: of a history that shows it; tried first, because most do not
    invariants: set[str]  #: of which one is violated


BREAKS: dict[Break, Found] = {
    the_epoch_of_a_report_is_not_checked: Found(2, {SimulationInvariant.JOBS_END}),
    one_acceptance_releases_the_whole_start_set: Found(
        1, {SimulationInvariant.PROCESS_AFTER_ALL_ARE_READY}
    ),
    an_agent_runs_what_it_has_only_prepared: Found(
        1, {SimulationInvariant.PROCESS_AFTER_COMMITTED_RELEASE}
    ),
    a_settled_task_occupies_nothing: Found(12, {SimulationInvariant.DEVICES_ARE_NOT_OVERUSED}),
    siblings_of_a_failed_task_run_on: Found(1, {Invariant.MINIMUM_IS_KEPT}),
    failures_are_not_counted: Found(2, {SimulationInvariant.FAILURES_END_A_JOB}),
    a_deposed_leader_may_write: Found(4, {SimulationInvariant.FINISHED_JOBS_DO_NOT_CHANGE}),
    answers_leave_before_the_commit: Found(
        10,
        {
            SimulationInvariant.ACKNOWLEDGED_JOBS_ARE_STORED,
            SimulationInvariant.JOBS_END,  # a job that the leader believes to have ended
        },
    ),
    an_unknown_outcome_counts_as_success: Found(
        2, {SimulationInvariant.ACKNOWLEDGED_JOBS_ARE_STORED}
    ),
    an_unknown_outcome_counts_as_failure_and_memory_is_kept: Found(
        39,
        {
            SimulationInvariant.PROCESS_AFTER_COMMITTED_RELEASE,
            Invariant.PHASE_MATCHES_TASKS,  # in rows of which only some were stored
        },
    ),
    old_reports_are_taken_for_new_ones: Found(
        16, {SimulationInvariant.VANISHED_PROCESSES_ARE_DEAD}
    ),
    a_vanished_task_is_not_missed: Found(6, {SimulationInvariant.JOBS_END}),
    elements_ignore_the_parallel_limit: Found(2, {Invariant.PARALLEL_IS_KEPT}),
    ended_elements_are_not_noted: Found(2, {Invariant.ELEMENTS_MATCH_JOBS}),
    the_window_is_filled_only_at_the_submission: Found(2, {Invariant.WINDOW_IS_FULL}),
    a_lost_worker_keeps_its_tasks: Found(1, {Invariant.NO_PLACE_ON_A_LOST_WORKER}),
}
