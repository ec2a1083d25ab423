"""PodGroups of scheduler-plugins, of its older API groups, and of Volcano."""

from typing import NamedTuple

from phalanx.core.spec import quantities
from phalanx.core.spec.fields import text
from phalanx.core.spec.job import Resources
from phalanx.manifest import alibaba_ack, koordinator
from phalanx.manifest.container import with_native_names
from phalanx.manifest.draft import LocatedValue
from phalanx.manifest.metadata import Metadata, metadata_of
from phalanx.manifest.problems import SourceLocation
from phalanx.manifest.strict_mapping import StrictMapping, whole

CURRENT = "scheduling.x-k8s.io/v1alpha1"
OLDER = ("scheduling.sigs.k8s.io/v1alpha1", "v1alpha1")
VOLCANO = "scheduling.volcano.sh/v1beta1"


class PodGroup(NamedTuple):
    metadata: Metadata
    fields: dict[str, LocatedValue]  #: fields of the native form
    min_resources: tuple[Resources, SourceLocation] | None


def pod_group_of(document: StrictMapping, version: str) -> PodGroup:
    if version in OLDER:
        document.problems.add_note(
            document.location.at("apiVersion"), f"is an older name of {CURRENT}, and read as that"
        )
    metadata = metadata_of(document)
    document.ignore("status")
    spec = document.mapping("spec")
    fields = alibaba_ack.fields_of(metadata.labels) | alibaba_ack.fields_of(metadata.annotations)
    fields |= koordinator.fields_of(metadata.annotations)

    def put(field: str, key: str, value: object) -> None:
        if value is not None:
            fields[field] = LocatedValue(value, spec.location.at(key))

    cure = "write how many members are enough to start"
    put("min_available", "minMember", spec.required("minMember", whole(1), cure))
    seconds = spec.read("scheduleTimeoutSeconds", whole(1))
    put("schedule_timeout", "scheduleTimeoutSeconds", seconds)
    if version == VOLCANO:
        put("queue", "queue", spec.read("queue", text))
        put("priority_class", "priorityClassName", spec.read("priorityClassName", text))
    return PodGroup(metadata, fields, _min_resources(spec))


def _min_resources(spec: StrictMapping) -> tuple[Resources, SourceLocation] | None:
    key = "minResources"
    amounts = spec.read(key, lambda value: quantities.resources(with_native_names(value)))
    return None if amounts is None else (amounts, spec.location.at(key))
