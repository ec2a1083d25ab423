"""Reservations: a start set is promised to workers, accepted by their agents, and released.

The release is the point of no return: before it nothing has run and the whole start set can go
back at no cost; after it a loss is a failure.
"""

from collections.abc import Iterable

from phalanx.core import causes
from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict
from phalanx.core.events import (
    Accepted,
    Placed,
    Placement,
    ReservationExpired,
    StallDue,
    StartTimedOut,
    TimeLimitReached,
)
from phalanx.core.gang import Gang
from phalanx.core.handlers.holds import let_go
from phalanx.core.handlers.requeue import avoid, wait_again
from phalanx.core.handlers.startable import check_startable
from phalanx.core.model import Protocol, Task
from phalanx.core.node import GPU, Node, charge_of
from phalanx.core.records import GangReserved, GangStarting, ReservationLost
from phalanx.core.states import PLACED, WAITING, Move, State

_MOST_NEIGHBOURS = 64


def placed(tx: Changes, event: Placed) -> None:
    jobs = [placement.job for placement in event.placements]
    gangs = []
    workers: set[str] = set()
    for placement in event.placements:
        gang = tx.gang(placement.job)
        check_startable(tx, gang, placement.version)
        refusal = _bad_start_set(gang, [a.task for a in placement.assignments])
        if refusal is not None:
            raise Conflict(f"job {gang.job.id} cannot be placed: {refusal}")
        let_go(tx, gang)
        together = tuple(job for job in jobs if job != placement.job)
        workers.update(_reserve(tx, gang, placement, together))
        gangs.append(gang)
    tx.wake.update(workers)
    tx.replan = True
    # One agent needs no rendezvous with others, so there is nothing to prepare for.
    if len(workers) == 1 and all(gang.missing for gang in gangs):
        release(tx, gangs)


def _bad_start_set(gang: Gang, indices: list[int]) -> str | None:
    if len(set(indices)) != len(indices):
        return "a task is assigned twice"
    if not all(0 <= index < gang.size for index in indices):
        return "an assignment names a task it does not have"
    tasks = [gang.tasks[index] for index in indices]
    taken = [task for task in tasks if task.state not in WAITING]
    if taken:
        return f"task {taken[0].id} is {taken[0].state}"
    if not gang.may_start_with(tasks):
        return f"{len(tasks)} tasks do not meet its minimum"
    return None


def _neighbours(tx: Changes, node: Node) -> list[Node]:
    """Other workers on the same host. Where there are very many it is no machine of one's own, and
    they are left out."""
    there = tx.base.hosts.get(node.worker.host, set())
    if len(there) > _MOST_NEIGHBOURS:
        return []
    return [tx.nodes.get(name) or tx.base.nodes[name] for name in there if name != node.worker.id]


def _reserve(
    tx: Changes, gang: Gang, placement: Placement, together: tuple[str, ...]
) -> Iterable[str]:
    """Charge a worker for each task of the start set, and stamp them with a new epoch."""
    job = gang.job
    epoch = job.epoch + 1
    tx.set_job(gang, epoch=epoch, together=together, nomination=None, unused=0, evicts_from=tx.now)
    gang.accepted = gang.missing = 0
    has_port = any(task.port is not None for task in gang.members())
    by_role_and_worker: dict[tuple[str, str], int] = {}
    for task in gang.tasks:
        if task.state in PLACED and task.worker is not None:
            key = (task.role, task.worker)
            by_role_and_worker[key] = by_role_and_worker.get(key, 0) + 1
    workers: dict[str, None] = {}
    for assignment in sorted(placement.assignments, key=lambda a: a.task):
        task = gang.tasks[assignment.task]
        role = gang.role(task.index)
        key = (role.name, assignment.worker)
        there = by_role_and_worker[key] = by_role_and_worker.get(key, 0) + 1
        node = tx.node(assignment.worker)
        misfit = node.misfit(role)
        if misfit is None and role.per_node is not None and there > role.per_node:
            misfit = f"it may have at most {role.per_node} tasks of role {role.name}"
        devices = node.pick_devices(role.resources.get(GPU, 0))
        port = None if has_port else node.pick_port(tx.base.settings.ports, _neighbours(tx, node))
        if misfit is not None or devices is None:
            raise Conflict(f"task {task.id} cannot be placed on {assignment.worker}: {misfit}")
        reserved = tx.move(
            gang,
            task,
            Move.PLACED,
            State.RESERVED,
            epoch=epoch,
            worker=assignment.worker,
            devices=devices,
            port=port,
            placed_at=tx.now,
            ended_at=None,
            exit=None,
        )
        has_port = True
        node.charge((task.id, epoch), charge_of(reserved, role))
        gang.missing += node.worker.protocol is Protocol.SYNC
        workers[assignment.worker] = None
    tx.timer(tx.now + tx.base.settings.accept, ReservationExpired(job.id, epoch))
    tx.record(GangReserved(job.id, epoch, len(placement.assignments), tuple(workers)))
    return workers


