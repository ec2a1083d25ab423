"""A cluster read once with a user's rights, as the model that the scheduler has of it."""

from collections.abc import Collection, Iterable

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.discovery import Discovery
from phalanx.kube.api.errors import ApiStatusError
from phalanx.kube.api.resources import (
    NAMESPACES,
    PODS,
    PRIORITY_CLASSES,
    VOLCANO,
    pod_groups,
    queues,
)
from phalanx.kube.cluster_watch import FAMILIES, QUEUE_GROUPS, ClusterWatch
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.node_option import check_node_option
from phalanx.kube.rights import refusal_of


async def read_cluster(
    client: ApiClient, scheduler_names: Collection[str], node_labels: str = ""
) -> ClusterModel:
    """The whole cluster. Raises MissingRightsError or NodeOptionError, or like
    `ApiClient.request`."""
    model = ClusterModel(scheduler_names)
    watch = ClusterWatch(client, model, lambda: None, lambda _: None, node_labels)
    faults = await watch.read()
    if node_labels and any(isinstance(f, ApiStatusError) and f.code == 400 for f in faults):
        await check_node_option(client, node_labels)
    _raise_first(faults)
    model.refresh()
    return model


async def read_gangs(
    client: ApiClient, scheduler_names: Collection[str], namespace: str
) -> ClusterModel:
    """The pods and PodGroups of a namespace, or of all if it is empty; no nodes. Finished pods
    without a gang are there too. Queues, namespaces and priority classes are read if the user
    may. Raises like `read_cluster`."""
    model = ClusterModel(scheduler_names)
    discovery = Discovery(client)
    await discovery.refresh()
    try:
        await _read_pods(client, discovery, model, namespace)
    except ApiStatusError as error:
        _raise_first([error])
    try:
        await _read_objects_of_the_cluster(client, discovery, model)
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


async def _read_objects_of_the_cluster(
    client: ApiClient, discovery: Discovery, model: ClusterModel
) -> None:
    for priority in await client.list_all(PRIORITY_CLASSES):
        model.put_priority_class(priority)
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
        raise refusal_of(refusals)
    for fault in present:
        raise fault
