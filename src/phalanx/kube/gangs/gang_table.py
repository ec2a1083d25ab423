"""Pods and PodGroups, grouped into gangs, and the gangs that start together.

Pods may arrive before their PodGroup, and a pod may change its gang while it is pending. A pod
that is bound stays in the gang in which it was bound.
"""

from collections.abc import Iterator
from typing import NamedTuple

from phalanx.core.reasons import NotSchedulable, Reason
from phalanx.kube.api.resources import GroupApi, pod_groups
from phalanx.kube.gangs.gang import (
    GangMember,
    KubeGang,
    MemberState,
    member_state,
    micros,
    oldest,
)
from phalanx.kube.gangs.gang_terms import (
    ALONE,
    OUTPUT_LABEL,
    GangKey,
    GroupDeclaration,
    PodDeclaration,
    gang_terms,
    group_declaration,
    pod_declaration,
    task_of,
)
from phalanx.kube.gangs.gang_translation import NOT_READY, half_bound, is_satisfied
from phalanx.kube.gangs.unused_keys import QUEUE_LABEL, ReadElsewhere, unused_key_notes
from phalanx.kube.model.pod_table import PodTable
from phalanx.kube.model.refused_nodes import RefusedNodes
from phalanx.kube.objects.gang import KubePodGroup
from phalanx.kube.objects.metadata import ObjectReference
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.rules.node_predicate import without_nodes
from phalanx.manifest.gang_keys import GangFamily

#: PodGroups of scheduler-plugins, which the scheduler also creates itself.
CURRENT_API = GroupApi(pod_groups("scheduling.x-k8s.io", "v1alpha1"), has_status=True)


class GroupObject(NamedTuple):
    """A PodGroup as it was read."""

    group: KubePodGroup
    api: GroupApi

    @property
    def target(self) -> ObjectReference:
        """The PodGroup as the object of an event."""
        metadata = self.group.metadata
        version = self.api.resource.api_version
        return ObjectReference(version, "PodGroup", metadata.namespace, metadata.name, metadata.uid)


