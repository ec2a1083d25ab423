"""Reservations: a start set is assigned to workers, accepted by their agents, and released.

Before the release no process exists, and the whole start set can be given back at no cost. After it
the loss of a task is a failure.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from phalanx.core import causes
from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict
from phalanx.core.events import (
    Accepted,
    ImagesPinned,
    LongRunDue,
    Placed,
    Placement,
    PreparationReported,
    ReservationExpired,
    StallDue,
    StartTimedOut,
    TimeLimitReached,
)
from phalanx.core.gang import Gang
from phalanx.core.handlers.gather import release_gathered
from phalanx.core.handlers.requeue import avoid, requeue
from phalanx.core.handlers.startable import check_startable
from phalanx.core.interning import shared_spec
from phalanx.core.lost_work import long_run
from phalanx.core.model import (
    AttemptState,
    PendingState,
    Place,
    Protocol,
    ReservationState,
    Task,
)
from phalanx.core.node import GPU, Node, charge_of
from phalanx.core.records import (
    GangReserved,
    GangStarting,
    JobImagesPinned,
    ReservationLost,
    TaskPreparing,
    about,
)
from phalanx.core.spec.job import with_images
from phalanx.core.spec.references import address_ports
from phalanx.core.states import PLACED, UNPLACED, Move, State

_MOST_NEIGHBOURS = 64
_LAST_PORT = 65_535
#: Longer messages are cut.
_MESSAGE_CHARACTERS = 1000


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
        release_gathered(tx, gang)
        together = tuple([job for job in jobs if job != placement.job])
        workers.update(_reserve(tx, gang, placement, together))
        gangs.append(gang)
    tx.wake.update(workers)
    # On a single worker there is no rendezvous to prepare, so the start needs no barrier.
    if len(workers) == 1 and all(gang.missing for gang in gangs):
        is_prepared_first = any(gang.job.spec.is_prepared_first for gang in gangs)
        if not is_prepared_first:
            release(tx, gangs)


def _bad_start_set(gang: Gang, indices: list[int]) -> str | None:
    if len(set(indices)) != len(indices):
        return "a task is assigned twice"
    if indices and not 0 <= min(indices) <= max(indices) < gang.size:
        return "an assignment names a task that does not exist"
    tasks = [gang.tasks[index] for index in indices]
    for task in tasks:
        if task.state not in UNPLACED:
            return f"task {task.id} is {task.state}"
    if len(tasks) > gang.room_to_run:
        return f"more than {gang.job.spec.max_running} tasks would run"
    if not gang.may_start_with(tasks):
        return f"{len(tasks)} tasks do not meet its minimum"
    return None


def _neighbours(tx: Changes, node: Node) -> list[Node]:
    """Other workers on the same host, whose ports must not be used again.

    Empty if there are very many: then the address is not that of a single machine.
    """
    if len(tx.base.hosts) == len(tx.base.nodes):
        return []  # each host has one worker
    names = tx.base.hosts.get(node.worker.host, set())
    if len(names) > _MOST_NEIGHBOURS:
        return []
    return [tx.nodes.get(name) or tx.base.nodes[name] for name in names if name != node.worker.id]


def _pick_port(tx: Changes, node: Node, first: int, last: int) -> int | None:
    return node.pick_port((first, last), _neighbours(tx, node))


def _address_port(tx: Changes, node: Node, first: int | None, other: int | None) -> int | None:
    """The lowest free port from the first one on, and not the other port of the same task."""
    if first is None:
        return None
    port = _pick_port(tx, node, first, _LAST_PORT)
    return port if port is None or port != other else _pick_port(tx, node, port + 1, _LAST_PORT)


def _while_reserved(pending: PendingState) -> PendingState:
    """What a job that may become pending again remembers while it is reserved."""
    return PendingState(
        since=pending.since,
        waited=pending.waited,
        not_before=pending.not_before,
        lost_reservations=pending.lost_reservations,
    )


def _reserve(
    tx: Changes, gang: Gang, placement: Placement, together: tuple[str, ...]
) -> Iterable[str]:
    """Reserve a start set under a new epoch. Returns its workers."""
    job = gang.job
    epoch = job.epoch + 1
    pending = _while_reserved(job.pending or PendingState())
    tx.set_job(gang, epoch=epoch, reservation=ReservationState(together), pending=pending)
    gang.accepted = gang.missing = 0
    has_port = any(
        task.place is not None and task.place.port is not None for task in gang.members()
    )
    first_ports = address_ports(value for role in job.spec.roles for value in role.env.values())
    by_role_and_worker: dict[tuple[str, str], int] = {}
    for task in () if gang.is_idle else gang.tasks:
        if task.state in PLACED and task.worker is not None:
            key = (task.role, task.worker)
            by_role_and_worker[key] = by_role_and_worker.get(key, 0) + 1
    workers: dict[str, None] = {}
    for assignment in sorted(placement.assignments, key=lambda a: a.task):
        task = gang.tasks[assignment.task]
        role = gang.role(task.index)
        key = (role.name, assignment.worker)
        on_worker = by_role_and_worker[key] = by_role_and_worker.get(key, 0) + 1
        node = tx.node(assignment.worker)
        devices = node.pick_devices(role.resources.get(GPU, 0))
        misfit = node.misfit(role, devices)
        if misfit is None and role.per_node is not None and on_worker > role.per_node:
            misfit = f"role {role.name} allows {role.per_node} tasks per worker"
        port = None if has_port else _pick_port(tx, node, *tx.base.settings.ports)
        address_port = _address_port(tx, node, first_ports.get(role.name), port)
        if misfit is not None or devices is None:
            raise Conflict(f"task {task.id} cannot be placed on {assignment.worker}: {misfit}")
        reserved = tx.move(
            gang,
            task,
            Move.PLACED,
            State.RESERVED,
            epoch=epoch,
            place=Place(assignment.worker, tx.now, devices, port, address_port),
            ended_at=None,
            exit=None,
        )
        has_port = True
        node.charge((task.id, epoch), charge_of(reserved, role))
        gang.missing += node.worker.protocol is Protocol.SYNC
        workers[assignment.worker] = None
    accept = tx.base.settings.accept_timeout(job.spec)
    tx.timer(tx.now + accept, ReservationExpired(job.id, epoch))
    tx.record(GangReserved(job.id, epoch, len(placement.assignments), tuple(workers)))
    return workers


def accepted(tx: Changes, event: Accepted) -> None:
    gang, task = tx.attempt(event.task, event.epoch)
    bit = 1 << task.index
    if task.state is not State.RESERVED or task.released or gang.accepted & bit:
        return  # reported twice, or after the release or a stop
    if not _on_agent(tx, task):
        return  # a plain worker prepares nothing; it claims the task instead
    gang.accepted |= bit
    gang.missing -= 1
    gangs = with_group(tx, gang)
    if not any(member.missing for member in gangs):
        release(tx, gangs)


def preparation_reported(tx: Changes, event: PreparationReported) -> None:
    gang, task = tx.attempt(event.task, event.epoch)
    message = event.message[:_MESSAGE_CHARACTERS]
    if task.place is None or task.state is not State.RESERVED or task.place.preparing == message:
        return  # the report was repeated, or came late
    tx.update(gang, task, place=replace(task.place, preparing=message))
    tx.record(TaskPreparing(*about(task), message))


def images_pinned(tx: Changes, event: ImagesPinned) -> None:
    """Keep the digests in the job, so that all its attempts run the same images."""
    gang = tx.gang(event.job)
    spec = shared_spec(with_images(gang.job.spec, event.images))
    if spec != gang.job.spec:
        tx.set_job(gang, spec=spec)
        tx.respecified.append(gang.job.id)
        tx.record(JobImagesPinned(event.job, tuple(event.images.values())))


def _on_agent(tx: Changes, task: Task) -> bool:
    node = tx.find_node(task.worker)
    return node is not None and node.worker.protocol is Protocol.SYNC


def is_unclaimed(tx: Changes, task: Task) -> bool:
    """Whether a released task was not claimed by its plain worker: no process of it exists."""
    return task.state is State.RESERVED and task.released and not _on_agent(tx, task)


def return_unclaimed(tx: Changes, gang: Gang, task: Task, move: Move) -> None:
    """Return a released task that was not claimed to pending. It has not been released then."""
    tx.free(task)
    tx.wake_worker_of(task)
    tx.requeue(gang, task, move, releases=task.releases - 1)


def with_group(tx: Changes, gang: Gang) -> list[Gang]:
    """The gang and those whose reservations are released with its own."""
    reservation = gang.job.reservation
    together = () if reservation is None else reservation.together
    return [gang, *(tx.gang(job) for job in together)]


def release(tx: Changes, gangs: list[Gang]) -> None:
    """Release the start sets: from this commit on their processes may exist."""
    settings = tx.base.settings
    for gang in gangs:
        job = gang.job
        start_set = gang.unreleased()
        for task in start_set:
            place = None if task.place is None else replace(task.place, released_at=tx.now)
            tx.update(gang, task, place=place, releases=task.releases + 1)
            tx.wake_worker_of(task)
        gang.accepted = gang.missing = 0
        gang.progress = None
        pending = job.pending or PendingState()
        since = tx.now if pending.since is None else pending.since
        attempt = job.attempt or AttemptState(waited=pending.waited + max(0, tx.now - since))
        tx.set_job(gang, satisfied=True, pending=None, reservation=None, attempt=attempt)
        workers = {task.worker for task in start_set}
        tx.record(GangStarting(job.id, job.epoch, len(start_set), len(workers)))
        tx.timer(tx.now + settings.start, StartTimedOut(job.id, job.epoch))
        arm_attempt(tx, gang)


def arm_attempt(tx: Changes, gang: Gang) -> None:
    """Set the timers of the time limit and of the stall check for an attempt that begins now."""
    job = gang.job
    if job.spec.time_limit is not None:
        tx.timer(tx.now + job.spec.time_limit, TimeLimitReached(job.id, job.epoch))
    if (long_running := long_run(job.spec, tx.base.settings)) is not None:
        tx.timer(tx.now + long_running, LongRunDue(job.id, job.epoch))
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
    """Give back a start set that cannot be released, with those that are released with it.

    The suspected workers are tried last from now on, and repeated losses lead to a backoff. An
    empty name suspects none.
    """
    gangs = with_group(tx, gang)
    if suspect is None:
        suspects = _suspects(tx, gangs)
    else:
        suspects = [[suspect] * _has_on(each, suspect) for each in gangs]
    give_back(tx, gang, move)
    for each, workers in zip(gangs, suspects, strict=True):
        reason = why or causes.not_acknowledged(workers)
        tx.record(ReservationLost(each.job.id, each.job.epoch, reason, tuple(workers)))
        avoid(tx, each, workers)
        pending = each.job.pending or PendingState()
        lost = pending.lost_reservations + 1
        tx.set_pending(each, lost_reservations=lost, lost_because=reason)
        requeue(tx, each, setbacks=lost)


def _suspects(tx: Changes, gangs: list[Gang]) -> list[list[str]]:
    """By gang: the agents that have not accepted, else the plain workers that have not claimed."""
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
    """Return the start set, and those released with it, to pending. No process of them exists."""
    for each in with_group(tx, gang):
        for task in each.unreleased():
            tx.free(task)
            tx.wake_worker_of(task)
            tx.requeue(each, task, move)
        each.accepted = each.missing = 0
        tx.set_job(each, reservation=None)
