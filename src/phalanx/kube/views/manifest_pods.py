"""The pods that controllers would create for the manifests of a file, without creating them.

One pod of each template is sent to the API server as a dry run, so that it has the defaults, the
priority and the checks of a real one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from phalanx.core.errors import Invalid, Problem
from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.errors import ApiStatusError
from phalanx.kube.api.resources import PODS, VOLCANO
from phalanx.kube.cluster_watch import FAMILIES, QUEUE_GROUPS
from phalanx.kube.gangs.gang_terms import pod_declaration
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.objects.cluster import PriorityClass
from phalanx.kube.objects.gang import KubePodGroup, KubeQueue
from phalanx.kube.objects.metadata import OwnerReference
from phalanx.kube.objects.pod import KubePod
from phalanx.manifest import documents

Document = Mapping[str, Any]

_VOLCANO_GROUP, _VOLCANO_TASK = "scheduling.k8s.io/group-name", "volcano.sh/task-spec"
_ACK = "pod-group.scheduling.sigs.k8s.io"
#: Pods of one template.
_MOST_PODS = 10_000
_REPLICA_SPECS = "ReplicaSpecs"


class PodTemplate(NamedTuple):
    """Equal pods of one owner."""

    owner: str  #: `Job sweep`
    namespace: str
    names: tuple[str, ...]
    pod: dict[str, Any]  #: metadata and spec
    is_parallel: bool = False  #: its pods probably need each other


class ManifestObjects(NamedTuple):
    templates: list[PodTemplate]
    groups: list[tuple[KubePodGroup, str]]  #: with their API group
    queues: list[tuple[KubeQueue, str]]
    priorities: dict[str, PriorityClass]
    ignored: list[str]  #: `Service web`


def manifest_objects(data: bytes, namespace: str) -> ManifestObjects:
    """The objects of a file that matter to the planner; `namespace` is for those without one.
    Raises Invalid."""
    found = ManifestObjects([], [], [], {}, [])
    for document in _flattened(documents.entries(documents.read(data))):
        _read(document, namespace, found)
    if not (found.templates or found.groups or found.queues):
        names = ", ".join(found.ignored)
        raise Invalid([Problem("", f"nothing here has pods ({names}); write pods or jobs")])
    return found


def _flattened(given: Iterable[object]) -> Iterator[Document]:
    for document in given:
        if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
            raise Invalid([Problem("", "a document has no kind; write objects of Kubernetes")])
        if document["kind"] == "List":
            yield from _flattened(document.get("items") or ())
        else:
            yield document


def _read(document: Document, default: str, found: ManifestObjects) -> None:
    kind, group = document["kind"], str(document.get("apiVersion", "")).rpartition("/")[0]
    metadata = _mapping(document, "metadata")
    name = str(metadata.get("name") or metadata.get("generateName", "").rstrip("-") or kind.lower())
    namespace = str(metadata.get("namespace") or default)
    owner, spec = f"{kind} {name}", _mapping(document, "spec")
    try:
        if kind == "PodGroup" and group in FAMILIES:
            found.groups.append((_object(document, namespace, KubePodGroup), group))
        elif kind == "Queue" and group in QUEUE_GROUPS:
            found.queues.append((_object(document, "", KubeQueue), group))
        elif kind == "PriorityClass":
            found.priorities[name] = _object(document, "", PriorityClass)
        elif kind == "Pod" and not group:
            pod = {"metadata": metadata, "spec": spec}
            found.templates.append(PodTemplate(owner, namespace, (name,), pod))
        elif kind == "Job" and group == "batch.volcano.sh":
            _read_volcano_job(name, namespace, spec, found)
        else:
            templates = list(_templates(kind, group, name, spec))
            for names, template in templates:
                pod = {
                    "metadata": _mapping(template, "metadata"),
                    "spec": _mapping(template, "spec"),
                }
                is_parallel = group == "kubeflow.org" or (kind == "Job" and len(names) > 1)
                found.templates.append(PodTemplate(owner, namespace, names, pod, is_parallel))
            if not templates:
                found.ignored.append(owner)
    except (msgspec.ValidationError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise Invalid([Problem("", f"{owner} cannot be read: {error}")]) from error


def _templates(
    kind: str, group: str, name: str, spec: Document
) -> Iterator[tuple[tuple[str, ...], Document]]:
    """Names of pods with their template, for every kind that creates pods."""
    if group == "kubeflow.org":
        for key, roles in spec.items():
            for role, each in roles.items() if key.endswith(_REPLICA_SPECS) else ():
                names = _numbered(f"{name}-{role.lower()}", each.get("replicas", 1))
                yield names, each["template"]
    elif (group, kind) == ("batch", "Job"):
        pods = spec.get("parallelism", 1)
        completions = _numbered(name, spec.get("completions", pods))
        yield _numbered(name, pods)[: len(completions)], spec["template"]
    elif group == "apps" and kind in ("Deployment", "ReplicaSet", "StatefulSet"):
        yield _numbered(name, spec.get("replicas", 1)), spec["template"]


def _read_volcano_job(name: str, namespace: str, spec: Document, found: ManifestObjects) -> None:
    """The pods and the PodGroup that Volcano's controller would create."""
    least: dict[str, int] = {}
    for n, task in enumerate(spec["tasks"]):
        role, replicas = str(task.get("name") or f"default{n}"), task.get("replicas", 1)
        least[role] = int(task.get("minAvailable", replicas))
        template = task["template"]
        metadata = _mapping(template, "metadata")
        annotations = {**(metadata.get("annotations") or {}), _VOLCANO_GROUP: name}
        annotations[_VOLCANO_TASK] = role
        pod_spec = {
            "schedulerName": spec.get("schedulerName", "volcano"),
            "priorityClassName": spec.get("priorityClassName", ""),
            **template["spec"],
        }
        pod = {"metadata": {**metadata, "annotations": annotations}, "spec": pod_spec}
        names = _numbered(f"{name}-{role}", replicas)
        found.templates.append(PodTemplate(f"Job {name}", namespace, names, pod))
    group = {
        "metadata": {"name": name},
        "spec": {
            "minMember": spec.get("minAvailable", sum(least.values())),
            "minTaskMember": least,
            "queue": spec.get("queue", "default"),
            "priorityClassName": spec.get("priorityClassName", ""),
        },
    }
    found.groups.append((_object(group, namespace, KubePodGroup), VOLCANO))


