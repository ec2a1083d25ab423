"""One member of a gang: a pod, or a Job with several equal pods."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from phalanx.manifest import gang_keys
from phalanx.manifest.draft import LocatedValue
from phalanx.manifest.gang_keys import GangDeclaration
from phalanx.manifest.pod import Pod
from phalanx.manifest.problems import SourceLocation


class PodMember(NamedTuple):
    pod: Pod
    replicas: int = 1
    job: Mapping[str, LocatedValue] = MappingProxyType({})  #: fields of the job that it sets

    @property
    def name(self) -> str:
        return self.pod.metadata.name or "task"

    @property
    def namespace(self) -> str:
        return self.pod.metadata.namespace

    @property
    def location(self) -> SourceLocation:
        return self.pod.metadata.location


def declaration_of(pod: Pod) -> GangDeclaration:
    """What a pod declares about its gang."""
    metadata = pod.metadata
    return gang_keys.declaration_of(metadata.labels, metadata.annotations, pod.scheduling_group)
