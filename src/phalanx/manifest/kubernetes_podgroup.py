"""The PodGroup of Kubernetes itself, which a pod names in `spec.schedulingGroup`."""

from phalanx.core.spec.fields import integer, text
from phalanx.core.spec.job import Match
from phalanx.manifest.draft import LocatedValue
from phalanx.manifest.metadata import metadata_of
from phalanx.manifest.podgroup import PodGroup
from phalanx.manifest.strict_mapping import StrictMapping, choice, whole

VERSIONS = ("scheduling.k8s.io/v1alpha2", "scheduling.k8s.io/v1alpha3")

_DISRUPTION_MODES = {mode: mode for mode in ("Pod", "PodGroup")}


def pod_group_of(document: StrictMapping, _version: str) -> PodGroup:
    metadata = metadata_of(document)
    document.ignore("status")
    spec = document.mapping("spec")
    spec.ignore("podGroupTemplateRef")
    fields = {
        "match": LocatedValue(Match.WAITING_AND_RUNNING.value, spec.location),
        "min_available": _minimum(spec),
    }
    if (pack := _pack(spec)) is not None:
        fields["pack"] = pack
    priority = spec.read("priority", integer(-(2**31), 2**31 - 1))
    name = spec.read("priorityClassName", text)
    # A Kubernetes cluster adds the number of the class next to its name.
    if name is not None:
        fields["priority_class"] = LocatedValue(name, spec.location.at("priorityClassName"))
    elif priority is not None:
        fields["priority"] = LocatedValue(priority, spec.location.at("priority"))
    if spec.read("disruptionMode", choice(_DISRUPTION_MODES)) == "Pod":
        spec.problems.add_note(
            spec.location.at("disruptionMode"),
            "is Pod: tasks above the minimum are preempted one by one, the others only together",
        )
    return PodGroup(metadata, fields, is_koordinator=False)


def _minimum(spec: StrictMapping) -> LocatedValue:
    """How many pods start together: `minCount`, or one by one with the policy `basic`."""
    policy = spec.mapping("schedulingPolicy")
    gang = policy.mapping("gang") if "gang" in policy else None
    is_basic = policy.take("basic") is not None
    if (gang is None) != is_basic:
        policy.problem("has gang and basic, or neither; write one of the two")
    location = policy.location.at("gang", "minCount")
    if gang is None:
        return LocatedValue(1, policy.location)
    minimum = gang.required("minCount", whole(1), "write how many pods are enough to start")
    return LocatedValue(minimum or 1, location)


def _pack(spec: StrictMapping) -> LocatedValue | None:
    """All pods in one domain of a topology."""
    constraints = spec.mapping("schedulingConstraints").mappings("topology")
    labels = [each.required("key", text, "write the label of a node") for each in constraints]
    if len(labels) > 1:
        spec.problems.add_unsupported(
            constraints[1].location,
            f"is a second topology, but a gang is packed by one label: {labels[0]}",
        )
    if not labels or labels[0] is None:
        return None
    return LocatedValue({"by": labels[0]}, constraints[0].location.at("key"))
