"""The status of a queue: of Phalanx, or in the form of Volcano. Nothing is sent here."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from phalanx.core.spec.quantities import printed
from phalanx.kube.model.amounts import RESOURCE_NAMES
from phalanx.kube.model.queue_usage import ClusterQueueUsage
from phalanx.kube.objects.metadata import ObjectCondition
from phalanx.kube.writes.group_status import condition_since

_KUBERNETES_NAMES = {ours: name for name, ours in RESOURCE_NAMES.items()}
#: Phases of Volcano's PodGroups, each of which a queue counts.
_PHASES = ("Pending", "Inqueue", "Running", "Unknown", "Completed")


def native_status(
    usage: ClusterQueueUsage, problem: str | None, before: Iterable[ObjectCondition], now: datetime
) -> dict[str, Any]:
    """The status of a queue of Phalanx. `before` are the conditions that it shows."""
    usable = ("Usable", "Valid", "gangs can use the queue")
    status = "True"
    if problem is not None:
        usable, status = ("Usable", "NotUsable", problem), "False"
    return {
        "running": usage.running,
        "pending": usage.pending,
        "used": _quantities(usage.used),
        "deserved": _quantities(usage.deserved),
        "conditions": [condition_since(usable, status, before, now)],
    }


def volcano_status(usage: ClusterQueueUsage, phases: Iterable[str]) -> dict[str, Any]:
    """The status of a queue of Volcano, whose PodGroups are in these phases. Its state is left to
    Volcano's controller."""
    counts = Counter(phases)
    return {
        **{phase.lower(): counts[phase] for phase in _PHASES},
        "allocated": _quantities(usage.used),
    }


def changed_fields(status: Mapping[str, Any], shown: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a status that differ from those that a queue shows, as a merge patch."""
    changed: dict[str, Any] = {}
    for field, value in status.items():
        before = shown.get(field)
        if value == before:
            continue
        changed[field] = value
        if isinstance(value, dict) and isinstance(before, dict):
            changed[field] = {**dict.fromkeys(before.keys() - value.keys()), **value}
    return changed


def _quantities(amounts: Mapping[str, int]) -> dict[str, str]:
    return {
        _KUBERNETES_NAMES.get(resource, resource): str(printed(resource, amount))
        for resource, amount in sorted(amounts.items())
    }
