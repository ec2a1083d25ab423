"""One member of a gang, and what it declares about its gang in labels and annotations."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from phalanx.manifest import alibaba_ack, koordinator
from phalanx.manifest.draft import LocatedValue
from phalanx.manifest.pod import Pod
from phalanx.manifest.problems import SourceLocation

#: Volcano's annotation with the name of a pod's PodGroup.
_VOLCANO_GROUP = "scheduling.k8s.io/group-name"


class PodMember(NamedTuple):
    """A pod, or a Job with several equal pods."""

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


class GangDeclaration(NamedTuple):
    """What one pod declares about its gang."""

    gang: LocatedValue | None  #: the name of the gang
    fields: dict[str, LocatedValue]  #: fields of the native form
    is_koordinator: bool


def declaration_of(pod: Pod) -> GangDeclaration:
    """The declaration of a pod. Koordinator's annotations take precedence over labels."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    by_annotation = koordinator.gang_of(annotations)
    gang = by_annotation or alibaba_ack.gang_of(labels) or alibaba_ack.gang_of(annotations)
    if gang is None and (name := annotations.read(_VOLCANO_GROUP, str)) is not None:
        gang = LocatedValue(name, annotations.location.at(_VOLCANO_GROUP))
    fields = (
        alibaba_ack.fields_of(labels)
        | alibaba_ack.fields_of(annotations)
        | koordinator.fields_of(annotations)
    )
    return GangDeclaration(gang, fields, is_koordinator=by_annotation is not None)