class GangTable:
    def __init__(self, pods: PodTable, refused: RefusedNodes) -> None:
        self._pods = pods
        self._refused = refused
        self.gangs: dict[str, KubeGang] = {}
        #: By uid: the id of the pod's gang, and what the pod declares about it.
        self._job_of: dict[str, str] = {}
        self._declared: dict[str, PodDeclaration | None] = {}
        self._keys: dict[str, GangKey] = {}
        self._groups: dict[GangKey, GroupDeclaration] = {}
        #: The PodGroup of each key, by API group: two of them have PodGroups of one family.
        self._objects: dict[GangKey, dict[str, GroupObject]] = {}
        #: Names of gangs → ids of gangs with that name; and of gangs that name it as a partner.
        self._by_name: dict[str, set[str]] = {}
        self._named_by: dict[str, set[str]] = {}
        #: Pods by the gang that they name, whether it is one or not.
        self._naming: dict[GangKey, set[str]] = {}
        #: PodGroups that the scheduler has created itself.
        self.outputs: set[GangKey] = set()
        #: Gangs whose last round of binds stopped half way.
        self.half_bound: set[str] = set()
        #: Gangs of which a part is read differently than it is written.
        self.noted: set[str] = set()
        self.changed: set[str] = set()

    # Writing

    def put_pod(self, pod: KubePod) -> None:
        """Add a pod, or its new version, to its gang."""
        uid = pod.metadata.uid
        is_bound = bool(self._pods.node_of(uid)) and uid in self._job_of
        declared = self._declared[uid] if is_bound else pod_declaration(pod)
        before = self._declared.get(uid)
        if before is not None and (declared is None or declared.key != before.key):
            self._naming[before.key].discard(uid)
        self._declared[uid] = declared
        if declared is not None:
            self._naming.setdefault(declared.key, set()).add(uid)
        self._assign(uid, keep=is_bound)

    def put_alike(self, pod: KubePod) -> None:
        """Take over a new version of a pod that is the same for every plan."""
        gang = self.gang_of(pod.metadata.uid)
        if gang is not None:
            gang.put_alike(pod)

    def remove_pod(self, uid: str) -> None:
        declared = self._declared.pop(uid, None)
        if declared is not None:
            self._naming[declared.key].discard(uid)
        self._leave(uid)

    def put_group(
        self, group: KubePodGroup, family: GangFamily, api: GroupApi = CURRENT_API
    ) -> None:
        key = GangKey(family, group.metadata.namespace, group.metadata.name)
        self._objects.setdefault(key, {})[api.resource.group] = GroupObject(group, api)
        self._declare_group(key)

    def remove_group(self, key: GangKey, api_group: str = CURRENT_API.resource.group) -> None:
        objects = self._objects.get(key, {})
        objects.pop(api_group, None)
        if not objects:
            self._objects.pop(key, None)
        self._declare_group(key)

    def _declare_group(self, key: GangKey) -> None:
        """Take over what the PodGroup of a key declares now, unless it is an output."""
        item = self.object_of(key)
        before = self._groups.pop(key, None)
        self.outputs.discard(key)
        if item is not None and OUTPUT_LABEL in item.group.metadata.labels:
            self.outputs.add(key)
        elif item is not None:
            self._groups[key] = group_declaration(item.group, key.family)
        if self._groups.get(key) != before:
            self._group_changed(key)

    def object_of(self, key: GangKey) -> GroupObject | None:
        """The PodGroup of a key. The current API comes before the older one of the same family."""
        objects = self._objects.get(key, {})
        current = objects.get(CURRENT_API.resource.group)
        return current or next(iter(objects.values()), None)

    def group_keys(self) -> Iterator[GangKey]:
        """Where there are PodGroups."""
        return iter(self._objects)

    def _group_changed(self, key: GangKey) -> None:
        for uid in [*self._naming.get(key, ())]:
            self._assign(uid, keep=bool(self._pods.node_of(uid)))
        if key.job in self.gangs:
            self.changed.add(key.job)

    def _assign(self, uid: str, *, keep: bool) -> None:
        """Put a pod into the gang that it declares now."""
        pod, declared = self._pods.pods[uid], self._declared[uid]
        group = None if declared is None else self._groups.get(declared.key)
        is_alone = declared is None or (group is not None and not group.is_gang)
        job = f"pod:{uid}" if declared is None or is_alone else declared.key.job
        job = self._job_of.get(uid, job) if keep else job
        if self._job_of.get(uid) not in (None, job):
            self._leave(uid)
        gang = self.gangs.get(job)
        if gang is None:
            name = pod.metadata.key if declared is None or is_alone else declared.key.full_name
            gang = self.gangs[job] = KubeGang(job, name, is_alone=job.startswith("pod:"))
            self._by_name.setdefault(name, set()).add(job)
            if declared is not None and not gang.is_alone:
                self._keys[job] = declared.key
        self._job_of[uid] = job
        gang.number_of(uid)
        self.changed.add(job)

    def _leave(self, uid: str) -> None:
        job = self._job_of.pop(uid, None)
        if job is None:
            return
        gang = self.gangs[job]
        gang.forget(uid)
        self.changed.add(job)

    # Reading

    def gang_of(self, uid: str) -> KubeGang | None:
        return self.gangs.get(self._job_of.get(uid, ""))

    def named(self, name: str) -> set[str]:
        """The ids of the gangs with this name."""
        return self._by_name.get(name, set())

    def in_namespace(self, namespace: str) -> set[str]:
        """The ids of the gangs of a namespace."""
        return {gang.job for gang in self.gangs.values() if _namespace(gang.name) == namespace}

    def group_of(self, gang: KubeGang) -> GroupDeclaration | None:
        """What the gang's PodGroup declares; None if there is none."""
        key = self._keys.get(gang.job)
        return None if key is None else self._groups.get(key)

    def key_of(self, gang: KubeGang) -> GangKey | None:
        """Where the gang's PodGroup is; None for a pod without a gang."""
        return self._keys.get(gang.job)

    def group_target(self, gang: KubeGang) -> ObjectReference | None:
        """The PodGroup of a gang as the object of events; None if there is none."""
        key = self._keys.get(gang.job)
        item = None if key is None else self.object_of(key)
        return None if item is None else item.target

    def groups_without_pods(self) -> Iterator[GroupDeclaration]:
        """PodGroups whose pods have not been created."""
        return (each for key, each in self._groups.items() if not self._naming.get(key))

    def update(self, gang: KubeGang) -> bool:
        """Bring a gang up to date with its pods; False if it has none and was removed."""
        uids = gang.uids()
        if not uids:
            self._remove(gang)
            return False
        before = gang.terms, gang.satisfied
        gang.version += 1
        gang.refused = ()
        gang.set_members(self._member(gang, uid) for uid in uids)
        gang.recall_hold()
        declared = [each for uid in uids if (each := self._declared.get(uid)) is not None]
        key = self._keys.get(gang.job)
        group = None if key is None else self._groups.get(key)
        gang.terms = ALONE if key is None else gang_terms(key, declared, group)
        gang.created_at = (
            oldest(gang.members.values()) if group is None else micros(group.created_at)
        )
        gang.satisfied = is_satisfied(gang)
        (self.half_bound.add if half_bound(gang) else self.half_bound.discard)(gang.job)
        gang.notes = (*gang.terms.notes, *_unused_key_notes(gang))
        (self.noted.add if gang.notes else self.noted.discard)(gang.job)
        if before != (gang.terms, gang.satisfied):
            self._partners_changed(gang, before[0].group)
        return True

    def _member(self, gang: KubeGang, uid: str) -> GangMember:
        pod, node = self._pods.pods[uid], self._pods.node_of(uid)
        request, state = self._pods.request(uid), member_state(pod, node)
        if state is MemberState.PENDING and (refused := self._refused.of(pod)):
            gang.refused = tuple(sorted({*gang.refused, *refused}))
            request = without_nodes(request, refused)
        return GangMember(pod, gang.number_of(uid), request, task_of(pod) or "pod", node, state)

    def _remove(self, gang: KubeGang) -> None:
        del self.gangs[gang.job]
        self.half_bound.discard(gang.job)
        self.noted.discard(gang.job)
        self._keys.pop(gang.job, None)
        self._by_name[gang.name].discard(gang.job)
        if not self._by_name[gang.name]:
            del self._by_name[gang.name]
        self._partners_changed(gang, gang.terms.group)
        for name in gang.terms.group:
            self._named_by.get(name, set()).discard(gang.job)

    # Gangs that start together

    def _partners_changed(self, gang: KubeGang, named_before: tuple[str, ...]) -> None:
        """Look again at the gangs that start with this one."""
        for name in named_before:
            self._named_by.get(name, set()).discard(gang.job)
        if gang.job in self.gangs:
            for name in gang.terms.group:
                self._named_by.setdefault(name, set()).add(gang.job)
        names = {*named_before, *gang.terms.group}
        related = {job for name in names for job in self._by_name.get(name, ())}
        related |= self._named_by.get(gang.name, set())
        self.changed |= {job for job in related if job in self.gangs and job != gang.job}

    def partners(self, gang: KubeGang) -> tuple[tuple[str, ...], Reason | None]:
        """The names of the gangs that start with a gang and have not started; and the reason if
        one of them does not agree to start with it.

        Gangs of one namespace start together if either names the other. In different namespaces
        both must name each other, so that no team can hold up another.
        """
        names: set[str] = set()
        for name in gang.terms.group:
            if name == gang.name:
                continue
            others = [self.gangs[job] for job in self._by_name.get(name, ())]
            if any(other.satisfied for other in others):
                continue
            for other in others:
                if not _is_mutual(gang, other):
                    message = f"gang {name} does not name {gang.name} in its groups"
                    return (), NotSchedulable(NOT_READY, message)
            names.add(name)
        for job in self._named_by.get(gang.name, ()):
            other = self.gangs[job]
            is_near = _namespace(other.name) == _namespace(gang.name)
            if other is not gang and is_near and not other.satisfied:
                names.add(other.name)
        return tuple(sorted(names)), None


def _unused_key_notes(gang: KubeGang) -> tuple[str, ...]:
    """Notes about keys of other projects. The pods of a gang are alike: the first one is enough."""
    pod = next(gang.pods())
    has_queue = gang.terms.queue is not None or QUEUE_LABEL in pod.metadata.labels
    return unused_key_notes(pod, ReadElsewhere(has_queue, not gang.is_alone))


def _is_mutual(gang: KubeGang, other: KubeGang) -> bool:
    is_near = _namespace(gang.name) == _namespace(other.name)
    return is_near or gang.name in other.terms.group


def _namespace(name: str) -> str:
    return name.partition("/")[0]
