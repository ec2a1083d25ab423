"""Queues of Volcano, and queues in the native form, which has `kind: Queue` next to its fields."""

from typing import Any, NamedTuple

from phalanx.core.model import Queue
from phalanx.core.spec.fields import Reader
from phalanx.core.spec.names import dns_subdomain
from phalanx.core.spec.schema import QUEUE_FIELDS
from phalanx.manifest.container import with_native_names
from phalanx.manifest.metadata import metadata_of
from phalanx.manifest.problems import ProblemList, SourceLocation
from phalanx.manifest.strict_mapping import StrictMapping

VOLCANO = "scheduling.volcano.sh/v1beta1"

#: Key of Volcano → field of the native form.
_VOLCANO_FIELDS = {
    "parent": "parent",
    "weight": "weight",
    "deserved": "quota",
    "capability": "limit",
    "reclaimable": "reclaimable",
    "priority": "priority",
}


class LocatedQueue(NamedTuple):
    queue: Queue
    location: SourceLocation


def volcano_queue(document: StrictMapping) -> LocatedQueue:
    metadata = metadata_of(document)
    document.ignore("status")
    spec = document.mapping("spec")
    spec.unsupported(["guarantee"], "is not supported; use deserved, which Phalanx serves first")
    values = {}
    for key, field in _VOLCANO_FIELDS.items():
        is_amount = field in ("quota", "limit")
        values[field] = _value(spec, key, field, with_native_names if is_amount else None)
    if values["parent"] == "root":
        values["parent"] = None  # Volcano's root is implicit here
    return _located(metadata.name, values, metadata.location)


def native_queue(document: StrictMapping) -> LocatedQueue:
    name = document.required("name", dns_subdomain, "write the name of the queue")
    values = {field: _value(document, field, field, None) for field in QUEUE_FIELDS}
    return _located(name, values, document.location)


def _value(mapping: StrictMapping, key: str, field: str, prepare: Reader[object] | None) -> Any:
    read = QUEUE_FIELDS[field].read
    return mapping.read(key, read if prepare is None else lambda value: read(prepare(value)))


def _located(name: str | None, values: dict[str, Any], location: SourceLocation) -> LocatedQueue:
    given = {field: value for field, value in values.items() if value is not None}
    return LocatedQueue(Queue(name=name or "", **given), location)


def parents_first(queues: list[LocatedQueue], problems: ProblemList) -> list[Queue]:
    """The queues in an order in which each parent comes before its children."""
    left = {each.queue.name: each for each in queues}
    if len(left) < len(queues):
        for each in queues:
            if left[each.queue.name] is not each:
                problems.add(
                    each.location.at("name"),
                    f"is {each.queue.name} twice; remove one of the queues",
                )
    ordered: list[Queue] = []
    while left:
        ready = [name for name, each in left.items() if each.queue.parent not in left]
        if not ready:
            circle = ", ".join(sorted(left))
            location = next(iter(left.values())).location
            problems.add(
                location, f"parents form a cycle: {circle}; change the parent of one of them"
            )
            break
        ordered += [left.pop(name).queue for name in ready]
    return ordered
