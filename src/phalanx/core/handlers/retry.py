"""Elements of an array that have ended run again, also after the array has ended with them."""

from msgspec.structs import replace

from phalanx.core.array import PHASES, UNFINISHED, WAITING, Array, end_state
from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict, Invalid, Unknown
from phalanx.core.events import ElementsRetried
from phalanx.core.handlers.arrays import elements_text, indices_text, positions_of
from phalanx.core.handlers.limits import check_namespace_limits
from phalanx.core.handlers.submit import taken_name, unknown_queue
from phalanx.core.model import Phase
from phalanx.core.queues import check_namespace_of_queue, check_priority_in_queue
from phalanx.core.records import ElementsRetryRequested

#: The states of elements that ended without success.
_FAILED = frozenset(PHASES) - UNFINISHED - {end_state(Phase.DONE, 1)}


def elements_retried(tx: Changes, event: ElementsRetried) -> None:
    array = _array(tx, event)
    job = array.job
    if job.stopping is not None:
        raise Conflict(f"array {job.id} is stopping; retry its elements when it has stopped")
    if event.indices is None:
        positions = list(array.positions(_FAILED))
        if not positions:
            raise Conflict(f"array {job.id} has no element that ended without success")
    else:
        positions = positions_of(array, event.indices)
        if any(array.state(position) in UNFINISHED for position in positions):
            raise Conflict(
                f"{elements_text(array, positions)}; only an element that has ended can be retried"
            )
    count = len(positions)
    check_namespace_limits(
        tx,
        job.spec,
        jobs=count,
        tasks=count * job.spec.size,
        replaced=job.spec if event.array in tx.base.gangs else None,
    )
    for position in positions:
        tx.set_element(array, position, WAITING, array.attempts(position))
    tx.record(ElementsRetryRequested(job.id, indices_text(array, positions), event.by))


def _array(tx: Changes, event: ElementsRetried) -> Array:
    """The array, from memory, or from the store if it has ended. Raises Unknown."""
    if event.array in tx.base.gangs:
        return tx.array(event.array)
    row = event.row
    if row is None:
        raise Unknown(f"job {event.array} is not among the unfinished jobs")
    problems = [*unknown_queue(tx, row.spec), *taken_name(tx, row.spec)]
    if problems:
        raise Invalid(problems)
    check_namespace_of_queue(tx.base.queues, row.spec.queue, row.spec.namespace)
    check_priority_in_queue(tx.base.queues, row.spec.queue, row.priority)
    row = replace(row, phase=Phase.PENDING, end=None, version=row.version + 1)
    array = Array(row, list(event.blocks))
    tx.add_array(array)
    return array
