"""The status of a queue: of Phalanx, or in the form of Volcano. Nothing is sent here."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from phalanx.core.errors import Invalid
from phalanx.core.spec.quantities import printed
from phalanx.kube.model.amounts import RESOURCE_NAMES, exact_amounts, requested
from phalanx.kube.model.queue_usage import ClusterQueueUsage, total_usage
from phalanx.kube.objects.metadata import ObjectCondition
from phalanx.kube.writes.group_status import condition_since

_KUBERNETES_NAMES = {ours: name for name, ours in RESOURCE_NAMES.items()}
#: Phases of Volcano's PodGroups, each of which a queue counts.
_PHASES = ("Pending", "Inqueue", "Running", "Unknown", "Completed")


class _WrittenUsage(msgspec.Struct, frozen=True):
    """The part of one scheduler in the status of a queue."""

    running: int
    pending: int
    used: dict[str, str]
    deserved: dict[str, str]


def native_status(
    parts: Mapping[str, ClusterQueueUsage],
    problem: str | None,
    before: Iterable[ObjectCondition],
    now: datetime,
) -> dict[str, Any]:
    """The status of a queue of Phalanx: the part of each scheduler, and their sum. `before` are the
    conditions that it shows."""
    usable = ("Usable", "Valid", "gangs can use the queue")
    status = "True"
    if problem is not None:
        usable, status = ("Usable", "NotUsable", problem), "False"
    return {
        **_written(total_usage(parts.values())),
        "schedulers": {names: _written(part) for names, part in parts.items()},
        "conditions": [condition_since(usable, status, before, now)],
    }


def _written(usage: ClusterQueueUsage) -> dict[str, Any]:
    return {
        "running": usage.running,
        "pending": usage.pending,
        "used": _quantities(usage.used),
        "deserved": _quantities(usage.deserved),
    }


def written_parts(status: Mapping[str, Any]) -> dict[str, ClusterQueueUsage]:
    """By scheduler names: the parts in the status of a queue of Phalanx, without those that cannot
    be read."""
    parts = {}
    for names, given in (status.get("schedulers") or {}).items():
        try:
            part = msgspec.convert(given, _WrittenUsage)
            used, deserved = (requested(exact_amounts(each)) for each in (part.used, part.deserved))
        except (msgspec.ValidationError, Invalid):
            continue
        parts[names] = ClusterQueueUsage(used, deserved, part.running, part.pending)
    return parts


def volcano_status(allocated: Mapping[str, int], phases: Iterable[str]) -> dict[str, Any]:
    """The status of a queue of Volcano, whose PodGroups are in these phases. Its state is left to
    Volcano's controller."""
    counts = Counter(phases)
    return {
        **{phase.lower(): counts[phase] for phase in _PHASES},
        "allocated": _quantities(allocated),
    }


def changed_fields(status: Mapping[str, Any], shown: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a status that differ from those that a queue shows, as a merge patch."""
    changed: dict[str, Any] = {}
    for field, value in status.items():
        before = shown.get(field)
        if isinstance(value, dict) and isinstance(before, dict):
            gone = dict.fromkeys(before.keys() - value.keys())
            if part := changed_fields(value, before) | gone:
                changed[field] = part
        elif value != before:
            changed[field] = value
    return changed


def _quantities(amounts: Mapping[str, int]) -> dict[str, str]:
    return {
        _KUBERNETES_NAMES.get(resource, resource): str(printed(resource, amount))
        for resource, amount in sorted(amounts.items())
    }
