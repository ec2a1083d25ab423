"""The operator's settings on tasks: their limits, their users and their containers."""

import msgspec

from phalanx.agent.containers.runtime import ContainerPolicy
from phalanx.agent.messages import TaskLimits
from phalanx.agent.task_users import UserPolicy
from phalanx.wire.sync import TaskSpec


class LimitPolicy(msgspec.Struct, frozen=True):
    cpu_quota: bool = False  #: a task uses no more CPUs than it asks for, even if CPUs are idle
    processes: int | None = None  #: processes and threads of one task

    def limits_of(self, spec: TaskSpec) -> TaskLimits:
        """The limits of a task. A task that asks for no memory has no limit of memory."""
        return TaskLimits(spec.memory, spec.cpu, self.cpu_quota, self.processes)


class TaskPolicy(msgspec.Struct, frozen=True):
    limits: LimitPolicy = LimitPolicy()
    users: UserPolicy = UserPolicy()
    #: The settings on containers, or why the worker runs none.
    containers: ContainerPolicy | str = "no container runtime was looked for"
