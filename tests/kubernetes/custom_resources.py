"""Custom resources of the tests' own, with as little validation as real ones have at worst."""

from typing import Any

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.discovery import Discovery
from phalanx.kube.api.errors import ApiStatusError
from phalanx.kube.api.resources import Resource
from phalanx.kube.objects.metadata import ApiObject
from tests.integration.server.waiting import PATIENCE_S, eventually

CUSTOM_RESOURCE_DEFINITIONS = Resource(
    *("apiextensions.k8s.io", "v1", "customresourcedefinitions", ApiObject), is_namespaced=False
)


def definition(
    group: str,
    kind: str,
    *,
    has_status: bool = False,
    version: str = "v1alpha1",
    scope: str = "Namespaced",
) -> dict[str, Any]:
    """A definition of objects without a schema."""
    plural = f"{kind.lower()}s"
    schema = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        },
        **({"subresources": {"status": {}}} if has_status else {}),
    }
    return {
        "metadata": {
            "name": f"{plural}.{group}",
            # Groups of Kubernetes' own need a word about their review.
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"plural": plural, "kind": kind, "singular": kind.lower()},
            "versions": [schema],
        },
    }


POD_GROUP_CRD = definition("scheduling.phalanx.test", "PodGroup")


async def install(api: ApiClient, crd: dict[str, Any]) -> None:
    """Create the definition, and wait until the API server serves it, and says so."""
    try:
        await api.create(CUSTOM_RESOURCE_DEFINITIONS, crd)
    except ApiStatusError as error:
        if not error.is_conflict:  # another test has installed it
            raise
    spec = crd["spec"]
    version = spec["versions"][0]["name"]
    group, plural = spec["group"], spec["names"]["plural"]
    path = f"/apis/{group}/{version}/{plural}"
    discovery = Discovery(api)

    async def is_served() -> bool:
        try:
            await api.request("GET", path)
        except ApiStatusError as error:
            if error.code in (404, 429):  # 429: its storage is being set up
                return False
            raise
        await discovery.refresh()
        return discovery.find(group, plural) is not None

    await eventually(is_served, PATIENCE_S)
