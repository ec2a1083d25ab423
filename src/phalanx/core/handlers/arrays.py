"""Arrays: which elements become jobs, what users do to elements, and how an array ends.

An array keeps a window of pending elements as jobs of their own. After every event that placed or
ended some of them, the window is filled up in the same change, so the planner, retries, logs and
checkpoints only ever see ordinary jobs.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from phalanx.core import causes
from phalanx.core.array import (
    BLOCK,
    LIVE,
    PHASES,
    UNFINISHED,
    WAITING,
    Array,
    end_state,
)
from phalanx.core.causes import Cause
from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict, Unknown
from phalanx.core.events import ElementsCancelled
from phalanx.core.gang import Gang, tasks_of
from phalanx.core.handlers.requeue import arm_timeouts
from phalanx.core.handlers.stop import VERDICTS, stop_gang
from phalanx.core.model import EndState, PendingState, Phase, StoppingState
from phalanx.core.records import (
    ElementFailed,
    ElementsCancelRequested,
    JobEnded,
    JobSubmitted,
)
from phalanx.core.spec.arrays import written_indices
from phalanx.core.states import State


def note_element(tx: Changes, gang: Gang) -> None:
    """Keep the state of a changed element on its array."""
    job = gang.job
    array = tx.array(job.array or "")
    position = array.position(job.index or 0)
    if position is None:
        raise AssertionError(f"bug: array {job.array} has no element {job.index}")
    if job.end is None:
        state = LIVE[gang.phase()]
    elif job.finished_at is None:
        state = LIVE[Phase.STOPPING]
    else:
        state = end_state(job.end.verdict, job.epoch)
        if job.end.verdict is not Phase.DONE:
            tx.record(
                ElementFailed(array.job.id, job.index or 0, job.end.verdict, str(job.end.cause))
            )
    if array.state(position) != state:
        tx.set_element(array, position, state, job.epoch)


def settle_array(tx: Changes, array: Array) -> None:
    """Fill up the window of an array, or end the array with its last element."""
    for _ in range(array.free_slots):
        _add_element(tx, array)
    if array.is_over and array.job.end is None:
        _end(tx, array)
    phase, counts = array.phase(), array.element_counts
    if (phase, counts) != (array.job.phase, array.job.counts):
        tx.set_job(array, phase=phase, counts=counts)


def _add_element(tx: Changes, array: Array) -> None:
    """Make a job of the next waiting element."""
    position = array.first_waiting()
    if position is None:
        raise AssertionError(f"bug: array {array.job.id} has no waiting element")
    job = replace(array.new_job(position), pending=PendingState(since=tx.now))
    state = State.PENDING if job.spec.size == 1 else State.BLOCKED
    gang = tx.add_gang(job, tasks_of(job.id, job.spec, state))
    tx.record(JobSubmitted(job.id, job.spec.size, job.owner))
    tx.set_element(array, position, LIVE[Phase.PENDING], job.epoch)
    arm_timeouts(tx, gang)
    tx.replan = True


def _end(tx: Changes, array: Array) -> None:
    counts, stopping = array.element_counts, array.job.stopping
    if counts.done == counts.total:
        verdict, cause = Phase.DONE, causes.complete()
    elif stopping is not None:
        verdict, cause = VERDICTS.get(stopping.cause.kind, Phase.FAILED), stopping.cause
    else:
        endings = {
            Phase.FAILED: counts.failed,
            Phase.TIMED_OUT: counts.timed_out,
            Phase.CANCELLED: counts.cancelled,
        }
        verdict = next((each for each, count in endings.items() if count), Phase.CANCELLED)
        named = {phase.replace("-", " "): count for phase, count in endings.items()}
        named["never ran"] = counts.never_ran
        ended = {how: count for how, count in named.items() if count}
        cause = causes.elements_ended(ended, counts.total)
    end = EndState(verdict, cause, finished_at=tx.now)
    tx.set_job(array, pending=None, stopping=None, end=end)
    tx.verdicts.append((array.job.id, verdict))
    tx.record(JobEnded(array.job.id, verdict, str(cause), cause.job))


def stop_array(tx: Changes, array: Array, cause: Cause) -> None:
    """End all elements: those that run are stopped."""
    job = array.job
    if job.stopping is None:
        stopping = StoppingState(cause, 0, tx.now)
        tx.set_job(array, pending=None, stopping=stopping)
    elif cause.outranks(job.stopping.cause):
        tx.set_job(array, stopping=replace(job.stopping, cause=cause))
    verdict = VERDICTS.get(cause.kind, Phase.FAILED)
    _end_waiting(tx, array, list(array.positions(WAITING)), verdict)
    for element in array.live_elements():
        stop_gang(tx, tx.gang(element), cause)


def _end_waiting(tx: Changes, array: Array, positions: Iterable[int], verdict: Phase) -> None:
    """End elements that have no job."""
    by_block: dict[int, list[int]] = {}
    for position in positions:
        by_block.setdefault(position // BLOCK, []).append(position % BLOCK)
        if tx.base.dependants and (element := array.element(position)) in tx.base.dependants:
            tx.verdicts.append((element, verdict))
    for number, offsets in by_block.items():
        block = array.blocks[number]
        states = list(block.states)
        for offset in offsets:
            states[offset] = end_state(verdict, block.attempts[offset])
        tx.set_elements(array, number, "".join(states))


def elements_cancelled(tx: Changes, event: ElementsCancelled) -> None:
    array = tx.array(event.array)
    positions = positions_of(array, event.indices)
    unfinished = [position for position in positions if array.state(position) in UNFINISHED]
    if not unfinished:
        raise Conflict(
            f"{elements_text(array, positions)}; an element that has ended is not cancelled"
        )
    indices = indices_text(array, unfinished)
    tx.record(ElementsCancelRequested(array.job.id, indices, event.by))
    waiting = [position for position in unfinished if array.state(position) == WAITING]
    cause = causes.cancelled(event.by)
    for position in unfinished:
        if array.state(position) != WAITING:
            stop_gang(tx, tx.gang(array.element(position)), cause)
    _end_waiting(tx, array, waiting, Phase.CANCELLED)


def positions_of(array: Array, indices: Iterable[int]) -> list[int]:
    positions = []
    for index in indices:
        position = array.position(index)
        if position is None:
            raise Unknown(f"array {array.job.id} has no element {index}")
        positions.append(position)
    return positions


def elements_text(array: Array, positions: list[int]) -> str:
    """Elements and their phase, for an error."""
    phases = ", ".join(dict.fromkeys(PHASES[array.state(position)] for position in positions))
    verb = "is" if len(positions) == 1 else "are"
    return f"{array.job.id}[{indices_text(array, positions)}] {verb} {phases}"


def indices_text(array: Array, positions: Iterable[int]) -> str:
    return written_indices([array.index(position) for position in positions])
