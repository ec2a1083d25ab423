"""The limits of tasks: what a task asks for, and what the operator of the worker has set."""

import msgspec

from phalanx.agent.messages import TaskLimits
from phalanx.wire.sync import TaskSpec


class LimitPolicy(msgspec.Struct, frozen=True):
    cpu_quota: bool = False  #: a task uses no more CPUs than it asks for, even if CPUs are idle
    processes: int | None = None  #: processes and threads of one task

    def limits_of(self, spec: TaskSpec) -> TaskLimits:
        """The limits of a task. A task that asks for no memory has no limit of memory."""
        return TaskLimits(spec.memory, spec.cpu, self.cpu_quota, self.processes)
