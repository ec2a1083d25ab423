"""Queues: Volcano's, and the native form, which is `kind: Queue` beside the fields of a queue."""

from typing import Any, NamedTuple

from phalanx.core.model import Queue
from phalanx.core.spec.fields import Reader
from phalanx.core.spec.names import dns_subdomain
from phalanx.core.spec.schema import QUEUE_FIELDS
from phalanx.manifest.metadata import metadata_of
from phalanx.manifest.pod import renamed
from phalanx.manifest.problems import ProblemList, SourceLocation
from phalanx.manifest.strict_mapping import StrictMapping

VOLCANO = "scheduling.volcano.sh/v1beta1"

#: The key of Volcano, and the field of ours.
_VOLCANO_FIELDS = {
    "parent": "parent",
    "weight": "weight",
    "deserved": "quota",
    "capability": "limit",
    "reclaimable": "reclaimable",
    "priority": "priority",
}


class Named(NamedTuple):
    queue: Queue
    where: SourceLocation


def volcano_queue(document: StrictMapping) -> Named:
    metadata = metadata_of(document)
    document.skip("status")
    spec = document.view("spec")
    spec.unsupported(["guarantee"], "is not supported; deserved is what a queue is owed first")
    values = {}
    for key, field in _VOLCANO_FIELDS.items():
        is_amount = field in ("quota", "limit")
        values[field] = _value(spec, key, field, renamed if is_amount else None)
    if values["parent"] == "root":
        values["parent"] = None  # what every queue of Volcano is below
    return _named(metadata.name, values, metadata.where)


def native_queue(document: StrictMapping) -> Named:
    name = document.required("name", dns_subdomain, "a queue has a name")
    values = {field: _value(document, field, field, None) for field in QUEUE_FIELDS}
    return _named(name, values, document.where)


def _value(view: StrictMapping, key: str, field: str, prepare: Reader[object] | None) -> Any:
    read = QUEUE_FIELDS[field].read
    return view.read(key, read if prepare is None else lambda value: read(prepare(value)))


def _named(name: str | None, values: dict[str, Any], where: SourceLocation) -> Named:
    given = {field: value for field, value in values.items() if value is not None}
    return Named(Queue(name=name or "", **given), where)


def in_order(queues: list[Named], findings: ProblemList) -> list[Queue]:
    """Parents before their children."""
    left = {each.queue.name: each for each in queues}
    if len(left) < len(queues):
        for each in queues:
            if left[each.queue.name] is not each:
                findings.wrong(each.where.at("name"), "is given twice in this file; keep one")
    ordered: list[Queue] = []
    while left:
        ready = [name for name, each in left.items() if each.queue.parent not in left]
        if not ready:
            circle = ", ".join(sorted(left))
            where = next(iter(left.values())).where
            findings.wrong(where, f"is in a circle of parents: {circle}; give one another parent")
            break
        ordered += [left.pop(name).queue for name in ready]
    return ordered
