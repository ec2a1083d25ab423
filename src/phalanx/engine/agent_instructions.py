"""What a worker should be told, read off the cluster: the same question always has one answer."""

from phalanx.core.cluster import Cluster
from phalanx.core.environment import GangEnvironment
from phalanx.core.gang import Gang
from phalanx.core.ids import split_task
from phalanx.core.model import Task
from phalanx.core.node import AttemptKey, Node
from phalanx.core.states import State
from phalanx.wire.sync import TaskInstruction, TaskSpec, Want


def orders_for(cluster: Cluster, node: Node) -> list[TaskInstruction]:
    """What is to change on the worker, apart from attempts that nobody is charged for."""
    worlds: dict[str, GangEnvironment] = {}
    orders = []
    for attempt in node.charges:
        gang, task = _present(cluster, attempt)
        if task is None or gang is None:
            orders.append(TaskInstruction(*attempt, Want.STOP))
            continue
        want = _want(gang, task)
        if want in (Want.PREPARE, Want.RUN):
            world = worlds.setdefault(gang.job.id, GangEnvironment(gang, cluster.nodes))
            orders.append(TaskInstruction(*attempt, want, _spec(gang, task, world)))
        elif want is not None:
            orders.append(TaskInstruction(*attempt, want))
    return orders


def _present(cluster: Cluster, attempt: AttemptKey) -> tuple[Gang | None, Task | None]:
    """The task if this is its present attempt; a settled one has nothing left to do but stop."""
    job, index = split_task(attempt[0])
    gang = cluster.gangs.get(job)
    if gang is None or attempt in cluster.residues:
        return None, None
    return gang, gang.tasks[index]


def _want(gang: Gang, task: Task) -> Want | None:
    if task.state is State.PREEMPTING:
        return Want.STOP
    if task.state is not State.RESERVED:
        return None
    if task.released:
        return Want.RUN
    return None if gang.accepted >> task.index & 1 else Want.PREPARE


def _spec(gang: Gang, task: Task, world: GangEnvironment) -> TaskSpec:
    role, spec = gang.role(task.index), gang.job.spec
    return TaskSpec(
        command=role.command,
        env=world.environment(task),
        grace=spec.grace,
        workdir=role.workdir,
        time_limit=spec.time_limit,
        fence=spec.fence,
        checkpoint=task.checkpoint,
        image=role.image,
        args=role.args,
    )
