"""Queues of the cluster: those of Phalanx and those of Volcano, read by the same code as files."""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from msgspec.structs import replace

from phalanx.core.errors import Invalid, NotPermitted
from phalanx.core.model import Queue
from phalanx.core.queues import at_or_above, check_namespace_of_queue
from phalanx.core.reasons import NotSchedulable, amount_in_words
from phalanx.kube.gangs.gang_translation import NOT_READY, QUEUE_LIMIT
from phalanx.kube.gangs.unused_keys import QUEUE_LABEL
from phalanx.kube.objects.gang import KubeQueue
from phalanx.kube.objects.metadata import ObjectReference
from phalanx.kube.objects.pod import KubePod
from phalanx.manifest.container import with_native_names
from phalanx.manifest.problems import ProblemList, SourceLocation
from phalanx.manifest.queue import VOLCANO, native_queue, volcano_queue
from phalanx.manifest.strict_mapping import StrictMapping
from phalanx.plan.model import PendingGang

DEFAULT = "default"
#: API version of the queues of Phalanx.
NATIVE = "phalanx.dev/v1alpha1"
#: Fields whose values are names in camel case.
_CHOICES = ("preemptWithinQueue", "reclaimFromSiblings")


class ClusterQueue(NamedTuple):
    """A queue, or the problem that makes it unusable."""

    queue: Queue
    problem: str | None = None
    notes: tuple[str, ...] = ()  #: fields that have no effect
    target: ObjectReference | None = None  #: as the object of events


def cluster_queue(given: KubeQueue, *, is_volcano: bool) -> ClusterQueue:
    """The queue of an API object."""
    name, problems = given.metadata.name, ProblemList(ignore_unsupported=True)
    source = SourceLocation(f"Queue {name}")
    spec = dict(given.spec)
    version = VOLCANO if is_volcano else NATIVE
    target = ObjectReference(version, "Queue", "", name, given.metadata.uid)
    if is_volcano:
        document = {"metadata": {"name": name}, "spec": spec}
        fields = StrictMapping(document, source, problems)
        read = volcano_queue(fields)
    else:
        spec = {_snake_case(field): _native(field, value) for field, value in spec.items()}
        fields = StrictMapping({"name": name, **spec}, source, problems)
        read = native_queue(fields)
    fields.report_unread()
    if read.queue.consolidation:
        note = "has no effect on Kubernetes: pods are never moved"
        problems.add_note(source.at("spec", "consolidation"), note)
    try:
        problems.raise_problems()
    except Invalid as invalid:
        problem = str(invalid.problems[0]).removeprefix(f"{source.source}: ")
        return ClusterQueue(Queue(name), problem=problem, target=target)
    notes = tuple(str(each).removeprefix(f"{source.source}: ") for each in problems.warnings)
    is_closed = is_volcano and given.status.get("state") in ("Closing", "Closed")
    queue = replace(read.queue, stopped=True) if is_closed else read.queue
    return ClusterQueue(queue, notes=notes, target=target)


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


def admitted(gang: PendingGang, queues: Mapping[str, Queue]) -> PendingGang:
    """The gang, with an obstacle if its queue, or a queue above, does not admit it at all: the
    gang's minimum exceeds a limit, or its priority is too high."""
    if gang.ineligible is not None or gang.is_repair:
        return gang
    subject = "the pod" if gang.size == 1 else "the gang"
    for queue in at_or_above(queues, gang.queue):
        highest = queue.max_priority
        if highest is not None and gang.priority > highest:
            message = (
                f"priority {gang.priority} exceeds the maxPriority of queue {queue.name}, which is"
                f" {highest}; use a lower PriorityClass, or choose another queue"
            )
            return replace(gang, ineligible=NotSchedulable(NOT_READY, message))
        for resource, limit in queue.limit.items():
            least = _least(gang, resource)
            if least > limit:
                return replace(gang, ineligible=_above_limit(subject, queue, resource, least))
    return gang


def beyond_limits(
    amounts: Iterable[tuple[str, int]], queue: str, queues: Mapping[str, Queue]
) -> NotSchedulable | None:
    """The first limit, of a queue or of one above it, that a gang with these amounts exceeds."""
    needed = dict(amounts)
    for each in at_or_above(queues, queue):
        for resource, limit in each.limit.items():
            if needed.get(resource, 0) > limit:
                return _above_limit("the gang", each, resource, needed[resource])
    return None


def _above_limit(subject: str, queue: Queue, resource: str, amount: int) -> NotSchedulable:
    most = amount_in_words(resource, queue.limit[resource], unit=False)
    message = (
        f"never fits: {subject} needs {amount_in_words(resource, amount)}, the limit of queue"
        f" {queue.name} is {most}; raise the limit, request less, or choose another queue"
    )
    return NotSchedulable(QUEUE_LIMIT, message)


def _least(gang: PendingGang, resource: str) -> int:
    """The least amount of a resource with which the gang can start."""
    amounts = [
        (dict(role.request.resources).get(resource, 0), role.need, len(role.tasks))
        for role in gang.roles
    ]
    least = sum(amount * need for amount, need, _ in amounts)
    rest = gang.need - sum(need for _, need, _ in amounts)
    for amount, need, tasks in sorted(amounts):
        more = max(0, min(rest, tasks - need))
        least += amount * more
        rest -= more
    return least


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
        label = pod.metadata.labels.get(QUEUE_LABEL)
        if label is not None:
            named.setdefault(label, pod.metadata.name)
    if len(named) > 1:
        (one, first), (other, second), *_ = named.items()
        return QueueChoice(
            DEFAULT,
            f"pod {first} is in queue {one}, but pod {second} in queue {other}: all pods of a gang"
            " must be in one queue",
        )
    name = next(iter(named), None) or group_queue or annotations.get(QUEUE_LABEL) or DEFAULT
    return QueueChoice(name, queue_refusal(name, namespace, queues, usable))


def queue_refusal(
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
        return f"queue {name} does not exist{_nearest(name, queues)}"
    return f"queue {name} cannot be used: {queue_problem(name, queues, usable)}"


def queue_problem(
    name: str, queues: Mapping[str, ClusterQueue], usable: Mapping[str, Queue]
) -> str | None:
    """Why a queue cannot be used; None if it can. The queues above it are named up to the first
    that is at fault."""
    if name in usable:
        return None
    known = queues.get(name)
    if known is None:
        return f"it does not exist{_nearest(name, queues)}"
    if known.problem is not None:
        return known.problem
    parent = known.queue.parent or ""
    if parent not in queues:
        return f"its parent {parent} does not exist{_nearest(parent, queues.keys() - {name})}"
    return f"its parent {parent} cannot be used: {_fault_above(parent, queues)}"


def _fault_above(name: str, queues: Mapping[str, ClusterQueue]) -> str:
    """The first problem of a queue or of the queues above it."""
    path = [name]
    while (known := queues[path[-1]]).problem is None:
        parent = known.queue.parent or ""
        if parent in path:
            return f"parents form a cycle: {', '.join(path)}"
        if parent not in queues:
            return f"queue {parent}, above it, does not exist{_nearest(parent, queues)}"
        path.append(parent)
    return known.problem


def _nearest(name: str, queues: Iterable[str]) -> str:
    near = get_close_matches(name, [*queues, DEFAULT], n=1)
    return f"; did you mean {near[0]}?" if near else ""
