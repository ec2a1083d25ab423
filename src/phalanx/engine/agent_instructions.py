"""The instructions for an agent, derived from the cluster's state alone."""

from phalanx.core.cluster import Cluster
from phalanx.core.environment import GangEnvironment
from phalanx.core.gang import Gang
from phalanx.core.ids import split_task
from phalanx.core.model import Task
from phalanx.core.node import AttemptKey, Node
from phalanx.core.states import State
from phalanx.wire.sync import TaskInstruction, TaskSpec, Want


def instructions_for(cluster: Cluster, node: Node) -> list[TaskInstruction]:
    """What the agent should change about the attempts that its worker is charged for."""
    environments: dict[str, GangEnvironment] = {}
    instructions = []
    for attempt in node.charges:
        gang, task = _current(cluster, attempt)
        if task is None or gang is None:
            instructions.append(TaskInstruction(*attempt, Want.STOP))
            continue
        want = _want(gang, task)
        if want in (Want.PREPARE, Want.RUN):
            environment = environments.get(gang.job.id)
            if environment is None:
                environment = environments[gang.job.id] = GangEnvironment(gang, cluster.nodes)
            instructions.append(TaskInstruction(*attempt, want, _spec(gang, task, environment)))
        elif want is not None:
            instructions.append(TaskInstruction(*attempt, want))
    return instructions


def _current(cluster: Cluster, attempt: AttemptKey) -> tuple[Gang | None, Task | None]:
    """The task, if this is its current attempt; an attempt that has settled can only be stopped."""
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


def _spec(gang: Gang, task: Task, environment: GangEnvironment) -> TaskSpec:
    role, spec = gang.role(task.index), gang.job.spec
    return TaskSpec(
        command=role.command,
        env=environment.environment(task),
        grace=spec.grace,
        workdir=role.workdir,
        time_limit=spec.time_limit,
        fence=spec.fence,
        checkpoint=task.checkpoint,
        image=role.image,
        args=role.args,
        memory=role.resources.get("memory"),
        cpu=role.resources.get("cpu"),
        namespace=spec.namespace,
        run_as_user=spec.run_as_user,
        watch=spec.watch,
    )
