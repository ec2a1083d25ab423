"""What a pod declares about its gang: in labels, in annotations, and in its specification.

The mappings can come from a file or from a cluster: nothing here depends on it.
"""

from enum import StrEnum
from typing import NamedTuple

from phalanx.manifest import alibaba_ack, koordinator
from phalanx.manifest.draft import LocatedValue
from phalanx.manifest.strict_mapping import StrictMapping, word

#: Volcano's annotation, here also a label, with the name of a pod's PodGroup.
_VOLCANO_GROUP = "scheduling.k8s.io/group-name"
#: The field of Kubernetes' own `schedulingGroup` with that name.
_NATIVE_GROUP = "podGroupName"


class GangFamily(StrEnum):
    """The kinds of PodGroups that pods name in different ways."""

    NATIVE = "native"  #: of Kubernetes itself
    POD_GROUP = "pod-group"  #: of scheduler-plugins, Koordinator and ACK
    VOLCANO = "volcano"


class GangDeclaration(NamedTuple):
    """What one pod declares about its gang."""

    family: GangFamily
    gang: LocatedValue | None  #: the name of the gang
    fields: dict[str, LocatedValue]  #: fields of the native form
    is_koordinator: bool  #: it has an annotation of Koordinator, whose defaults apply
    total: LocatedValue | None = None  #: how many members the gang has in all


def declaration_of(
    labels: StrictMapping, annotations: StrictMapping, scheduling_group: StrictMapping
) -> GangDeclaration:
    """The declaration of a pod with these labels, annotations and `spec.schedulingGroup`.

    Koordinator's annotations take precedence over labels.
    """
    is_koordinator = koordinator.is_used(annotations)
    family, gang = GangFamily.NATIVE, _named_by(scheduling_group, _NATIVE_GROUP)
    if gang is None:
        family, gang = GangFamily.POD_GROUP, koordinator.gang_of(annotations)
        gang = gang or alibaba_ack.gang_of(labels) or alibaba_ack.gang_of(annotations)
    if gang is None:
        family, gang = GangFamily.VOLCANO, _named_by(annotations, _VOLCANO_GROUP)
        gang = gang or _named_by(labels, _VOLCANO_GROUP)
    total = koordinator.total_of(annotations) if is_koordinator else None
    fields = alibaba_ack.fields_of(labels) | alibaba_ack.fields_of(annotations)
    if is_koordinator:
        fields |= koordinator.fields_of(annotations)
    return GangDeclaration(family, gang, fields, is_koordinator, total)


def _named_by(mapping: StrictMapping, key: str) -> LocatedValue | None:
    name = mapping.read(key, word)
    return None if name is None else LocatedValue(name, mapping.location.at(key))
