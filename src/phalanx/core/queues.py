"""The tree of queues: its default queue, which queue stops another, their quotas, which namespaces
and priorities a queue admits, whether a change is valid."""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from phalanx.core.errors import Invalid, NotPermitted, Problem
from phalanx.core.model import Queue
from phalanx.core.spec.job import Resources, total

#: Always exists; jobs that name no queue go here.
DEFAULT = Queue(name="default")

#: Queues from the root of the tree to a leaf.
DEPTH_LIMIT = 32


def stopped_by(queues: Mapping[str, Queue], name: str) -> str | None:
    """The stopped queue at or above this one; None if jobs of this queue can start."""
    for queue in at_or_above(queues, name):
        if queue.stopped:
            return queue.name
    return None


def at_or_above(queues: Mapping[str, Queue], name: str) -> Iterator[Queue]:
    queue = queues.get(name)
    while queue is not None:
        yield queue
        queue = queues.get(queue.parent) if queue.parent is not None else None


def sides(queues: Mapping[str, Queue], first: str, second: str) -> tuple[list[Queue], list[Queue]]:
    """The queues from each of two up to, but without, their lowest common ancestor."""
    one, other = [*at_or_above(queues, first)], [*at_or_above(queues, second)]
    while one and other and one[-1] is other[-1]:
        one.pop()
        other.pop()
    return one, other


def quotas(queues: Mapping[str, Queue]) -> dict[str, Resources]:
    """The quota of every queue; of one without its own, the sum of the quotas right below it."""
    below: dict[str, list[str]] = {}
    for queue in queues.values():
        if queue.parent is not None:
            below.setdefault(queue.parent, []).append(queue.name)
    found: dict[str, Resources] = {}

    def add(name: str) -> Resources:
        if name not in found:
            found[name] = queues[name].quota or total(map(add, below.get(name, ())))
        return found[name]

    for name in queues:
        add(name)
    return found


def check_namespace_of_queue(queues: Mapping[str, Queue], name: str, namespace: str) -> None:
    """Raise NotPermitted unless this queue and every queue above it admits the namespace."""
    for queue in at_or_above(queues, name):
        if not _admits(queue, namespace):
            raise NotPermitted(
                f"namespace {namespace} may not use queue {name}; the namespaces of queue"
                f" {queue.name} are: {', '.join(queue.namespaces)}"
            )


def admits_namespace(queues: Mapping[str, Queue], name: str, namespace: str) -> bool:
    """Whether this queue and every queue above it admits the namespace."""
    return all(_admits(queue, namespace) for queue in at_or_above(queues, name))


def _admits(queue: Queue, namespace: str) -> bool:
    patterns = queue.namespaces
    return not patterns or any(fnmatchcase(namespace, pattern) for pattern in patterns)


def check_priority_in_queue(queues: Mapping[str, Queue], name: str, priority: int) -> None:
    """Raise NotPermitted if this queue or a queue above it admits only lower priorities."""
    for queue in at_or_above(queues, name):
        if queue.max_priority is not None and priority > queue.max_priority:
            raise NotPermitted(
                f"priority {priority} exceeds the max_priority of queue {queue.name}, which is"
                f" {queue.max_priority}; use at most that, or ask an admin to raise it"
            )


def changed(current: Mapping[str, Queue], queues: Sequence[Queue]) -> list[Queue]:
    """The queues among these that are new or differ. Raises Invalid if the result is not a tree."""
    result = {**current, **{queue.name: queue for queue in queues}}
    for queue in queues:
        above, seen = queue.parent, {queue.name}
        while above is not None:
            path = "parent" if len(queues) == 1 else f"{queue.name}.parent"
            if above in seen:
                raise Invalid(
                    [Problem(path, f"is {queue.parent}, which is below {queue.name} itself")]
                )
            if above not in result:
                raise Invalid(
                    [Problem(path, f"is {above}, which does not exist; set that queue first")]
                )
            seen.add(above)
            if len(seen) > DEPTH_LIMIT:
                raise Invalid(
                    [Problem(path, f"is more than {DEPTH_LIMIT} levels below the root; flatten it")]
                )
            above = result[above].parent
    return [queue for queue in queues if current.get(queue.name) != queue]
