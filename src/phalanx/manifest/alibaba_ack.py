"""Labels that declare a gang: those of ACK, and those that name a PodGroup.

Pods and PodGroups can have the same keys as annotations.
"""

import json

from phalanx.core.spec.fields import Reader, items, refusal, shown, text
from phalanx.core.spec.job import Match
from phalanx.manifest.draft import LocatedValue
from phalanx.manifest.metadata import lower_case
from phalanx.manifest.strict_mapping import StrictMapping, choice, whole, word

#: The keys by which a pod names its PodGroup; the first one is current.
NAMES = (
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io/name",
    "pod-group.scheduling.sigs.k8s.io",
)
_PREFIX = "pod-group.scheduling.sigs.k8s.io/"
#: Field of the native form → key, and how its value is read.
_READERS: dict[str, tuple[str, Reader[object]]] = {
    "min_available": (f"{_PREFIX}min-available", whole(1)),
    "match": (f"{_PREFIX}match-policy", choice({match.value: match.value for match in Match})),
}


def gang_of(labels: StrictMapping) -> LocatedValue | None:
    """The name of the gang that a pod belongs to."""
    for key in NAMES:
        name = labels.read(key, word)
        if name is not None:
            return LocatedValue(name, labels.location.at(key))
    return None


def fields_of(labels: StrictMapping) -> dict[str, LocatedValue]:
    """The fields of the native form that the labels set."""
    fields = {
        field: LocatedValue(value, labels.location.at(key))
        for field, (key, reader) in _READERS.items()
        if (value := labels.read(key, reader)) is not None
    }
    groups = read_groups(labels, f"{_PREFIX}groups")
    return fields | ({} if groups is None else {"group": groups})


def read_groups(mapping: StrictMapping, key: str) -> LocatedValue | None:
    """The list `["namespace/name", …]`, also as JSON in a string. An empty string is empty."""
    names = mapping.read(key, _group_list)
    if names is None:
        return None
    location = mapping.location.at(key)
    lower = []
    for name in names:
        namespace, slash, rest = name.partition("/")
        lower.append(lower_case(namespace, location, mapping.problems) + slash + rest)
    return LocatedValue(lower, location)


def _group_list(value: object) -> list[str]:
    form = 'a JSON list, like ["default/gang-a", "default/gang-b"]'
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError:
            raise refusal(f"is {shown(value)}, which is not valid JSON; write {form}") from None
    names = [] if value in ("", None) else items(value, form)
    return list(dict.fromkeys(text(name) for name in names))
