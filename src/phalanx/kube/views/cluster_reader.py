"""A cluster read once with a user's rights, as the model that the scheduler has of it."""

import re
from collections.abc import Collection, Iterable, Sequence

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.discovery import Discovery
from phalanx.kube.api.errors import ApiStatusError
from phalanx.kube.api.resources import NAMESPACES, PODS, pod_groups, queues
from phalanx.kube.cluster_watch import FAMILIES, QUEUE_GROUPS, VOLCANO, ClusterWatch
from phalanx.kube.model.cluster_model import ClusterModel

_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)"'
    r'.*?(?:in the namespace "(?P<namespace>[^"]*)"|at the cluster scope)'
)


class MissingRightsError(Exception):
    """The user may not read what a command needs. The message names it, and the cure."""

    def __init__(self, refusals: Sequence[ApiStatusError]) -> None:
        found = [_FORBIDDEN.search(error.message) for error in refusals]
        parts = [match for match in found if match is not None]
        if not parts:
            super().__init__("; ".join(sorted({str(error) for error in refusals})))
            return
        verbs = sorted({f"{match['verb']} {match['resource']}" for match in parts})
        namespaces = sorted({match["namespace"] for match in parts if match["namespace"]})
        where = f"namespace {namespaces[0]}" if len(namespaces) == 1 else "the whole cluster"
        super().__init__(
            f"user {parts[0]['user']} may not {', '.join(verbs)} in {where}; ask an administrator"
            " to bind the ClusterRole phalanx-viewer"
        )


async def read_cluster(
    client: ApiClient, scheduler_names: Collection[str], node_labels: str = ""
) -> ClusterModel:
    """The whole cluster. Raises MissingRightsError, or like `ApiClient.request`."""
    model = ClusterModel(scheduler_names)
    watch = ClusterWatch(client, model, lambda: None, lambda _: None, node_labels)
    _raise_first(await watch.read())
    model.refresh()
    return model


async def read_gangs(
    client: ApiClient, scheduler_names: Collection[str], namespace: str
) -> ClusterModel:
    """The pods and PodGroups of a namespace, or of all if it is empty; no nodes. Finished pods
    without a gang are there too. Queues and namespaces are read if the user may. Raises
    like `read_cluster`."""
    model = ClusterModel(scheduler_names)
    discovery = Discovery(client)
    await discovery.refresh()
    try:
        await _read_pods(client, discovery, model, namespace)
    except ApiStatusError as error:
        _raise_first([error])
    try:
        await _read_queues(client, discovery, model)
    except ApiStatusError as error:
        if error.code != 403:
            raise
    model.refresh()
    return model


async def _read_pods(
    client: ApiClient, discovery: Discovery, model: ClusterModel, namespace: str
) -> None:
    for group, family in FAMILIES.items():
        served = discovery.find(group, "podgroups")
        if served is not None:
            resource = pod_groups(group, served.version)
            for each in await client.list_all(resource, None, namespace):
                model.gangs.put_group(each, family)
    for pod in await client.list_all(PODS, None, namespace):
        model.put_pod(pod)


async def _read_queues(client: ApiClient, discovery: Discovery, model: ClusterModel) -> None:
    for namespace in await client.list_all(NAMESPACES):
        model.put_namespace(namespace)
    for group in QUEUE_GROUPS:
        served = discovery.find(group, "queues")
        if served is not None:
            for queue in await client.list_all(queues(group, served.version)):
                model.put_queue(queue, is_volcano=group == VOLCANO)


def _raise_first(faults: Iterable[BaseException | None]) -> None:
    """Raise MissingRightsError for all refusals together, else the first fault."""
    present = [fault for fault in faults if fault is not None]
    refusals = [f for f in present if isinstance(f, ApiStatusError) and f.code == 403]
    if refusals:
        raise MissingRightsError(refusals)
    for fault in present:
        raise fault
