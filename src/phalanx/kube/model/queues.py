"""Queues of the cluster: those of Phalanx and those of Volcano, read by the same code as files."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from phalanx.core.errors import Invalid, NotPermitted
from phalanx.core.model import Queue
from phalanx.core.queues import check_namespace_of_queue
from phalanx.kube.objects.gang import KubeQueue
from phalanx.kube.objects.pod import KubePod
from phalanx.manifest.container import with_native_names
from phalanx.manifest.problems import ProblemList, SourceLocation
from phalanx.manifest.queue import native_queue, volcano_queue
from phalanx.manifest.strict_mapping import StrictMapping

#: Label of a pod and annotation of a namespace: the queue.
QUEUE = "phalanx.dev/queue"
DEFAULT = "default"
#: Fields whose values are names in camel case.
_CHOICES = ("preemptWithinQueue", "reclaimFromSiblings")


class ClusterQueue(NamedTuple):
    """A queue, or the problem that makes it unusable."""

    queue: Queue
    problem: str | None = None


def cluster_queue(given: KubeQueue, *, is_volcano: bool) -> ClusterQueue:
    """The queue of an API object."""
    name, problems = given.metadata.name, ProblemList(ignore_unsupported=True)
    source = SourceLocation(f"Queue {name}")
    spec = dict(given.spec)
    if is_volcano:
        document = {"metadata": {"name": name}, "spec": spec}
        read = volcano_queue(StrictMapping(document, source, problems))
    else:
        spec = {_snake_case(field): _native(field, value) for field, value in spec.items()}
        read = native_queue(StrictMapping({"name": name, **spec}, source, problems))
    try:
        problems.raise_problems()
    except Invalid as invalid:
        return ClusterQueue(Queue(name), problem=str(invalid.problems[0]))
    return ClusterQueue(read.queue)


def _native(field: str, value: Any) -> Any:
    """The value of a field of the API as a file has it."""
    if field in ("quota", "limit"):
        return with_native_names(value)
    return _snake_case(value) if field in _CHOICES and isinstance(value, str) else value


def _snake_case(name: str) -> str:
    """`lower_priority` for `LowerPriority`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def usable_queues(queues: Mapping[str, ClusterQueue]) -> dict[str, Queue]:
    """The queues that are valid, as are all queues above them, with the default queue."""
    usable: dict[str, Queue] = {DEFAULT: Queue(DEFAULT)}
    left = {name: each.queue for name, each in queues.items() if each.problem is None}
    while True:
        ready = [name for name, each in left.items() if each.parent in (None, *usable)]
        if not ready:
            return usable
        usable |= {name: left.pop(name) for name in ready}


class QueueChoice(NamedTuple):
    """The queue of a gang, or why it has none."""

    name: str
    problem: str | None = None


def queue_of(
    pods: Iterable[KubePod],
    group_queue: str | None,
    annotations: Mapping[str, str],
    queues: Mapping[str, ClusterQueue],
    usable: Mapping[str, Queue],
) -> QueueChoice:
    """The queue of a gang: that of its pods' label, of its PodGroup, or of its namespace, whose
    annotations are given."""
    named: dict[str, str] = {}
    namespace = ""
    for pod in pods:
        namespace = pod.metadata.namespace
        label = pod.metadata.labels.get(QUEUE)
        if label is not None:
            named.setdefault(label, pod.metadata.name)
    if len(named) > 1:
        (one, first), (other, second), *_ = named.items()
        return QueueChoice(
            DEFAULT,
            f"pod {first} is in queue {one}, but pod {second} in queue {other}: all pods of a gang"
            " must be in one queue",
        )
    name = next(iter(named), None) or group_queue or annotations.get(QUEUE) or DEFAULT
    return QueueChoice(name, _problem(name, namespace, queues, usable))


def _problem(
    name: str,
    namespace: str,
    queues: Mapping[str, ClusterQueue],
    usable: Mapping[str, Queue],
) -> str | None:
    """Why a namespace cannot use a queue."""
    if name in usable:
        try:
            check_namespace_of_queue(usable, name, namespace)
        except NotPermitted as refused:
            return str(refused)
        return None
    if name not in queues:
        return f"queue {name} does not exist"
    problem = queues[name].problem or f"its parent {queues[name].queue.parent} cannot be used"
    return f"queue {name} is not valid: {problem}"
