"""Gathered places: what a non-strict gang has collected while the rest of its minimum is missing.

A gathered place charges its worker like a task. It ends when the gang starts, ends or is put on
hold, when its worker is lost or cordoned, or when the planner finds that no gathering gang could
ever start.
"""

from msgspec.structs import replace

from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict
from phalanx.core.events import GangGathered, GatheringEnded
from phalanx.core.gang import Gang
from phalanx.core.handlers.requeue import arm_timeouts
from phalanx.core.handlers.startable import check_startable
from phalanx.core.model import Assignment, GatheredPlaces
from phalanx.core.node import GPU, Charge, Node
from phalanx.core.records import GatheredPlacesReleased, PlacesGathered
from phalanx.core.spec.job import Mode
from phalanx.core.states import UNPLACED
from phalanx.core.time_units import Micros


def gang_gathered(tx: Changes, event: GangGathered) -> None:
    placement = event.placement
    gang = tx.gang(placement.job)
    job = gang.job
    check_startable(tx, gang, placement.version)
    if job.spec.mode is not Mode.NON_STRICT:
        raise Conflict(f"job {job.id} is strict; it reserves its whole minimum or nothing")
    before = _gathered(gang)
    since = tx.now if before is None else before.since
    places = () if before is None else before.places
    taken = {assignment.task for assignment in places}
    for assignment in placement.assignments:
        if assignment.task in taken or gang.tasks[assignment.task].state not in UNPLACED:
            raise Conflict(f"task {job.id}.{assignment.task} already has a place")
        taken.add(assignment.task)
        _gather(tx, gang, assignment, since)
    tx.set_pending(gang, gathered=GatheredPlaces((*places, *placement.assignments), since))
    tx.record(PlacesGathered(job.id, len(taken), job.spec.min_available))
    arm_timeouts(tx, gang)
    tx.replan = True


def _gathered(gang: Gang) -> GatheredPlaces | None:
    return None if gang.job.pending is None else gang.job.pending.gathered


def _gather(tx: Changes, gang: Gang, assignment: Assignment, since: Micros) -> None:
    node, role = tx.node(assignment.worker), gang.role(assignment.task)
    misfit = node.misfit(role, node.pick_devices(role.resources.get(GPU, 0)))
    if misfit is not None:
        raise Conflict(f"job {gang.job.id} cannot gather a place on {assignment.worker}: {misfit}")
    charge_gathered(node, gang, assignment, since)


def charge_gathered(node: Node, gang: Gang, assignment: Assignment, since: Micros) -> None:
    """Charge a worker for a place that the gang gathers there."""
    role = gang.role(assignment.task)
    devices = node.pick_devices(role.resources.get(GPU, 0)) or ()
    node.gather(gang.tasks[assignment.task].id, Charge(since, role.resources, devices))


def gathering_ended(tx: Changes, event: GatheringEnded) -> None:
    gang = tx.gang(event.job)
    if gang.job.version != event.version:
        raise Conflict(f"job {event.job} has changed since version {event.version}")
    gathered = _gathered(gang)
    if gathered is not None:
        tx.record(GatheredPlacesReleased(event.job, len(gathered.places), event.why))
        release_gathered(tx, gang)


def release_gathered(tx: Changes, gang: Gang) -> None:
    """Give up all gathered places of a gang."""
    gathered = _gathered(gang)
    if gathered is None:
        return
    for assignment in gathered.places:
        node = tx.find_node(assignment.worker)
        if node is not None:
            node.release_gathered(gang.tasks[assignment.task].id)
    tx.set_pending(gang, gathered=None)
    tx.replan = True


def lose_gathered(tx: Changes, node: Node) -> None:
    """Give up the places that gangs have gathered on this worker."""
    for job in dict.fromkeys(task.rpartition(".")[0] for task in node.gathered):
        gang = tx.gang(job)
        gathered = _gathered(gang)
        if gathered is not None:
            others = tuple(a for a in gathered.places if a.worker != node.worker.id)
            tx.set_pending(gang, gathered=replace(gathered, places=others) if others else None)
    for task in list(node.gathered):
        node.release_gathered(task)
