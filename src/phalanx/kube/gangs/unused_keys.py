"""Keys of other projects on pods, which this scheduler does not read although they change where or
with which others a pod runs: a note names each, and what to do."""

from typing import NamedTuple

from phalanx.kube.objects.pod import KubePod

QUEUE_LABEL = "phalanx.dev/queue"
#: Label of pods that Kueue admits itself: it has read its own keys.
_MANAGED_BY_KUEUE = "kueue.x-k8s.io/managed"

_QUEUE = f"name the queue with the label {QUEUE_LABEL}"
_GANG = (
    "declare the gang with the labels pod-group.scheduling.sigs.k8s.io/name and"
    " pod-group.scheduling.sigs.k8s.io/min-available"
)
_TOPOLOGY = "use a required pod affinity with the topology as topologyKey"
_KOORDINATOR = "remove it, or leave the pod to koord-scheduler"
_VOLCANO = "remove it, or leave the pod to Volcano"
#: Beginnings of keys → what to do instead.
_CURES = {
    "kueue.x-k8s.io/queue-name": _QUEUE,
    "kueue.x-k8s.io/pod-group-name": _GANG,
    "kueue.x-k8s.io/podset-required-topology": _TOPOLOGY,
    "kueue.x-k8s.io/podset-preferred-topology": _TOPOLOGY,
    "scheduling.volcano.sh/queue-name": _QUEUE,
    "volcano.sh/queue-name": _QUEUE,
    "scheduling.volcano.sh/group-min-member": "set minMember of a PodGroup",
    "volcano.sh/jdb-": "use a PodDisruptionBudget",
    "volcano.sh/revocable-zone": _VOLCANO,
    "volcano.sh/numa-topology-policy": _VOLCANO,
    "quota.scheduling.koordinator.sh/name": _QUEUE,
    "scheduling.koordinator.sh/": _KOORDINATOR,
    "kai.scheduler/queue": _QUEUE,
    "runai/queue": _QUEUE,
    "yunikorn.apache.org/queue": _QUEUE,
    "yunikorn.apache.org/task-group": _GANG,
}
_PREFIXES = tuple(_CURES)


class ReadElsewhere(NamedTuple):
    """What is known about a pod besides these keys."""

    has_queue: bool  #: something that is read names its queue
    has_gang: bool


def unused_key_notes(pod: KubePod, given: ReadElsewhere) -> tuple[str, ...]:
    """A sentence for each key that is not used and should have had an effect."""
    metadata = pod.metadata
    notes = []
    for part, keys in (("labels", metadata.labels), ("annotations", metadata.annotations)):
        for key in keys:
            if key.startswith(_PREFIXES) and (cure := _cure(key, pod, given)) is not None:
                notes.append(f'pod {metadata.key}: metadata.{part}["{key}"] is not used; {cure}')
    return tuple(notes)


def _cure(key: str, pod: KubePod, given: ReadElsewhere) -> str | None:
    """What to do instead; None if nothing is lost."""
    cure = next(cure for prefix, cure in _CURES.items() if key.startswith(prefix))
    if (cure is _QUEUE and given.has_queue) or (cure is _GANG and given.has_gang):
        return None
    is_kueue = key.startswith("kueue.x-k8s.io/") and _MANAGED_BY_KUEUE in pod.metadata.labels
    return None if is_kueue and cure is not _GANG else cure
