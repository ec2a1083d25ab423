"""The cluster as the scheduler knows it, kept up to date object by object, and the planner state
that follows from it.

A change marks gangs and nodes; `refresh` translates those that are marked. Nothing here calls the
API server.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from phalanx.core.reasons import NotSchedulable, Reason
from phalanx.core.spec.job import Pack, PackMode
from phalanx.core.time_units import Micros
from phalanx.kube.gangs.gang import GangMember, KubeGang, MemberState, micros
from phalanx.kube.gangs.gang_table import GangTable
from phalanx.kube.gangs.gang_terms import (
    GangTerms,
    GroupDeclaration,
    gang_terms,
    nameless_gang_key,
    pod_declaration,
)
from phalanx.kube.gangs.gang_translation import (
    NOT_READY,
    NOT_SUPPORTED,
    PREEMPTED_BY,
    GangPlan,
    pending_gangs,
    running_gang,
)
from phalanx.kube.model.budgets import DisruptionBudgets
from phalanx.kube.model.node_row import is_overcommitted, node_row
from phalanx.kube.model.node_rules import NodeRules
from phalanx.kube.model.pod_table import PodTable
from phalanx.kube.model.queues import (
    DEFAULT,
    ClusterQueue,
    QueueChoice,
    admitted,
    beyond_limits,
    cluster_queue,
    queue_of,
    queue_refusal,
    usable_queues,
)
from phalanx.kube.model.refused_nodes import RefusedNodes, owner_of
from phalanx.kube.objects.cluster import (
    CsiNode,
    KubeNamespace,
    KubeNode,
    PersistentVolume,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    PriorityClass,
    StorageClass,
)
from phalanx.kube.objects.gang import KubeQueue
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.rules.node_predicate import PodNodes, unsupported_part
from phalanx.kube.rules.placed_pods import PodTraits
from phalanx.kube.rules.selectors import LabelQuery
from phalanx.kube.rules.taints import AVOIDED
from phalanx.kube.rules.volumes import VolumeIndex, attach_limits
from phalanx.kube.writes.rounds import BindRound
from phalanx.plan.model import OrderKey, PlannerPolicy
from phalanx.plan.state.planner_state import KEPT_ANSWERS, PlannerState

#: Order within a queue: priority, then creation, then name.
POLICY = PlannerPolicy(order=(OrderKey.PRIORITY, OrderKey.CREATED))
#: Nodes with this label run jobs of a Phalanx server, which fills them itself.
_FLEET, _OPERATOR = "phalanx.dev/fleet", "operator"
_ANY = LabelQuery()


class ClusterModel:
    def __init__(
        self, scheduler_names: Collection[str] = ("phalanx",), nodes: LabelQuery | None = None
    ) -> None:
        """`nodes` restricts where pods are placed."""
        self._served = nodes
        self.nodes: dict[str, KubeNode] = {}
        self._node_rules = NodeRules(self.nodes)
        self._now: Micros = 0
        self._namespaces: dict[str, KubeNamespace] = {}
        self._namespace_labels: dict[str, Mapping[str, str]] = {}
        self._claims: dict[str, PersistentVolumeClaim] = {}
        self._volumes: dict[str, PersistentVolume] = {}
        self._classes: dict[str, StorageClass] = {}
        self._csi_nodes: dict[str, CsiNode] = {}
        self._priorities: dict[str, int] = {}
        self._budgets: dict[str, PodDisruptionBudget] = {}
        self._allowed = DisruptionBudgets()
        self.queues: dict[str, ClusterQueue] = {}
        volumes = VolumeIndex(self._claims, self._volumes, self._classes)
        self.pods = PodTable(scheduler_names, self._namespace_labels, volumes)
        self._refused = RefusedNodes()
        self.gangs = GangTable(self.pods, self._refused)
        self.state = PlannerState(POLICY)
        self.state.set_placed(self.pods.placed)
        self.state.set_queues(usable_queues({}))
        self._answer_limit = KEPT_ANSWERS
        #: By gang: the ids under which the planner has its pending pods.
        self._pending_jobs: dict[str, set[str]] = {}
        self._changed_nodes: set[str] = set()
        #: Nodes whose pods request more than the node offers.
        self.overcommitted: set[str] = set()
        #: Nodes with a taint that only puts them last.
        self._avoided_nodes: set[str] = set()
        #: By name of a gang: pods that are evicted for it.
        self._victims: dict[str, set[str]] = {}

    # Pods and PodGroups (PodGroups are put into `gangs` directly)

    def put_pod(self, pod: KubePod) -> None:
        if self.pods.put_alike(pod):
            self.gangs.put_alike(pod)
            return
        uid = pod.metadata.uid
        before = self.pods.pods.get(uid)
        self._touch_place(uid)
        self._note_victim(before, pod)
        changed = self.pods.put(pod)
        self._touch_place(uid)
        if self.pods.is_own(pod) or _is_foreign_member(pod):
            self.gangs.put_pod(self.pods.pods[uid])
        self._requests_changed(changed - {uid})

    def remove_pod(self, uid: str) -> None:
        before = self.pods.pods.get(uid)
        self._touch_place(uid)
        self._note_victim(before, None)
        self._requests_changed(self.pods.remove(uid))
        self.gangs.remove_pod(uid)

    def assume(self, places: Mapping[str, str], bind_round: BindRound, at: datetime) -> None:
        """Count pods as bound, because their binds are being sent: uid → node."""
        for uid, node in places.items():
            self._touch_place(uid)
            self.pods.assume(uid, node, bind_round, at)
            self._placement_changed(uid)
            gang = self.gangs.gang_of(uid)
            if gang is not None and gang.held:
                gang.held.pop(gang.number_of(uid), None)
                if not gang.held:
                    gang.release(micros(at))

    def withdraw(self, uid: str) -> None:
        """Count a pod as pending again, because its bind was refused."""
        self._touch_place(uid)
        self.pods.withdraw(uid)
        self._placement_changed(uid)

    def hold(self, gang: KubeGang, places: Mapping[int, str], at: Micros) -> None:
        """Hold nodes for pending pods of a non-strict gang: number of the pod → node."""
        gang.held |= places
        gang.held_since = at if gang.held_since is None else gang.held_since
        uids = {gang.members[number].pod.metadata.uid: node for number, node in places.items()}
        self._changed_nodes |= self.pods.hold(uids)
        self.gangs.changed.add(gang.job)

    def release(self, gang: KubeGang, at: Micros) -> None:
        """Give up the nodes that a gang holds."""
        uids = [gang.members[n].pod.metadata.uid for n in gang.held if n in gang.members]
        self._changed_nodes |= self.pods.release(uids)
        gang.release(at)
        self.gangs.changed.add(gang.job)

    def note_refusal(self, pod: KubePod, now: Micros) -> None:
        """Keep the gang or the controller of a pod from its node, because its kubelet has refused
        the pod."""
        owner = self._refused.add(pod, now)
        if owner is not None:
            self.gangs.changed |= {
                each.job
                for each in self.gangs.gangs.values()
                if any(owner_of(pod) == owner for pod in each.pods())
            }

    def advance(self, now: Micros) -> None:
        """Set the time: a node that has refused a pod is tried again after a while."""
        self._now = now
        if self._refused.advance(now):
            self.gangs.changed |= {each.job for each in self.gangs.gangs.values() if each.refused}

    def _placement_changed(self, uid: str) -> None:
        self._touch_place(uid)
        self.gangs.put_pod(self.pods.pods[uid])

    def _touch_place(self, uid: str) -> None:
        if place := self.pods.place_of(uid):
            self._changed_nodes.add(place)

    def _requests_changed(self, uids: Iterable[str]) -> None:
        for uid in uids:
            gang = self.gangs.gang_of(uid)
            if gang is not None:
                self.gangs.changed.add(gang.job)

    def _note_victim(self, before: KubePod | None, after: KubePod | None) -> None:
        """Keep track of which pods are evicted for which gang."""
        for pod, is_there in ((before, False), (after, True)):
            name = None if pod is None else pod.metadata.annotations.get(PREEMPTED_BY)
            if pod is None or name is None:
                continue
            victims = self._victims.setdefault(name, set())
            if is_there and not pod.is_finished:
                victims.add(pod.metadata.uid)
            else:
                victims.discard(pod.metadata.uid)
            if not victims:
                del self._victims[name]
            self.gangs.changed |= self.gangs.named(name)

    # Nodes

    def put_node(self, node: KubeNode) -> None:
        name, labels = node.metadata.name, node.metadata.labels
        if labels.get(_FLEET) == _OPERATOR or not (self._served or _ANY).matches(labels):
            self.remove_node(name)
            return
        is_new = name not in self.nodes
        self._node_rules.note(self.nodes.get(name), node)
        self.nodes[name] = node
        self._changed_nodes.add(name)
        if is_new:
            self._node_came_or_went(name)
        self._note_avoided_taints(name, exist=any(t.effect == AVOIDED for t in node.spec.taints))

    def remove_node(self, name: str) -> None:
        if (before := self.nodes.pop(name, None)) is not None:
            self._node_rules.note(before, None)
            self._changed_nodes.add(name)
            self._node_came_or_went(name)
            self._note_avoided_taints(name, exist=False)

    def _node_came_or_went(self, name: str) -> None:
        self.pods.unsettle(name)
        self._requests_changed(self.pods.on_node(name))

    def _note_avoided_taints(self, node: str, *, exist: bool) -> None:
        (self._avoided_nodes.add if exist else self._avoided_nodes.discard)(node)
        if self.pods.set_avoided_taints(exist=bool(self._avoided_nodes)):
            self.gangs.changed |= self.gangs.gangs.keys()

    def put_csi_node(self, node: CsiNode) -> None:
        self._csi_nodes[node.metadata.name] = node
        self._changed_nodes.add(node.metadata.name)

    def remove_csi_node(self, name: str) -> None:
        self._csi_nodes.pop(name, None)
        self._changed_nodes.add(name)

    # Volumes

    def put_claim(self, claim: PersistentVolumeClaim) -> None:
        self._claims[claim.metadata.key] = claim
        self._requests_changed(self.pods.volumes_changed((claim.metadata.key,)))

    def remove_claim(self, key: str) -> None:
        self._claims.pop(key, None)
        self._requests_changed(self.pods.volumes_changed((key,)))

    def put_volume(self, volume: PersistentVolume) -> None:
        self._volumes[volume.metadata.name] = volume
        reference = volume.spec.claim_ref
        if reference is not None:
            key = f"{reference.namespace}/{reference.name}"
            self._requests_changed(self.pods.volumes_changed((key,)))

    def remove_volume(self, name: str) -> None:
        self._volumes.pop(name, None)
        keys = [key for key, claim in self._claims.items() if claim.spec.volume_name == name]
        self._requests_changed(self.pods.volumes_changed(keys))

    def put_class(self, storage: StorageClass) -> None:
        self._classes[storage.metadata.name] = storage
        self._requests_changed(self.pods.volumes_changed(self._claims))

    # Queues, priorities, budgets, namespaces

    def put_queue(self, queue: KubeQueue, *, is_volcano: bool) -> None:
        name, read = queue.metadata.name, cluster_queue(queue, is_volcano=is_volcano)
        if self.queues.get(name) != read:  # its status changes often
            self.queues[name] = read
            self._queues_changed()

    def remove_queue(self, name: str) -> None:
        self.queues.pop(name, None)
        self._queues_changed()

    def _queues_changed(self) -> None:
        self.state.set_queues(usable_queues(self.queues))
        self.gangs.changed |= self.gangs.gangs.keys()

    def put_priority_class(self, given: PriorityClass) -> None:
        self._priorities[given.metadata.name] = given.value
        self.gangs.changed |= self.gangs.gangs.keys()

    def put_budget(self, budget: PodDisruptionBudget) -> None:
        self._budgets[budget.metadata.key] = budget
        self._budgets_changed(budget.metadata.namespace)

    def remove_budget(self, key: str) -> None:
        self._budgets.pop(key, None)
        self._budgets_changed(key.partition("/")[0])

    def _budgets_changed(self, namespace: str) -> None:
        self._allowed = DisruptionBudgets(self._budgets.values())
        self.gangs.changed |= self.gangs.in_namespace(namespace)

    @property
    def budgets(self) -> DisruptionBudgets:
        return self._allowed

    def put_namespace(self, namespace: KubeNamespace) -> None:
        name, before = namespace.metadata.name, self._namespaces.get(namespace.metadata.name)
        self._namespaces[name] = namespace
        self._namespace_labels[name] = namespace.metadata.labels
        if before is None or before.metadata.labels != namespace.metadata.labels:
            self._requests_changed(self.pods.namespaces_changed())
        self.gangs.changed |= self.gangs.in_namespace(name)

    @property
    def namespaces(self) -> Collection[str]:
        return self._namespaces.keys()

    # The planner state

    @property
    def has_changed(self) -> bool:
        """Whether there is anything to translate."""
        return bool(self.gangs.changed or self._changed_nodes)

    @property
    def has_eligible_gangs(self) -> bool:
        """Whether a plan could place a gang: not while their pods are still being created."""
        pending = self.state.pending
        return len(pending.gangs) > len(pending.ineligible)

    def refresh(self) -> None:
        """Translate everything that has changed since the last call."""
        if self.state.table.computed > self._answer_limit:
            self._make_anew()
        before = self._changed_nodes.copy()
        self._put_nodes(before)
        while self.gangs.changed:
            job = self.gangs.changed.pop()
            gang = self.gangs.gangs.get(job)
            if gang is None or not self.gangs.update(gang):
                self._forget(job)
            else:
                self._translate(gang)
        self._put_nodes(self._changed_nodes - before)
        for name in self._changed_nodes - self.nodes.keys():
            self.state.remove_node(name)
            self.overcommitted.discard(name)
        self._set_attach_limits()
        self._changed_nodes.clear()
        self.pods.settle(self.state.table.index)

    def _put_nodes(self, names: set[str]) -> None:
        # By name, so that the same cluster always gives the same placement.
        for name in sorted(names & self.nodes.keys()):
            row = node_row(self.nodes[name], self.pods.taking(name))
            (self.overcommitted.add if is_overcommitted(row) else self.overcommitted.discard)(name)
            self.state.put_node(name, row)

    def _make_anew(self) -> None:
        """Forget what was computed for pods that are gone."""
        queues = self.state.queues
        self.pods.forget_places()
        self.state = PlannerState(POLICY)
        self.state.set_placed(self.pods.placed)
        self.state.set_queues(queues)
        self._pending_jobs.clear()
        self._changed_nodes |= self.nodes.keys()
        self.gangs.changed |= self.gangs.gangs.keys()
        self._answer_limit *= 2

    def _set_attach_limits(self) -> None:
        positions = self.state.table.index
        if self._changed_nodes & self._csi_nodes.keys() or len(self.pods.placed.attach_limits):
            self.pods.placed.attach_limits = {
                positions[name]: limits
                for name, node in self._csi_nodes.items()
                if name in positions and (limits := attach_limits(node))
            }

    def _forget(self, job: str) -> None:
        for each in self._pending_jobs.pop(job, ()):
            self.state.remove_pending(each)
        self.state.remove_running(job)

    def _drop_lost_places(self, gang: KubeGang) -> None:
        """Give up held places of pods that are not pending any more, or on nodes that are gone."""
        pending = {member.number: member.pod.metadata.uid for member in gang.pending}
        lost = [n for n, node in gang.held.items() if n not in pending or node not in self.nodes]
        for number in lost:
            node = gang.held.pop(number)
            if number in pending:
                self.pods.release((pending[number],))
            self._changed_nodes.add(node)

    def _translate(self, gang: KubeGang) -> None:
        if gang.held:
            self._drop_lost_places(gang)
        given = self._plan_of(gang)
        gang.queue, gang.group_priority = given.queue, given.priority
        own = [m for m in gang.members.values() if self.pods.is_own(m.pod)]
        pending = pending_gangs(gang, given) if own else []
        pending = [admitted(each, self.state.queues) for each in pending]
        jobs = {each.job for each in pending}
        for job in self._pending_jobs.get(gang.job, set()) - jobs:
            self.state.remove_pending(job)
        for each in pending:
            self.state.put_pending(each)
        self._pending_jobs[gang.job] = jobs
        numbers = {member.number for member in own if member.node in self.nodes}
        running = running_gang(gang, given, numbers)
        if running is None:
            self.state.remove_running(gang.job)
        else:
            self.state.put_running(running)

    def queue_of(self, gang: KubeGang) -> QueueChoice:
        """The queue of a gang, or why it has none."""
        pods = [*gang.pods()]
        namespace = self._namespaces.get(pods[0].metadata.namespace)
        annotations = {} if namespace is None else namespace.metadata.annotations
        return queue_of(pods, gang.terms.queue, annotations, self.queues, self.state.queues)

    def pending_jobs(self, gang: KubeGang) -> set[str]:
        """The ids under which the planner has the pending pods of a gang."""
        return self._pending_jobs.get(gang.job, set())

    def _plan_of(self, gang: KubeGang) -> GangPlan:
        terms, queue = gang.terms, self.queue_of(gang)
        names, disagreement = self.gangs.partners(gang)
        obstacle = self._obstacle_of(terms, queue.problem)
        pack = terms.pack or _own_topology(gang)
        bound = gang.bound
        limited = [member for member in bound if self._allowed.may_concern(member.pod)]
        return GangPlan(
            queue=queue.name,
            priority=self._priorities.get(terms.priority_class or "", terms.priority),
            obstacle=obstacle or self._pod_obstacle(gang) or disagreement,
            group=names,
            pack=pack,
            domains={} if pack is None else self._domains(pack.by, bound),
            unevictable=frozenset(
                member.number for member in limited if not self._allowed.may_ever_go(member.pod)
            ),
            is_evictable=self._allowed.allow(member.pod for member in limited),
            guards={
                member.number: guard
                for member in limited
                if (guard := self._allowed.guard_of(member.pod)) is not None
            },
            victims=self.victims_of(gang),
        )

    def refusal_of_group(self, group: GroupDeclaration) -> NotSchedulable | None:
        """Why a PodGroup without pods cannot be served; None if it can."""
        terms = gang_terms(group.key, (), group)
        queue = terms.queue or DEFAULT
        problem = queue_refusal(queue, group.key.namespace, self.queues, self.state.queues)
        obstacle = self._obstacle_of(terms, problem)
        return obstacle or beyond_limits(terms.gate, queue, self.state.queues)

    def _obstacle_of(self, terms: GangTerms, queue_problem: str | None) -> NotSchedulable | None:
        """What is wrong with a gang or its queue."""
        if problem := terms.problem or self._missing_class(terms) or queue_problem:
            return NotSchedulable(NOT_READY, problem)
        if terms.unsupported is not None:
            cure = "remove it, or leave the gang to another scheduler"
            return NotSchedulable(NOT_SUPPORTED, f"{terms.unsupported}; {cure}")
        return None

    def _missing_class(self, terms: GangTerms) -> str | None:
        """The PriorityClass that a PodGroup names, if there is none."""
        name = terms.priority_class
        if name is None or name in self._priorities or terms.priority is not None:
            return None
        return f"PriorityClass {name}, which the PodGroup names, does not exist"

    def _pod_obstacle(self, gang: KubeGang) -> Reason | None:
        """A part of a pod that keeps it from being placed anywhere."""
        for member in gang.pending:
            name = member.pod.metadata.name
            part = unsupported_part(member.pod)
            if part is not None:
                cure = "remove it, or leave the pod to another scheduler"
                return NotSchedulable(
                    NOT_SUPPORTED, f"pod {name} uses {part}: not supported; {cure}"
                )
            if gang.is_alone and (key := nameless_gang_key(member.pod)):
                return NotSchedulable(
                    NOT_READY,
                    f"pod {name} has the key {key} and no key that names its gang; add one, or"
                    " remove the key",
                )
            volumes = self.pods.volumes_of(member.pod.metadata.uid)
            if volumes.obstacle is not None:
                kind = NOT_READY if volumes.is_supported else NOT_SUPPORTED
                return NotSchedulable(kind, f"pod {name}: {volumes.obstacle}")
        return None

    def _domains(self, label: str, bound: Iterable[GangMember]) -> dict[str, str]:
        nodes = {member.node for member in bound} & self.nodes.keys()
        labels = {name: self.nodes[name].metadata.labels for name in nodes}
        return {name: each[label] for name, each in labels.items() if label in each}

    def unmet_rules(self, gang: KubeGang) -> str | None:
        """Which rules of a pending pod of the gang exclude how many nodes; None if every pod has a
        node that satisfies its rules."""
        for member in gang.pending:
            nodes = member.request.nodes
            if isinstance(nodes, PodNodes) and not self.state.table.matching(nodes).any():
                pod = "the pod" if gang.is_alone else f"pod {member.pod.metadata.name}"
                return f"no node can run {pod}: {self._node_rules.unmet(nodes, self._now)}"
        return None

    def victims_of(self, gang: KubeGang) -> tuple[str, ...]:
        """The tasks that are being evicted for a gang."""
        tasks = []
        for uid in self._victims.get(gang.name, ()):
            victim = self.gangs.gang_of(uid)
            if victim is not None:
                tasks.append(f"{victim.job}.{victim.number_of(uid)}")
        return tuple(sorted(tasks))

    def victims(self) -> dict[str, list[KubePod]]:
        """By the name of a preemptor: the bound pods of this scheduler that are evicted for it."""
        victims = {}
        for name, uids in self._victims.items():
            pods = [pod for uid in uids if (pod := self.pods.pods[uid]).spec.node_name]
            victims[name] = [pod for pod in pods if self.pods.is_own(pod)]
        return victims

    def pod_name(self, task: str) -> str:
        """`namespace/name` of the pod that the planner knows by this id; the id if it is gone."""
        job, _, number = task.rpartition(".")
        gang = self.gangs.gangs.get(job)
        member = None if gang is None else gang.members.get(int(number))
        return task if member is None else member.pod.metadata.key


def _is_foreign_member(pod: KubePod) -> bool:
    """Whether another scheduler has bound a pod that belongs to a gang. It counts, but it is never
    evicted."""
    return bool(pod.spec.node_name) and pod_declaration(pod) is not None


def _own_topology(gang: KubeGang) -> Pack | None:
    """The topology in whose one domain all pods of a gang want to be, by their own affinity."""
    members = gang.of(MemberState.PENDING)
    if len(members) < 2:
        return None
    labels: set[str | None] = set()
    for member in members:
        traits = member.request.traits
        affinities = traits.rules.affinities if isinstance(traits, PodTraits) else None
        is_own = affinities is not None and affinities.is_own and len(affinities.keys) == 1
        labels.add(affinities.keys[0] if affinities is not None and is_own else None)
    label = labels.pop()
    return None if labels or label is None else Pack(label, PackMode.REQUIRE)
