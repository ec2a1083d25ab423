"""What must be true of every cluster after every step. Each check says what it found and where."""

from collections.abc import Iterator

from phalanx.core.cluster import Cluster
from phalanx.core.gang import Gang
from phalanx.core.ids import split_task
from phalanx.core.model import Assignment, Cron, Task
from phalanx.core.node import DEVICE, GPU, Node
from phalanx.core.spec.job import Match, Restart
from phalanx.core.states import PLACED, State


def check(cluster: Cluster) -> None:
    """Raise AssertionError with every violation."""
    broken = list(violations(cluster))
    if broken:
        raise AssertionError("bug: " + "; ".join(broken))


def violations(cluster: Cluster) -> Iterator[str]:
    for gang in cluster.gangs.values():
        yield from _gang(gang)
        yield from _charges_of(cluster, gang)
    for node in cluster.nodes.values():
        yield from _node(cluster, node)
    for cron in cluster.crons.values():
        yield from _cron(cluster, cron)
    yield from _indexes(cluster)


def _cron(cluster: Cluster, cron: Cron) -> Iterator[str]:
    if cron.paused and cron.next_at is not None:
        yield f"cron {cron.key} is paused and due"
    for run in cron.unfinished:
        if run.job not in cluster.gangs:
            yield f"cron {cron.key} thinks that {run.job} is unfinished"
    if len({run.at for run in cron.runs}) != len(cron.runs):
        yield f"cron {cron.key} has run a time twice"


def _gang(gang: Gang) -> Iterator[str]:
    job = gang.job
    if not job.is_live:
        yield f"job {job.id} is finished and still in memory"
    if job.phase is not gang.phase():
        yield f"job {job.id} says {job.phase} but is {gang.phase()}"
    for state in State:
        if gang.count(state) != sum(task.state is state for task in gang.tasks):
            yield f"job {job.id} miscounts its {state} tasks"
    if job.failures > job.spec.max_retries:
        yield f"job {job.id} has {job.failures} counted failures of {job.spec.max_retries}"
    if job.verdict is not None and job.drain is None:
        yield f"job {job.id} has the verdict {job.verdict}, no drain, and is not finished"
    if job.drain is not None and gang.is_idle:
        yield f"job {job.id} is draining with nothing left to stop"
    if job.drain is not None and gang.started():
        yield f"job {job.id} is draining and {gang.started()[0].id} was not told to stop"
    if job.drain is None and gang.count(State.PREEMPTED):
        yield f"job {job.id} has a preempted task and no drain"
    for task in gang.tasks:
        yield from _task(gang, task)
    waits = job.drain is None and job.verdict is None and not gang.unreleased()
    if (job.held or job.nomination is not None) and not waits:
        yield f"job {job.id} keeps room and does not wait for it"
    yield from _start_set(gang)
    yield from _minimum(gang)


def _task(gang: Gang, task: Task) -> Iterator[str]:
    if task.state in (State.RUNNING, State.PREEMPTING) and not task.released:
        yield f"a process before its release: {task.story}"
    if task.epoch > gang.job.epoch:
        yield f"an epoch from the future: {task.story}"
    if task.state in (State.BLOCKED, State.PENDING) and (task.worker or task.placed_at):
        yield f"a waiting task with a place: {task.story}"
    if task.state is State.PENDING and gang.size > 1:
        yield f"a task of a gang that waits alone: {task.story}"
    if gang.job.awaits_members and (task.state is not State.BLOCKED or task.epoch):
        yield f"a task that does not wait for the members of its gang: {task.story}"
    if task.state is State.PREEMPTING and task.stopping_at is None:
        yield f"a stop without a beginning: {task.story}"
    if task.saved is not None and task.state not in (State.PREEMPTING, State.PREEMPTED):
        yield f"a checkpoint of an unfinished set outside a drain: {task.story}"


def _start_set(gang: Gang) -> Iterator[str]:
    """One reservation is released as a whole, and at most one is open."""
    unreleased = gang.unreleased()
    if any(task.epoch != gang.job.epoch for task in unreleased):
        yield f"job {gang.job.id} has two reservations open"
    if unreleased and any(
        task.epoch == gang.job.epoch and task.released for task in gang.tasks if task.worker
    ):
        yield f"job {gang.job.id} is released in part"
    if gang.job.together and not unreleased:
        yield f"job {gang.job.id} waits for mates without a reservation"


