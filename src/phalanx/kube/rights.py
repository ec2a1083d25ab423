"""The rights that the scheduler needs, which of them its user lacks, and refusals in words."""

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.discovery import Discovery
from phalanx.kube.api.errors import ApiStatusError
from phalanx.kube.cluster_watch import FAMILIES, QUEUE_GROUPS

#: The manifest that grants the scheduler's rights.
MANIFEST = "deploy/kubernetes/rbac.yaml"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_IDENTITY = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)"'
    r'.*?(?:in the namespace "(?P<namespace>[^"]*)"|at the cluster scope)'
)


class Right(NamedTuple):
    group: str
    resource: str  #: with its subresource: `pods/binding`
    verb: str
    name: str = ""  #: of the only object, if there is one
    is_local: bool = False  #: in the namespace of the lease


def _read(group: str, *resources: str) -> list[Right]:
    return [Right(group, each, verb) for each in resources for verb in ("list", "watch")]


#: What the scheduler does in every cluster.
RIGHTS = (
    *_read("", "namespaces", "nodes", "persistentvolumeclaims", "persistentvolumes", "pods"),
    *_read("policy", "poddisruptionbudgets"),
    *_read("scheduling.k8s.io", "priorityclasses"),
    *_read("storage.k8s.io", "csinodes", "storageclasses"),
    Right("", "pods", "get"),
    *(Right("", each, "create") for each in ("events", "pods/binding", "pods/eviction")),
    Right("", "pods/status", "patch"),
    Right("coordination.k8s.io", "leases", "create", is_local=True),
    *(
        Right("coordination.k8s.io", "leases", verb, "phalanx-scheduler", is_local=True)
        for verb in ("get", "update")
    ),
)
#: What it does with PodGroups and queues, where the cluster serves them.
CUSTOM_RIGHTS = (
    *(right for group in FAMILIES for right in _read(group, "podgroups")),
    *(right for group in QUEUE_GROUPS for right in _read(group, "queues")),
    Right("scheduling.k8s.io", "podgroups/status", "patch"),
    Right("scheduling.x-k8s.io", "podgroups/status", "patch"),
    *(Right(group, "queues/status", "patch") for group in QUEUE_GROUPS),
    Right("scheduling.sigs.k8s.io", "podgroups", "patch"),
    Right("scheduling.volcano.sh", "podgroups", "patch"),
    Right("scheduling.x-k8s.io", "podgroups", "create"),
    Right("scheduling.x-k8s.io", "podgroups", "delete"),
)


class MissingRightsError(Exception):
    """The user lacks rights. The message names them, and the cure."""


async def check_rights(client: ApiClient, lease_namespace: str) -> None:
    """Raise MissingRightsError if the scheduler lacks rights. Raises like `ApiClient.request`."""
    discovery = Discovery(client)
    await discovery.refresh()
    served = (each for each in CUSTOM_RIGHTS if _is_served(each, discovery))
    rights = [*RIGHTS, *served]
    allowed = await asyncio.gather(
        *(_is_allowed(client, right, lease_namespace) for right in rights)
    )
    missing = [right for right, has in zip(rights, allowed, strict=True) if not has]
    if missing:
        local = [right for right in missing if right.is_local]
        everywhere = [right for right in missing if not right.is_local]
        where = [
            f"{rights_in_words((r.verb, r.resource) for r in some)} in {place}"
            for some, place in (
                (everywhere, "the whole cluster"),
                (local, f"namespace {lease_namespace}"),
            )
            if some
        ]
        raise MissingRightsError(
            f"user {await _user(client)} may not {'; nor '.join(where)}; apply {MANIFEST}, which"
            " grants what the scheduler needs, or use its service account"
        )


def _is_served(right: Right, discovery: Discovery) -> bool:
    return discovery.find(right.group, right.resource.partition("/")[0]) is not None


async def _is_allowed(client: ApiClient, right: Right, lease_namespace: str) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "verb": right.verb,
        "name": right.name,
        "namespace": lease_namespace if right.is_local else "",
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = msgspec.json.decode(await client.request("POST", _REVIEWS, body))
    return bool(answer.get("status", {}).get("allowed"))


async def _user(client: ApiClient) -> str:
    """The name by which the API server knows the user of the client."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = msgspec.json.decode(await client.request("POST", _IDENTITY, body))
    return str(answer.get("status", {}).get("userInfo", {}).get("username", "?"))


def refusal_of(refusals: Sequence[ApiStatusError]) -> MissingRightsError:
    """All refusals of a reader's requests as one error."""
    matches = [_FORBIDDEN.search(error.message) for error in refusals]
    parts = [match for match in matches if match is not None]
    if not parts:
        return MissingRightsError("; ".join(sorted({str(error) for error in refusals})))
    rights = rights_in_words((match["verb"], match["resource"]) for match in parts)
    namespaces = sorted({match["namespace"] for match in parts if match["namespace"]})
    where = f"namespace {namespaces[0]}" if len(namespaces) == 1 else "the whole cluster"
    return MissingRightsError(
        f"user {parts[0]['user']} may not {rights} in {where}; ask an administrator to bind the"
        " ClusterRole phalanx-viewer"
    )


def rights_in_words(rights: Iterable[tuple[str, str]]) -> str:
    """`list and watch nodes, pods; create pods/binding`: each verb once."""
    verbs: dict[str, set[str]] = {}
    for verb, resource in rights:
        verbs.setdefault(resource, set()).add(verb)
    resources: dict[tuple[str, ...], list[str]] = {}
    for resource, allowed in sorted(verbs.items()):
        resources.setdefault(tuple(sorted(allowed)), []).append(resource)
    return "; ".join(
        f"{_joined(each)} {', '.join(names)}" for each, names in sorted(resources.items())
    )


def _joined(verbs: Sequence[str]) -> str:
    """`create, get and update`."""
    return " and ".join(filter(None, (", ".join(verbs[:-1]), verbs[-1])))
