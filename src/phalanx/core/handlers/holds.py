"""Holds: what a non-strict gang has gathered, and keeps while it waits for the rest of its minimum.

A hold charges its worker like a task. It ends when the gang starts, ends or is put on hold, when
its worker is lost, or when nobody who holds could ever start.
"""

from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict
from phalanx.core.events import Held, HoldsReleased
from phalanx.core.gang import Gang
from phalanx.core.handlers.requeue import arm_schedule_timeout
from phalanx.core.handlers.startable import check_startable
from phalanx.core.model import Assignment
from phalanx.core.node import GPU, Charge, Node
from phalanx.core.records import GatheredPlacesReleased, PlacesGathered
from phalanx.core.spec.job import Mode
from phalanx.core.states import WAITING


def held(tx: Changes, event: Held) -> None:
    placement = event.placement
    gang = tx.gang(placement.job)
    job = gang.job
    check_startable(tx, gang, placement.version)
    if job.spec.mode is not Mode.NON_STRICT:
        raise Conflict(f"job {job.id} is strict; it takes its whole minimum or nothing")
    has = {hold.task for hold in job.held}
    for assignment in placement.assignments:
        if assignment.task in has or gang.tasks[assignment.task].state not in WAITING:
            raise Conflict(f"task {job.id}.{assignment.task} has a place already")
        has.add(assignment.task)
        hold(tx, gang, assignment)
    since = tx.now if job.held_since is None else job.held_since
    tx.set_job(gang, held=(*job.held, *placement.assignments), held_since=since)
    tx.record(PlacesGathered(job.id, len(gang.job.held), job.spec.min_available))
    arm_schedule_timeout(tx, gang)
    tx.replan = True


def hold(tx: Changes, gang: Gang, assignment: Assignment) -> None:
    node, role = tx.node(assignment.worker), gang.role(assignment.task)
    misfit = node.misfit(role)
    if misfit is not None:
        raise Conflict(f"job {gang.job.id} cannot hold {assignment.worker}: {misfit}")
    charge_hold(node, gang, assignment)


def charge_hold(node: Node, gang: Gang, assignment: Assignment) -> None:
    role = gang.role(assignment.task)
    devices = node.pick_devices(role.resources.get(GPU, 0)) or ()
    charge = Charge(gang.job.held_since or 0, role.resources, devices)
    node.hold(gang.tasks[assignment.task].id, charge)


def holds_released(tx: Changes, event: HoldsReleased) -> None:
    gang = tx.gang(event.job)
    if gang.job.version != event.version:
        raise Conflict(f"job {event.job} has changed since version {event.version}")
    if gang.job.held:
        tx.record(GatheredPlacesReleased(event.job, len(gang.job.held), event.why))
        let_go(tx, gang)


def let_go(tx: Changes, gang: Gang) -> None:
    """Give up all that the gang holds."""
    job = gang.job
    if not job.held:
        return
    for assignment in job.held:
        node = tx.find_node(assignment.worker)
        if node is not None:
            node.let_go(gang.tasks[assignment.task].id)
    tx.set_job(gang, held=(), held_since=None)
    tx.replan = True


def lose_holds(tx: Changes, node: Node) -> None:
    """What is held on a worker that was lost is not held any more."""
    for job in dict.fromkeys(task.rpartition(".")[0] for task in node.holds):
        gang = tx.gang(job)
        rest = tuple(hold for hold in gang.job.held if hold.worker != node.worker.id)
        tx.set_job(gang, held=rest, held_since=gang.job.held_since if rest else None)
    for task in list(node.holds):
        node.let_go(task)
