"""PodGroups and queues of every dialect.

A PodGroup is one struct for all dialects; each field names the API groups that have it. The API
server validates these objects only as far as their CRD does, so amounts may be numbers or text.
"""

from typing import Any

import msgspec

from phalanx.kube.objects.metadata import ApiObject, ApiStruct, ObjectCondition

#: Resource → quantity. Custom resources may have numbers where pods have text.
LooseQuantities = dict[str, str | int | float]


class GangPolicy(ApiStruct, frozen=True):
    min_count: int = 0


class BasicPolicy(ApiStruct, frozen=True):
    """The members are scheduled one by one."""


class GroupPolicy(ApiStruct, frozen=True):
    """One of the two is set."""

    gang: GangPolicy | None = None
    basic: BasicPolicy | None = None


class TopologyConstraint(ApiStruct, frozen=True):
    key: str = ""


class GroupConstraints(ApiStruct, frozen=True):
    topology: tuple[TopologyConstraint, ...] = ()


class GroupTopology(ApiStruct, frozen=True):
    """Volcano's `networkTopology`."""

    mode: str = "hard"
    highest_tier_allowed: int | None = None


class PodGroupSpec(ApiStruct, frozen=True):
    #: scheduling.x-k8s.io, scheduling.sigs.k8s.io, scheduling.volcano.sh
    min_member: int | None = None
    min_resources: LooseQuantities = {}
    #: scheduling.x-k8s.io, scheduling.sigs.k8s.io
    schedule_timeout_seconds: int | None = None
    #: scheduling.volcano.sh
    min_task_member: dict[str, int] = {}
    queue: str = ""
    network_topology: GroupTopology | None = None
    #: scheduling.volcano.sh, scheduling.k8s.io
    priority_class_name: str = ""
    #: scheduling.k8s.io
    priority: int | None = None
    scheduling_policy: GroupPolicy | None = None
    scheduling_constraints: GroupConstraints | None = None
    disruption_mode: str = "Pod"  #: `Pod` or `PodGroup`


class PodGroupStatus(ApiStruct, frozen=True):
    #: scheduling.x-k8s.io, scheduling.sigs.k8s.io, scheduling.volcano.sh
    phase: str = ""
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    #: scheduling.x-k8s.io, scheduling.sigs.k8s.io
    occupied_by: str = ""
    schedule_start_time: str | None = None
    #: scheduling.k8s.io, scheduling.volcano.sh
    conditions: tuple[ObjectCondition, ...] = ()

    def written(self) -> dict[str, Any]:
        """The status as it is written, with its numbers also where they are 0."""
        counts = {"running": self.running, "succeeded": self.succeeded, "failed": self.failed}
        return {**counts, **msgspec.to_builtins(self)}


class KubePodGroup(ApiObject, frozen=True):
    """A PodGroup of any dialect."""

    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()


class KubeQueue(ApiObject, frozen=True):
    """A queue of `phalanx.dev` or of Volcano, whose spec is read like one in a file."""

    spec: dict[str, Any] = {}
