"""How much work a stop would lose, for forecasts."""

from tests.builders import a_job, a_role, a_spec, a_task

from phalanx.core.gang import Gang
from phalanx.core.lost_work import work_at_risk
from phalanx.core.model import AttemptState, Place, Task
from phalanx.core.spec.job import CheckpointPolicy
from phalanx.core.states import State
from phalanx.core.time_units import HOUR, MINUTE, Micros

NOW: Micros = 10 * HOUR


def running(
    checkpoint: CheckpointPolicy = CheckpointPolicy.NONE, safe_at: Micros | None = None
) -> Gang:
    """Four tasks with one GPU each that have run for five hours."""
    spec = a_spec(roles=(a_role(replicas=4, min=4),), min_available=4, checkpoint=checkpoint)
    began = NOW - 5 * HOUR
    tasks = [
        a_task(
            index=n,
            state=State.RUNNING,
            place=Place("w-1", began, released_at=began, started_at=began),
        )
        for n in range(4)
    ]
    return Gang(a_job(spec=spec, attempt=AttemptState(safe_at=safe_at)), tasks)


def gpu(gang: Gang, tasks: list[Task] | None = None) -> int:
    """Thousandths of a GPU times microseconds that are lost if these tasks, or all, stop now."""
    return work_at_risk(gang, NOW, gang.tasks if tasks is None else tasks)["gpu"]


def test_work_that_was_never_saved_counts_from_its_start() -> None:
    assert gpu(running()) == 4 * 1000 * 5 * HOUR


def test_work_that_was_reported_safe_counts_from_there() -> None:
    assert gpu(running(safe_at=NOW - 2 * MINUTE)) == 4 * 1000 * 2 * MINUTE


def test_a_job_that_saves_when_asked_to_stop_loses_its_grace() -> None:
    gang = running(CheckpointPolicy.ALL)
    assert gpu(gang) == 4 * 1000 * gang.job.spec.grace


def test_only_the_named_tasks_count() -> None:
    gang = running()
    assert gpu(gang, gang.tasks[:1]) == 1000 * 5 * HOUR
