"""Everything that the scheduler watches, and the model that follows it.

Changes are collected and applied between two plans: a plan reads the model in a thread.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.discovery import Discovery
from phalanx.kube.api.reflector import Change, Reflector, Selection
from phalanx.kube.api.resources import (
    BUDGETS,
    CSI_NODES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    PRIORITY_CLASSES,
    STORAGE_CLASSES,
    VOLCANO,
    GroupApi,
    Resource,
    pod_groups,
    queues,
)
from phalanx.kube.gangs.gang_terms import GangKey, pod_declaration
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.objects.gang import KubePodGroup, KubeQueue
from phalanx.kube.objects.metadata import ApiObject
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.writes.queue_writer import QueueObject
from phalanx.manifest.gang_keys import GangFamily

T = TypeVar("T", bound=ApiObject)

#: API group of PodGroups → the family of gangs that name them.
FAMILIES = {
    "scheduling.k8s.io": GangFamily.NATIVE,
    "scheduling.x-k8s.io": GangFamily.POD_GROUP,
    "scheduling.sigs.k8s.io": GangFamily.POD_GROUP,
    VOLCANO: GangFamily.VOLCANO,
}
QUEUE_GROUPS = ("phalanx.dev", VOLCANO)

#: Pods that take something of their node, or will; and all others.
_UNFINISHED = Selection(fields="status.phase!=Succeeded,status.phase!=Failed")
_FINISHED = Selection(fields="status.phase!=Pending,status.phase!=Running,status.phase!=Unknown")

PodChange = Callable[[Change[KubePod]], None]


class ClusterWatch:
    """Reflectors of all kinds. `on_change` is called in the event loop when there is something to
    apply; `on_pod` for every change of a pod when it is applied."""

    def __init__(
        self,
        client: ApiClient,
        model: ClusterModel,
        on_change: Callable[[], None],
        on_pod: PodChange,
        node_labels: str = "",
    ) -> None:
        self._client = client
        self._model = model
        self._on_change = on_change
        self._on_pod = on_pod
        self._changes: list[Callable[[], None]] = []
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._discovery = Discovery(client, self._watch_served)
        self._reflectors: list[Reflector[Any]] = []
        #: The kinds that may come and go, by API group and plural.
        self._served: dict[tuple[str, str], Reflector[Any]] = {}
        self._is_started = False
        self._is_synced = False  #: everything has been listed once
        self.pods = self._reflector(PODS, self._unfinished_pod, _UNFINISHED)
        self.finished_pods = self._reflector(PODS, self._finished_pod, _FINISHED, _is_member)
        self._add_fixed(node_labels)

    def _add_fixed(self, node_labels: str) -> None:
        """The kinds that every cluster has."""
        model = self._model
        nodes = Selection(labels=node_labels)
        self._reflector(NODES, _put_or_remove(model.put_node, model.remove_node), nodes)
        self._reflector(NAMESPACES, _put_only(model.put_namespace))
        self._reflector(PRIORITY_CLASSES, _put_only(model.put_priority_class))
        self._reflector(STORAGE_CLASSES, _put_only(model.put_class))
        self._reflector(CSI_NODES, _put_or_remove(model.put_csi_node, model.remove_csi_node))
        self._reflector(PERSISTENT_VOLUMES, _put_or_remove(model.put_volume, model.remove_volume))
        claims = _put_or_remove(model.put_claim, model.remove_claim)
        self._reflector(PERSISTENT_VOLUME_CLAIMS, claims)
        self._reflector(BUDGETS, _put_or_remove(model.put_budget, model.remove_budget))

    async def start(self) -> None:
        """Start all watches, and return when everything has been listed once."""
        self._is_started = True
        for reflector in self._reflectors:
            self._start(reflector, reflector.run())
        self._start(self._discovery, self._discovery.run())
        await self._discovery.synced.wait()
        await asyncio.gather(*(reflector.synced.wait() for reflector in self._reflectors))
        self._is_synced = True

    def _has_all_but_pods(self) -> bool:
        """Whether everything is listed that would change what is known about many pods."""
        pods = (self.pods, self.finished_pods)
        others = (each for each in self._reflectors if each not in pods)
        return self._discovery.synced.is_set() and all(each.synced.is_set() for each in others)

    async def read(self) -> list[BaseException | None]:
        """List everything once, without a watch. For each kind: None, or what kept it from being
        read. Raises like `ApiClient.request` if the API server does not answer at all."""
        await self._discovery.refresh()
        lists = (reflector.read() for reflector in self._reflectors)
        faults = await asyncio.gather(*lists, return_exceptions=True)
        self.apply()
        return faults

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def apply(self) -> bool:
        """Apply everything that has changed since the last call; whether there was anything."""
        changes, self._changes = self._changes, []
        for change in changes:
            change()
        return bool(changes)

    def serves(self, group: str, plural: str) -> bool:
        """Whether the cluster has such objects."""
        return self._discovery.find(group, plural) is not None

    def queue_objects(self) -> Iterator[QueueObject]:
        """The queues as they were read, as far as they have a status to write."""
        for group in QUEUE_GROUPS:
            reflector = self._served.get((group, "queues"))
            served = self._discovery.find(group, "queues")
            if reflector is not None and served is not None and served.has_status:
                resource = queues(group, served.version)
                yield from (QueueObject(each, resource) for each in reflector.objects.values())

    @property
    def restarts(self) -> int:
        """Watches that were opened beyond the first of each kind."""
        return sum(max(0, reflector.watches - 1) for reflector in self._reflectors)

    def _start(self, owner: object, work: Any) -> None:
        self._tasks[owner] = asyncio.get_running_loop().create_task(work)

    def _reflector(
        self,
        resource: Resource[T],
        apply: Callable[[Change[T]], None],
        selection: Selection = Selection(),  # noqa: B008
        keeps: Callable[[T], bool] = lambda _: True,
    ) -> Reflector[T]:
        def collect(changes: list[Change[T]]) -> None:
            self._changes += (partial(apply, change) for change in changes)
            if self._is_synced:
                self._on_change()
            elif self._has_all_but_pods():
                self.apply()  # while the next page of pods is on its way

        reflector = Reflector(self._client, resource, collect, selection, keeps)
        self._reflectors.append(reflector)
        return reflector

    def _watch_served(self) -> None:
        """Watch the PodGroups and queues that the cluster serves now, and no others."""
        kinds: dict[tuple[str, str], Callable[[Change[Any]], None]] = {
            (group, "podgroups"): self._group_changes(group) for group in FAMILIES
        }
        for group in QUEUE_GROUPS:
            kinds[group, "queues"] = self._queue_changes(is_volcano=group == VOLCANO)
        for key, apply in kinds.items():
            served = self._discovery.find(*key)
            if served is None and key in self._served:
                self._forget(self._served.pop(key), apply)
            elif served is not None and key not in self._served:
                make = pod_groups if served.plural == "podgroups" else queues
                reflector = self._reflector(make(served.group, served.version), apply)
                self._served[key] = reflector
                if self._is_started:
                    self._start(reflector, reflector.run())

    def _forget(self, reflector: Reflector[T], apply: Callable[[Change[T]], None]) -> None:
        """Stop a watch, and count its objects as deleted."""
        self._tasks.pop(reflector).cancel()
        self._reflectors.remove(reflector)
        gone = reflector.objects.values()
        self._changes += (partial(apply, Change(each, None)) for each in gone)
        self._on_change()

    def _group_changes(self, group: str) -> Callable[[Change[KubePodGroup]], None]:
        def apply(change: Change[KubePodGroup]) -> None:
            served = self._discovery.find(group, "podgroups")
            if change.after is not None and served is not None:
                api = GroupApi(pod_groups(group, served.version), served.has_status)
                self._model.gangs.put_group(change.after, FAMILIES[group], api)
            elif change.before is not None:
                metadata = change.before.metadata
                key = GangKey(FAMILIES[group], metadata.namespace, metadata.name)
                self._model.gangs.remove_group(key, group)

        return apply

    def _queue_changes(self, *, is_volcano: bool) -> Callable[[Change[KubeQueue]], None]:
        def apply(change: Change[KubeQueue]) -> None:
            if change.after is not None:
                self._model.put_queue(change.after, is_volcano=is_volcano)
            elif change.before is not None:
                self._model.remove_queue(change.before.metadata.name)

        return apply

    def _unfinished_pod(self, change: Change[KubePod]) -> None:
        """Apply the change of a pod that has not finished. It leaves this watch when it finishes;
        the other watch may have shown that before."""
        self._on_pod(change)
        pod = change.after or change.before
        known = None if pod is None else self._model.pods.pods.get(pod.metadata.uid)
        if pod is None or (known is not None and known.is_finished):
            return
        if change.after is not None:
            self._model.put_pod(change.after)
        else:
            self._model.remove_pod(pod.metadata.uid)

    def _finished_pod(self, change: Change[KubePod]) -> None:
        """Apply the change of a pod that has finished. Only members of gangs count."""
        self._on_pod(change)
        if change.after is not None and _is_member(change.after):
            self._model.put_pod(change.after)
        elif (gone := change.after or change.before) is not None:
            self._model.remove_pod(gone.metadata.uid)

    async def catch_up(self) -> None:
        """List all pods again."""
        await asyncio.gather(self.pods.catch_up(), self.finished_pods.catch_up())


def _is_member(pod: KubePod) -> bool:
    return pod_declaration(pod) is not None


def _put_only(put: Callable[[T], None]) -> Callable[[Change[T]], None]:
    def apply(change: Change[T]) -> None:
        if change.after is not None:
            put(change.after)

    return apply


def _put_or_remove(
    put: Callable[[T], None], remove: Callable[[str], None]
) -> Callable[[Change[T]], None]:
    def apply(change: Change[T]) -> None:
        if change.after is not None:
            put(change.after)
        elif change.before is not None:
            remove(change.before.metadata.key)

    return apply
