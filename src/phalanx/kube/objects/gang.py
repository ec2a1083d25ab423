"""PodGroups and queues of every dialect. Their specs are kept as they are: the API server validates
them only as far as their CRD does, and no field may be overlooked."""

from typing import Any

import msgspec

from phalanx.kube.objects.metadata import ApiObject, ApiStruct, ObjectCondition


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
    """A PodGroup of any dialect, whose spec is read like one in a file."""

    spec: dict[str, Any] = {}
    status: PodGroupStatus = PodGroupStatus()


class KubeQueue(ApiObject, frozen=True):
    """A queue of `phalanx.dev` or of Volcano, whose spec is read like one in a file."""

    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}
