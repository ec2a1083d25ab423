"""PodGroups that the scheduler creates for gangs that only labels or annotations declare, so that
their state can be read like that of others. They are output: nothing is read from them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from phalanx.core.errors import Invalid
from phalanx.core.spec.names import dns_subdomain
from phalanx.kube.gangs.gang import KubeGang
from phalanx.kube.gangs.gang_terms import OUTPUT_LABEL
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.objects.metadata import OwnerReference
from phalanx.manifest.gang_keys import GangFamily
from phalanx.manifest.podgroup import CURRENT


class CreateGroup(NamedTuple):
    namespace: str
    body: dict[str, Any]


class DeleteGroup(NamedTuple):
    namespace: str
    name: str
    uid: str


def output_changes(model: ClusterModel) -> Iterator[CreateGroup | DeleteGroup]:
    """The PodGroups to create for gangs of this scheduler, and those whose last pod is gone."""
    gangs, outputs = model.gangs, model.gangs.outputs
    for gang in gangs.gangs.values():
        key = gangs.key_of(gang)
        if key is None or key.family is not GangFamily.POD_GROUP or key in outputs:
            continue
        if gangs.group_of(gang) is None and gang.terms.minimum and _can_be_a_name(key.name):
            own = [pod.spec.scheduler_name for pod in gang.pods() if model.pods.is_own(pod)]
            if own:
                yield CreateGroup(key.namespace, _body(gang, key.namespace, key.name, own[0]))
    for key in outputs:
        item = None if key.job in gangs.gangs else gangs.object_of(key)
        if item is not None and model.pods.serves(item.group.metadata.labels[OUTPUT_LABEL]):
            yield DeleteGroup(key.namespace, key.name, item.group.metadata.uid)


def _body(gang: KubeGang, namespace: str, name: str, scheduler: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "labels": {OUTPUT_LABEL: scheduler},
    }
    owner = _common_controller(gang)
    if owner is not None:
        metadata["ownerReferences"] = [
            {
                "apiVersion": owner.api_version,
                "kind": owner.kind,
                "name": owner.name,
                "uid": owner.uid,
            }
        ]
    return {
        "apiVersion": CURRENT,
        "kind": "PodGroup",
        "metadata": metadata,
        "spec": {"minMember": gang.terms.minimum},
    }


def _common_controller(gang: KubeGang) -> OwnerReference | None:
    """The controller that all pods of a gang share."""
    controllers = {pod.metadata.controller for pod in gang.pods()}
    return controllers.pop() if len(controllers) == 1 else None


def _can_be_a_name(name: str) -> bool:
    """Whether an object can have the name, which may come from an annotation."""
    try:
        dns_subdomain(name)
    except Invalid:
        return False
    return True