def _minimum(gang: Gang) -> Iterator[str]:
    job, spec = gang.job, gang.job.spec
    if job.drain is not None or spec.restart is Restart.TASK:
        return
    if spec.match is Match.ONCE_SATISFIED and job.satisfied:
        return
    if gang.is_short:
        yield f"job {job.id} goes on below its minimum"
    if gang.count(State.FAILED):
        yield f"job {job.id} goes on with a failed task"


def _charges_of(cluster: Cluster, gang: Gang) -> Iterator[str]:
    for task in gang.tasks:
        if task.state not in PLACED or task.worker is None:
            continue
        node = cluster.nodes.get(task.worker)
        if node is None:
            yield f"a place on an unknown worker: {task.story}"
        elif (task.id, task.epoch) not in node.charges:
            yield f"a place that nobody is charged for: {task.story}"
        elif node.worker.lost_at is not None:
            yield f"a place on a lost worker: {task.story}"
    for assignment in gang.job.held:
        node = cluster.nodes.get(assignment.worker)
        if node is None or gang.tasks[assignment.task].id not in node.holds:
            yield f"job {gang.job.id} holds {assignment.worker}, which is not charged for it"


def _node(cluster: Cluster, node: Node) -> Iterator[str]:
    name = node.worker.id
    used: dict[str, int] = {}
    taken: dict[int, int] = {}
    for charge in (*node.charges.values(), *node.holds.values()):
        for resource, amount in charge.resources.items():
            used[resource] = used.get(resource, 0) + amount
        for device in charge.devices:
            share = min(charge.resources[GPU], DEVICE)
            taken[device] = taken.get(device, 0) + share
    for task in node.holds:
        if not _is_held(cluster, node, task):
            yield f"worker {name} is held for {task}, which does not hold it"
    for attempt in node.charges:
        if not _is_known(cluster, node, attempt):
            yield f"worker {name} is charged for {attempt}, which nobody knows"
    if {resource: n for resource, n in node.used.items() if n} != used:
        yield f"worker {name} miscounts what it is charged for"
    for device, amount in taken.items():
        if amount > DEVICE:
            yield f"device {device} of worker {name} is given twice"
    ports = [charge.port for charge in node.charges.values() if charge.port is not None]
    if len(ports) != len(set(ports)):
        yield f"worker {name} has given a port twice"
    yield from _over_commitment(node, used)


def _over_commitment(node: Node, used: dict[str, int]) -> Iterator[str]:
    """A machine that came back smaller may be over-committed, but only by what was there before."""
    worker = node.worker
    new = [charge for charge in node.charges.values() if charge.at > worker.registered_at]
    for resource, amount in used.items():
        if amount > worker.resources.get(resource, 0) and any(resource in c.resources for c in new):
            yield f"worker {worker.id} is over-committed in {resource}"
    if worker.slots is not None and node.occupants > worker.slots and new:
        yield f"worker {worker.id} has more tasks than slots"


def _is_known(cluster: Cluster, node: Node, attempt: tuple[str, int]) -> bool:
    if attempt in cluster.residues:
        return cluster.residues[attempt].worker == node.worker.id
    job, index = split_task(attempt[0])
    gang = cluster.gangs.get(job)
    if gang is None:
        return False
    task = gang.tasks[index]
    return task.epoch == attempt[1] and task.worker == node.worker.id and task.state in PLACED


def _is_held(cluster: Cluster, node: Node, task: str) -> bool:
    job, index = split_task(task)
    gang = cluster.gangs.get(job)
    return gang is not None and Assignment(index, node.worker.id) in gang.job.held


def _indexes(cluster: Cluster) -> Iterator[str]:
    specs = {job: gang.job.spec for job, gang in cluster.gangs.items()}
    named = {(spec.namespace, spec.name): job for job, spec in specs.items() if spec.name}
    if named != cluster.names:
        yield "the index of names is wrong"
    for job, gang in cluster.gangs.items():
        for dependency in gang.job.waits_for:
            if gang.job.verdict is not None:
                continue
            other = cluster.gangs.get(dependency)
            if other is None or other.job.verdict is not None:
                yield f"job {job} waits for {dependency}, which has ended"
            elif job not in cluster.dependants.get(dependency, ()):
                yield f"job {job} would not hear that {dependency} has ended"
    for attempt, residue in cluster.residues.items():
        node = cluster.nodes.get(residue.worker)
        if node is None or attempt not in node.charges:
            yield f"{attempt} is remembered on {residue.worker}, which is not charged for it"
