"""A pod, or the template of one: a role, and the fields of the job that the pod sets.

A task runs one container. Sidecars, init containers, volumes and security settings are unsupported.
"""

from collections.abc import Mapping
from typing import NamedTuple

from phalanx.core.spec.fields import integer, text
from phalanx.manifest.container import ONE_CONTAINER, put_container, report_extra_container
from phalanx.manifest.draft import LocatedValue, RoleDraft
from phalanx.manifest.metadata import Metadata, metadata_of
from phalanx.manifest.read_options import ReadOptions
from phalanx.manifest.strict_mapping import StrictMapping, choice, whole

_PREEMPTION_POLICIES = {"PreemptLowerPriority": "lower", "Never": "never"}
_RESTART_POLICIES = {name: name for name in ("Always", "OnFailure", "Never")}

#: They change nothing for a process on a worker, which has the network of the worker and no taints.
_IGNORED = (
    *("schedulerName", "tolerations", "hostNetwork", "dnsPolicy", "enableServiceLinks"),
    *("automountServiceAccountToken", "terminationMessagePath"),
)


class Pod(NamedTuple):
    metadata: Metadata
    role: RoleDraft
    #: Fields of the job that the pod sets: `priority`, `priority_class`, `preemption_policy`, …
    job: dict[str, LocatedValue]
    restart: LocatedValue | None  #: its restartPolicy, if it has one
    scheduling_group: StrictMapping  #: names its PodGroup of Kubernetes itself


def pod_of(
    document: StrictMapping, options: ReadOptions, references: Mapping[str, str] | None = None
) -> Pod:
    """The pod of an object or of a template.

    `references` has the variables that are known only when the gang starts, each with the reference
    of the native form that it becomes.
    """
    metadata = metadata_of(document, needs_name=False)
    spec = document.mapping("spec")
    spec.ignore(*_IGNORED)
    role = RoleDraft(spec.location)
    containers = spec.mappings("containers")
    if not containers:
        spec.problem("is missing; write a container with a command", "containers")
    for container in containers[:1]:
        put_container(role, container, options, references or {})
    for extra in containers[1:]:
        report_extra_container(extra)
    spec.unsupported(("initContainers", "ephemeralContainers"), ONE_CONTAINER)
    for label in (selector := spec.mapping("nodeSelector")).unread():
        role.put_in("node_selector", label, selector.take(label), selector.location.at(label))
    group = spec.mapping("schedulingGroup")
    return Pod(metadata, role, _job_fields(spec), _restart(spec), group)


def _restart(spec: StrictMapping) -> LocatedValue | None:
    policy = spec.read("restartPolicy", choice(_RESTART_POLICIES))
    return None if policy is None else LocatedValue(policy, spec.location.at("restartPolicy"))


def _job_fields(spec: StrictMapping) -> dict[str, LocatedValue]:
    policy = spec.read("preemptionPolicy", choice(_PREEMPTION_POLICIES))
    grace = spec.read("terminationGracePeriodSeconds", whole(0))
    values = (
        ("priority", "priority", spec.read("priority", integer(-(2**31), 2**31 - 1))),
        ("priorityClassName", "priority_class", spec.read("priorityClassName", text)),
        ("preemptionPolicy", "preemption_policy", policy),
        ("terminationGracePeriodSeconds", "grace", grace),
        ("activeDeadlineSeconds", "time_limit", spec.read("activeDeadlineSeconds", whole(1))),
    )
    fields = {
        field: LocatedValue(value, spec.location.at(key))
        for key, field, value in values
        if value is not None
    }
    # A Kubernetes cluster adds the number of the class next to its name.
    if "priority_class" in fields:
        fields.pop("priority", None)
    return fields
