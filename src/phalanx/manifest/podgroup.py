"""PodGroups of scheduler-plugins, of its older API groups, and of Volcano.

The objects can come from a file or from a cluster: nothing here depends on it.
"""

from typing import NamedTuple

from phalanx.core.spec.fields import text
from phalanx.manifest import alibaba_ack, koordinator
from phalanx.manifest.container import with_native_names
from phalanx.manifest.draft import LocatedValue
from phalanx.manifest.metadata import Metadata, metadata_of
from phalanx.manifest.strict_mapping import StrictMapping, whole

CURRENT = "scheduling.x-k8s.io/v1alpha1"
OLDER = ("scheduling.sigs.k8s.io/v1alpha1", "v1alpha1")
VOLCANO = "scheduling.volcano.sh/v1beta1"


class PodGroup(NamedTuple):
    metadata: Metadata
    fields: dict[str, LocatedValue]  #: fields of the native form
    is_koordinator: bool  #: it has an annotation of Koordinator, whose defaults apply
    total: LocatedValue | None = None  #: how many members the gang has in all


def pod_group_of(document: StrictMapping, version: str) -> PodGroup:
    if version in OLDER:
        document.problems.add_note(
            document.location.at("apiVersion"), f"is an older name of {CURRENT}, and read as that"
        )
    metadata = metadata_of(document)
    document.ignore("status")
    spec = document.mapping("spec")
    is_koordinator = koordinator.is_used(metadata.annotations)
    fields: dict[str, LocatedValue] = {}

    def put(field: str, key: str, value: object) -> None:
        if value is not None:
            fields[field] = LocatedValue(value, spec.location.at(key))

    cure = "write how many members are enough to start"
    put("min_available", "minMember", spec.required("minMember", whole(1), cure))
    seconds = spec.read("scheduleTimeoutSeconds", whole(1))
    # Koordinator counts it from the first member that holds a place, ACK from eligibility.
    timeout = "gather_timeout" if is_koordinator else "schedule_timeout"
    put(timeout, "scheduleTimeoutSeconds", seconds)
    put("min_resources", "minResources", with_native_names(spec.take("minResources")))
    if version == VOLCANO:
        put("queue", "queue", spec.read("queue", text))
        put("priority_class", "priorityClassName", spec.read("priorityClassName", text))
    total = koordinator.total_of(metadata.annotations)
    of_metadata = (
        alibaba_ack.fields_of(metadata.labels)
        | alibaba_ack.fields_of(metadata.annotations)
        | koordinator.fields_of(metadata.annotations)
    )
    return PodGroup(metadata, of_metadata | fields, is_koordinator, total)
