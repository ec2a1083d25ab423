"""The instructions for an agent, derived from the cluster's state alone."""

from collections.abc import Mapping
from operator import is_

from phalanx.core.cluster import Cluster
from phalanx.core.environment import GangEnvironment, args_of, command_of
from phalanx.core.gang import Gang
from phalanx.core.ids import split_task
from phalanx.core.model import Task, Worker
from phalanx.core.node import AttemptKey, Node
from phalanx.core.spec.job import Role
from phalanx.core.spec.secret_references import secrets_in, with_secrets
from phalanx.core.states import State
from phalanx.engine.gang_inputs import InputDelivery, ResolvedInputs, needs_inputs
from phalanx.wire.sync import TaskInstruction, TaskSecrets, TaskSpec, Want

_NO_INPUTS = ResolvedInputs()


class GangEnvironments:
    """The environments of gangs that start. The workers of a gang ask at about the same time, and
    share one as long as neither the gang nor any of these workers has changed."""

    def __init__(self) -> None:
        #: By job: the gang and its workers that the environment was computed from.
        self._kept: dict[str, tuple[Gang, list[Worker | None], GangEnvironment]] = {}

    def of(self, gang: Gang, nodes: Mapping[str, Node]) -> GangEnvironment:
        kept = self._kept.get(gang.job.id)
        if kept is not None and kept[0] is gang:
            workers = _workers_of(kept[2], nodes)
            if all(map(is_, workers, kept[1])):
                return kept[2]
        environment = GangEnvironment(gang, nodes)
        self._kept[gang.job.id] = (gang, _workers_of(environment, nodes), environment)
        return environment

    def forget(self) -> None:
        self._kept.clear()


def _workers_of(environment: GangEnvironment, nodes: Mapping[str, Node]) -> list[Worker | None]:
    """The workers of the members of a gang, as they are registered now."""
    members = (nodes.get(task.worker or "") for task in environment.members)
    return [None if node is None else node.worker for node in members]


def instructions_for(
    cluster: Cluster,
    node: Node,
    environments: GangEnvironments,
    inputs: InputDelivery | None = None,
) -> list[TaskInstruction]:
    """What the agent should change about the attempts that its worker is charged for.

    Attempts whose inputs cannot be sent yet are left out.
    """
    here: dict[str, GangEnvironment] = {}
    instructions = []
    for attempt in node.charges:
        gang, task = _current(cluster, attempt)
        if task is None or gang is None:
            instructions.append(TaskInstruction(*attempt, Want.STOP))
            continue
        want = _want(gang, task)
        if want in (Want.PREPARE, Want.RUN):
            resolved = _resolved(gang, task, attempt, inputs)
            if resolved is None:
                continue
            environment = here.get(gang.job.id)
            if environment is None:
                environment = here[gang.job.id] = environments.of(gang, cluster.nodes)
            spec = _spec(gang, task, environment.environment(task), resolved)
            instructions.append(TaskInstruction(*attempt, want, spec))
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


def _resolved(
    gang: Gang, task: Task, attempt: AttemptKey, inputs: InputDelivery | None
) -> ResolvedInputs | None:
    """The secrets and images that a task uses; None if they cannot be sent yet."""
    role = gang.role(task.index)
    if not needs_inputs(role):
        return _NO_INPUTS
    return None if inputs is None else inputs.of(gang, role, attempt)


def _spec(gang: Gang, task: Task, env: dict[str, str], inputs: ResolvedInputs) -> TaskSpec:
    role, spec = gang.role(task.index), gang.job.spec
    secrets = _take_secrets(role, env, inputs) if role.secrets or inputs.registry_auth else None
    for name in role.env:
        if name in env:
            env[name] = with_secrets(env[name], inputs.secrets.__getitem__)  # undoes `$$`
    image = role.image
    return TaskSpec(
        command=command_of(gang.job, role),
        env=env,
        grace=spec.grace,
        workdir=role.workdir,
        time_limit=spec.time_limit,
        fence=spec.fence,
        checkpoint=task.checkpoint,
        image=None if image is None else inputs.images.get(image, image),
        signatures=inputs.signatures if image is not None else (),
        args=args_of(gang.job, role),
        security=role.security,
        devices=task.devices if role.image is not None else (),
        memory=role.resources.get("memory"),
        cpu=role.resources.get("cpu"),
        namespace=spec.namespace,
        run_as_user=spec.run_as_user,
        watch=spec.watch,
        secrets=secrets,
        missing_pull_secrets=inputs.missing_pull_secrets if image is not None else (),
    )


def _take_secrets(role: Role, env: dict[str, str], inputs: ResolvedInputs) -> TaskSecrets:
    """The secrets of a task. The variables that contain them are removed from the others."""
    values = inputs.secrets
    names = [name for name, value in env.items() if secrets_in(value)]
    return TaskSecrets(
        env={name: with_secrets(env.pop(name), values.__getitem__) for name in names},
        files={
            name: with_secrets(text, values.__getitem__) for name, text in role.secret_files.items()
        },
        redact=tuple(dict.fromkeys(values[key] for key in role.secrets)),
        registry_auth=inputs.registry_auth if role.image is not None else "",
    )
