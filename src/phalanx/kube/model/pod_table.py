"""All pods of the cluster: where they are or are about to be, what they request, and what the rules
of other pods ask about them."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime

from msgspec.structs import replace

from phalanx.kube.model.node_row import PodOnNode
from phalanx.kube.model.pod_request import has_same_request, pod_request
from phalanx.kube.objects.metadata import ObjectCondition
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.rules.node_predicate import pod_nodes, pod_preference
from phalanx.kube.rules.placed_pods import PlacedPods, PodTraits
from phalanx.kube.rules.pod_queries import NamespaceLabels
from phalanx.kube.rules.pod_traits import PodTraitsIndex
from phalanx.kube.rules.volumes import PodVolumes, VolumeIndex, claims_of
from phalanx.kube.writes.rounds import ROUND, BindRound, bound_at
from phalanx.plan.model import TaskRequest

#: Set by the kubelet on a pod that it read from a file, and on its mirror in the API.
_STATIC = "kubernetes.io/config.source"


class PodTable:
    def __init__(
        self, scheduler_names: Collection[str], namespaces: NamespaceLabels, volumes: VolumeIndex
    ) -> None:
        """`namespaces` and the objects of `volumes` are kept up to date by the caller."""
        self._scheduler_names = frozenset(scheduler_names)
        self._volumes = volumes
        self._index = PodTraitsIndex(namespaces)
        self.pods: dict[str, KubePod] = {}
        self._on_node: dict[str, set[str]] = {}
        self._claim_users: dict[str, set[str]] = {}
        #: Pods whose bind has been sent and is not shown by the watch yet, as they will be.
        self._assumed: dict[str, KubePod] = {}
        #: Places that pending pods of non-strict gangs hold: uid → node.
        self._held: dict[str, str] = {}
        self._requests: dict[str, TaskRequest] = {}
        self._interned: dict[TaskRequest, TaskRequest] = {}
        #: Whether some node has a taint that only puts it last.
        self._has_avoided_taints = False
        self.placed = PlacedPods()
        #: By pod: what it was placed with, and at which position of the node table.
        self._places: dict[str, tuple[PodTraits, int]] = {}
        self._unsettled: set[str] = set()

    def is_own(self, pod: KubePod) -> bool:
        return self.serves(pod.spec.scheduler_name)

    def serves(self, scheduler_name: str) -> bool:
        """Whether pods with this scheduler name are placed here."""
        return scheduler_name in self._scheduler_names

    def names_in_use(self) -> set[str]:
        """The scheduler names of all pods."""
        return {pod.spec.scheduler_name for pod in self.pods.values()}

    # Writing

    def put(self, pod: KubePod) -> set[str]:
        """Add a pod or its new version; the uids of all pods whose requests have changed."""
        uid = pod.metadata.uid
        assumed = self._assumed.get(uid)
        if assumed is not None and not pod.spec.node_name and not pod.is_finished:
            pod = _with_bind(pod, assumed)
        else:
            self._assumed.pop(uid, None)
        self._leave(uid)
        self.pods[uid] = pod
        changed = self._index.put(pod) | {uid}
        for name, _ in claims_of(pod):
            self._claim_users.setdefault(f"{pod.metadata.namespace}/{name}", set()).add(uid)
        self._enter(uid)
        self._forget_requests(changed)
        return changed

    def put_alike(self, pod: KubePod) -> bool:
        """Take over a new version of a pod if it is the same for every plan; whether it is."""
        uid = pod.metadata.uid
        known = self.pods.get(uid)
        if known is None or not is_alike(known, pod):
            return False
        self.pods[uid] = pod
        self._assumed.pop(uid, None)
        self._index.put_alike(pod)
        return True

    def remove(self, uid: str) -> set[str]:
        """Remove a pod; the uids of other pods whose requests have changed."""
        pod = self.pods.get(uid)
        if pod is None:
            return set()
        self._leave(uid)
        del self.pods[uid]
        self._assumed.pop(uid, None)
        self._held.pop(uid, None)
        for name, _ in claims_of(pod):
            self._claim_users.get(f"{pod.metadata.namespace}/{name}", set()).discard(uid)
        changed = self._index.remove(uid)
        self._forget_requests({uid, *changed})
        return changed

    def assume(self, uid: str, node: str, bind_round: BindRound, at: datetime) -> None:
        """Count a pod as bound, because its bind is being sent."""
        condition = ObjectCondition("PodScheduled", "True", last_transition_time=at)
        pod = self.pods[uid]
        annotations = {**pod.metadata.annotations, ROUND: str(bind_round)}
        self.release((uid,))
        assumed = replace(
            pod,
            metadata=replace(pod.metadata, annotations=annotations),
            spec=replace(pod.spec, node_name=node),
            status=replace(pod.status, conditions=(condition,)),
        )
        self._assumed[uid] = self.pods[uid] = assumed
        # Neither the pod's rules nor what it requests depend on its node.
        self._index.put_alike(assumed)
        request = self._requests.pop(uid, None)
        if request is not None:
            self._requests[uid] = self._intern(
                TaskRequest(request.resources, traits=request.traits)
            )
        self._enter(uid)

    def withdraw(self, uid: str) -> None:
        """Count a pod as pending again, because its bind was refused."""
        assumed = self._assumed.pop(uid, None)
        if assumed is not None:
            annotations = {**assumed.metadata.annotations}
            annotations.pop(ROUND, None)
            self.put(
                replace(
                    assumed,
                    metadata=replace(assumed.metadata, annotations=annotations),
                    spec=replace(assumed.spec, node_name=""),
                    status=replace(assumed.status, conditions=()),
                )
            )

    def hold(self, places: Mapping[str, str]) -> set[str]:
        """Hold a node for each of some pending pods; the nodes concerned."""
        for uid, node in places.items():
            self._leave(uid)
            self._held[uid] = node
            self._enter(uid)
        return {*places.values()}

    def release(self, uids: Iterable[str]) -> set[str]:
        """Give up the nodes that are held for these pods; the nodes concerned."""
        nodes = set()
        for uid in uids:
            if uid in self._held:
                self._leave(uid)
                nodes.add(self._held.pop(uid))
                self._unsettled.add(uid)
        return nodes

    def set_avoided_taints(self, *, exist: bool) -> bool:
        """Whether some node has a taint that only puts it last; whether that has changed."""
        has_changed = self._has_avoided_taints != exist
        if has_changed:
            self._has_avoided_taints = exist
            self._forget_requests({*self.pods})
        return has_changed

    def volumes_changed(self, claims: Iterable[str]) -> set[str]:
        """Look at the volumes of the pods that use these claims again; their uids."""
        users = {uid for claim in claims for uid in self._claim_users.get(claim, ())}
        self._forget_requests(users)
        return users

    def namespaces_changed(self) -> set[str]:
        """Match all pods again, because labels of namespaces have changed; the uids of all."""
        for pod in [*self.pods.values()]:
            self.put(pod)
        return {*self.pods}

    def _forget_requests(self, uids: set[str]) -> None:
        for uid in uids:
            self._requests.pop(uid, None)
        self._unsettled |= uids

    def _leave(self, uid: str) -> None:
        place = self.place_of(uid)
        if place:
            self._on_node.get(place, set()).discard(uid)

    def _enter(self, uid: str) -> None:
        place = self.place_of(uid)
        if place:
            self._on_node.setdefault(place, set()).add(uid)
        self._unsettled.add(uid)

    # Reading

    def node_of(self, uid: str) -> str:
        """Where a pod is bound or is being bound; empty if it is not."""
        pod = self.pods.get(uid)
        return "" if pod is None else pod.spec.node_name

    def place_of(self, uid: str) -> str:
        """The node that a pod takes something of; empty if it takes nothing."""
        pod = self.pods.get(uid)
        if pod is None or pod.is_finished:
            return ""
        return pod.spec.node_name or self._held.get(uid, "")

    def is_assumed(self, uid: str) -> bool:
        return uid in self._assumed

    def on_node(self, name: str) -> set[str]:
        """The uids of the pods that take something of a node."""
        return self._on_node.get(name, set())

    def taking(self, name: str) -> Iterator[PodOnNode]:
        """What each pod takes of a node."""
        for uid in self.on_node(name):
            pod = self.pods[uid]
            yield PodOnNode(self.request(uid).resources, _is_fixed(pod), self.is_own(pod))

    def volumes_of(self, uid: str) -> PodVolumes:
        return self._volumes.of(self.pods[uid])

    def request(self, uid: str) -> TaskRequest:
        """What a pod requests of its node and of the pods around it."""
        request = self._requests.get(uid)
        if request is None:
            pod = self.pods[uid]
            volumes = self._volumes.of(pod)
            traits = self._index.traits(uid, volumes)
            if pod.spec.node_name or not self.is_own(pod):
                # It is not placed by this scheduler, or no more.
                request = TaskRequest(pod_request(pod), traits=traits)
            else:
                request = TaskRequest(
                    pod_request(pod),
                    pod_nodes(pod, volumes),
                    preference=pod_preference(pod, has_avoided_taints=self._has_avoided_taints),
                    traits=traits,
                )
            request = self._requests[uid] = self._intern(request)
        return request

    def _intern(self, request: TaskRequest) -> TaskRequest:
        return self._interned.setdefault(request, request)

    def settle(self, positions: Mapping[str, int]) -> None:
        """Bring the placed pods up to date. `positions` are those of the node table."""
        for uid in self._unsettled:
            place = self.place_of(uid)
            position = positions.get(place) if place else None
            traits = None if position is None else self.request(uid).traits
            wanted = None
            if position is not None and isinstance(traits, PodTraits):
                wanted = (traits, position)
            current = self._places.get(uid)
            if current == wanted:
                continue
            if current is not None:
                self.placed.place(*current, -1)
                del self._places[uid]
            if wanted is not None:
                self.placed.place(*wanted, 1)
                self._places[uid] = wanted
        self._unsettled.clear()

    def forget_places(self) -> None:
        """Begin again with a node table on which no pod is placed."""
        self.placed = PlacedPods()
        self._places.clear()
        self._interned.clear()
        self._forget_requests({*self.pods})

    def unsettle(self, node: str) -> None:
        """Place the pods of a node again, because the node was added or removed."""
        self._unsettled |= self.on_node(node)


def is_alike(pod: KubePod, later: KubePod) -> bool:
    """Whether two versions of a pod are the same for every plan: they differ at most in what its
    kubelet reports, and in why it is pending."""
    before, after = pod.metadata, later.metadata
    return (
        pod.spec == later.spec
        and before.labels == after.labels
        and before.annotations == after.annotations
        and before.owner_references == after.owner_references
        and (before.deletion_timestamp is None) == (after.deletion_timestamp is None)
        and pod.is_finished == later.is_finished
        and pod.status.nominated_node_name == later.status.nominated_node_name
        and (bound_at(pod) is None) == (bound_at(later) is None)
        and has_same_request(pod, later)
    )


def _with_bind(pod: KubePod, assumed: KubePod) -> KubePod:
    """A pod that the watch shows as pending, with the bind that has been sent."""
    annotations = {**pod.metadata.annotations, ROUND: assumed.metadata.annotations[ROUND]}
    return replace(
        pod,
        metadata=replace(pod.metadata, annotations=annotations),
        spec=replace(pod.spec, node_name=assumed.spec.node_name),
        status=replace(pod.status, conditions=assumed.status.conditions),
    )


def _is_fixed(pod: KubePod) -> bool:
    """Whether a pod belongs to its node: it is static, or of a DaemonSet."""
    if pod.metadata.annotations.get(_STATIC, "api") != "api":
        return True
    controller = pod.metadata.controller
    return controller is not None and controller.kind in ("DaemonSet", "Node")
