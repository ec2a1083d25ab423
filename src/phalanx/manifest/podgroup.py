"""PodGroups: of scheduler-plugins, of the older groups, and of Volcano."""

from typing import NamedTuple

from phalanx.core.spec import quantities
from phalanx.core.spec.fields import text
from phalanx.core.spec.job import Resources
from phalanx.manifest import ack, koordinator
from phalanx.manifest.draft import Said
from phalanx.manifest.metadata import Metadata, metadata_of
from phalanx.manifest.pod import renamed
from phalanx.manifest.problems import SourceLocation
from phalanx.manifest.strict_mapping import StrictMapping, whole

PRESENT = "scheduling.x-k8s.io/v1alpha1"
OLDER = ("scheduling.sigs.k8s.io/v1alpha1", "v1alpha1")
VOLCANO = "scheduling.volcano.sh/v1beta1"


class PodGroup(NamedTuple):
    metadata: Metadata
    terms: dict[str, Said]  #: as fields of the native form
    least: tuple[Resources, SourceLocation] | None  #: its minResources


def pod_group_of(document: StrictMapping, version: str) -> PodGroup:
    if version in OLDER:
        document.findings.read_as(
            document.where.at("apiVersion"), f"is an older name of {PRESENT}, and read as that"
        )
    metadata = metadata_of(document)
    document.skip("status")
    spec = document.view("spec")
    terms = ack.terms_of(metadata.labels) | ack.terms_of(metadata.annotations)
    terms |= koordinator.terms_of(metadata.annotations)

    def put(field: str, key: str, value: object) -> None:
        if value is not None:
            terms[field] = Said(value, spec.where.at(key))

    cure = "write how many members are enough to start"
    put("min_available", "minMember", spec.required("minMember", whole(1), cure))
    seconds = spec.read("scheduleTimeoutSeconds", whole(1))
    put("schedule_timeout", "scheduleTimeoutSeconds", seconds)
    if version == VOLCANO:
        put("queue", "queue", spec.read("queue", text))
        put("priority_class", "priorityClassName", spec.read("priorityClassName", text))
    return PodGroup(metadata, terms, _least(spec))


def _least(spec: StrictMapping) -> tuple[Resources, SourceLocation] | None:
    least = spec.read("minResources", lambda value: quantities.resources(renamed(value)))
    return None if least is None else (least, spec.where.at("minResources"))