def accepted(tx: Changes, event: Accepted) -> None:
    gang, task = tx.attempt(event.task, event.epoch)
    bit = 1 << task.index
    if task.state is not State.RESERVED or task.released or gang.accepted & bit:
        return  # said again, or overtaken by the release or by a stop
    if not _on_agent(tx, task):
        return  # a plain worker has nothing to prepare; it says by claiming that it is there
    gang.accepted |= bit
    gang.missing -= 1
    gangs = with_mates(tx, gang)
    if not any(mate.missing for mate in gangs):
        release(tx, gangs)


def _on_agent(tx: Changes, task: Task) -> bool:
    node = tx.find_node(task.worker)
    return node is not None and node.worker.protocol is Protocol.SYNC


def with_mates(tx: Changes, gang: Gang) -> list[Gang]:
    """The gang and those that are released with it."""
    return [gang, *(tx.gang(job) for job in gang.job.together)]


def release(tx: Changes, gangs: list[Gang]) -> None:
    """From this commit on, the processes of the start set may exist."""
    settings = tx.base.settings
    for gang in gangs:
        job = gang.job
        start_set = gang.unreleased()
        for task in start_set:
            tx.update(gang, task, released_at=tx.now, releases=task.releases + 1)
            tx.wake_worker_of(task)
        gang.accepted = gang.missing = 0
        gang.progress = None
        tx.set_job(gang, together=(), satisfied=True, losses=0, waiting_since=None)
        workers = {task.worker for task in start_set}
        tx.record(GangStarting(job.id, job.epoch, len(start_set), len(workers)))
        tx.timer(tx.now + settings.start, StartTimedOut(job.id, job.epoch))
        arm_attempt(tx, gang)


def arm_attempt(tx: Changes, gang: Gang) -> None:
    """What an attempt that begins now may at most take."""
    job = gang.job
    if job.spec.time_limit is not None:
        tx.timer(tx.now + job.spec.time_limit, TimeLimitReached(job.id, job.epoch))
    if job.spec.stall_after is not None:
        tx.timer(tx.now + job.spec.stall_after, StallDue(job.id, job.epoch))


def reservation_expired(tx: Changes, event: ReservationExpired) -> None:
    base = tx.base.gangs.get(event.job)
    if base is None or base.job.epoch != event.epoch or not base.unreleased():
        return
    lose_reservation(tx, tx.gang(event.job), Move.RESERVATION_EXPIRED)


def lose_reservation(
    tx: Changes, gang: Gang, move: Move, why: str | None = None, suspect: str | None = None
) -> None:
    """A start set that cannot be released goes back whole, with those released with it.

    The workers to blame are tried last from now on; losing again and again slows a gang down.
    """
    gangs = with_mates(tx, gang)
    if suspect is None:
        suspects = _suspects(tx, gangs)
    else:
        suspects = [[suspect] * _has_on(each, suspect) for each in gangs]
    give_back(tx, gang, move)
    for each, workers in zip(gangs, suspects, strict=True):
        reason = why or causes.not_acknowledged(workers)
        tx.record(ReservationLost(each.job.id, each.job.epoch, reason, tuple(workers)))
        avoid(tx, each, workers)
        tx.set_job(each, losses=each.job.losses + 1)
        wait_again(tx, each, setbacks=each.job.losses)


def _suspects(tx: Changes, gangs: list[Gang]) -> list[list[str]]:
    """By gang: the agents that have not accepted; if all have, plain workers that did not claim."""
    agents_late = any(gang.missing for gang in gangs)
    suspects: list[list[str]] = []
    for gang in gangs:
        late = [task for task in gang.unreleased() if not gang.accepted >> task.index & 1]
        if agents_late:
            late = [task for task in late if _on_agent(tx, task)]
        workers = dict.fromkeys(task.worker for task in late if task.worker is not None)
        suspects.append(list(workers))
    return suspects


def _has_on(gang: Gang, worker: str) -> int:
    return int(any(task.worker == worker for task in gang.unreleased()))


def give_back(tx: Changes, gang: Gang, move: Move) -> None:
    """Return the start set and its mates' to waiting. Nothing of them ever ran."""
    for each in with_mates(tx, gang):
        for task in each.unreleased():
            tx.free(task)
            tx.wake_worker_of(task)
            tx.rest(each, task, move)
        each.accepted = each.missing = 0
        tx.set_job(each, together=())