def _numbered(name: str, count: Any) -> tuple[str, ...]:
    if not isinstance(count, int) or not 0 <= count <= _MOST_PODS:
        raise ValueError(f"{count!r} is not a number of pods from 0 to {_MOST_PODS:,}")
    return tuple(f"{name}-{number}" for number in range(count))


def _mapping(document: Document, key: str) -> dict[str, Any]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def _object(document: Document, namespace: str, kind: Any) -> Any:
    """An object as the API server would store it now."""
    metadata = {**_mapping(document, "metadata"), "namespace": namespace}
    metadata |= {"uid": f"planned/{metadata['name']}", "creationTimestamp": datetime.now(UTC)}
    stored = {**document, "metadata": metadata, "status": {}}
    return msgspec.convert(stored, kind, strict=False)


async def put_objects(
    client: ApiClient, model: ClusterModel, found: ManifestObjects, scheduler_name: str
) -> tuple[list[KubePod], list[str]]:
    """Add the objects to the model as if they were in the cluster; the new pods, and warnings.
    Raises Invalid, or like `ApiClient.request`."""
    warnings = [f"{each} is ignored: it has no pods" for each in found.ignored]
    for group, api_group in found.groups:
        model.gangs.put_group(group, FAMILIES[api_group])
    for queue, api_group in found.queues:
        model.put_queue(queue, is_volcano=api_group == VOLCANO)
    for given in found.priorities.values():
        model.put_priority_class(given)
    pods: list[KubePod] = []
    for template in found.templates:
        _check_is_new(model, template)
        pod = await _admitted(client, template, found.priorities)
        if not model.pods.is_own(pod):
            warnings.append(
                f"{template.owner} has schedulerName {pod.spec.scheduler_name}; planned as if it"
                f" were {scheduler_name}"
            )
            pod = replace(pod, spec=replace(pod.spec, scheduler_name=scheduler_name))
        if template.is_parallel and pod_declaration(pod) is None:
            warnings.append(
                f"{template.owner} names no gang, so its pods are placed one by one; add the labels"
                f" {_ACK}/name and {_ACK}/min-available to its pods"
            )
        pods += (_named(pod, name) for name in template.names)
    for pod in pods:
        model.put_pod(pod)
    return pods, list(dict.fromkeys(warnings))


def _check_is_new(model: ClusterModel, template: PodTemplate) -> None:
    def owns(owner: OwnerReference | None) -> bool:
        return owner is not None and f"{owner.kind} {owner.name}" == template.owner

    of_namespace = (
        pod.metadata
        for pod in model.pods.pods.values()
        if pod.metadata.namespace == template.namespace
    )
    matches: Callable[[Any], bool] = lambda each: (  # noqa: E731
        each.name in template.names or owns(each.controller)
    )
    existing = [each.name for each in of_namespace if matches(each)]
    if existing:
        cure = f"`phalanx kube why {template.namespace}/{existing[0]}` explains it"
        raise Invalid([Problem("", f"{template.owner} has the pod {existing[0]} already; {cure}")])


async def _admitted(
    client: ApiClient, template: PodTemplate, priorities: Mapping[str, PriorityClass]
) -> KubePod:
    """A pod of the template as the API server would store it, with the priority classes of the
    file."""
    spec = dict(template.pod["spec"])
    given = priorities.get(spec.get("priorityClassName") or "")
    if given is not None:
        del spec["priorityClassName"]
    pod = await _dry_run(client, template, spec)
    if given is None:
        return pod
    policy = given.preemption_policy
    return replace(pod, spec=replace(pod.spec, priority=given.value, preemption_policy=policy))


async def _dry_run(client: ApiClient, template: PodTemplate, spec: Document) -> KubePod:
    metadata = {
        key: value
        for key, value in template.pod["metadata"].items()
        if key in ("labels", "annotations", "finalizers")
    }
    metadata["generateName"] = f"{template.names[0][:50] if template.names else 'pod'}-"
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    try:
        return await client.create(PODS, body, template.namespace, params={"dryRun": "All"})
    except ApiStatusError as error:
        if error.code in (400, 422):
            raise Invalid([Problem("", f"{template.owner}: {error.message}")]) from error
        if error.is_not_found:
            cure = f"namespace {template.namespace} does not exist; create it, or pass another"
            raise Invalid([Problem("", f"{template.owner}: {cure} with -n")]) from error
        raise


def _named(pod: KubePod, name: str) -> KubePod:
    metadata = replace(pod.metadata, name=name, uid=f"planned/{pod.metadata.namespace}/{name}")
    return replace(pod, metadata=metadata)
