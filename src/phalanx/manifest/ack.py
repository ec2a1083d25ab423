"""Gangs that are declared by labels: those of ACK, and of PodGroups before and after it.

On a PodGroup the same keys may stand, as labels or as annotations.
"""

import json

from phalanx.core.spec.fields import items, refusal, shown, text
from phalanx.core.spec.job import Match
from phalanx.manifest.draft import Said
from phalanx.manifest.metadata import lowered
from phalanx.manifest.strict_mapping import StrictMapping, choice, whole, word

#: A pod names its PodGroup by one of these; the first one is the present one.
NAMES = (
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io/name",
    "pod-group.scheduling.sigs.k8s.io",
)
_PREFIX = "pod-group.scheduling.sigs.k8s.io/"


def gang_of(labels: StrictMapping) -> Said | None:
    """The gang that a pod says it belongs to."""
    for key in NAMES:
        name = labels.read(key, word)
        if name is not None:
            return Said(name, labels.where.at(key))
    return None


def terms_of(labels: StrictMapping) -> dict[str, Said]:
    """What they say about the gang, as fields of the native form."""
    found = {
        "min_available": (f"{_PREFIX}min-available", whole(1)),
        "match": (f"{_PREFIX}match-policy", choice({match.value: match.value for match in Match})),
    }
    said = {
        field: Said(value, labels.where.at(key))
        for field, (key, reader) in found.items()
        if (value := labels.read(key, reader)) is not None
    }
    groups = read_groups(labels, f"{_PREFIX}groups")
    return said | ({} if groups is None else {"group": groups})


def read_groups(view: StrictMapping, key: str) -> Said | None:
    """`["namespace/name", …]` as a list or in a string; an empty string is an empty list."""
    where = view.where.at(key)
    names = view.read(key, _group_list)
    if names is None:
        return None
    lower = []
    for name in names:
        namespace, slash, rest = name.partition("/")
        lower.append(lowered(namespace, where, view.findings) + slash + rest)
    return Said(lower, where)


def _group_list(value: object) -> list[str]:
    form = 'a JSON list, like ["default/gang-a", "default/gang-b"]'
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError as error:
            raise refusal(f"is {shown(value)}, which is not JSON ({error}); write {form}") from None
    found = [] if value in ("", None) else items(value, form)
    return list(dict.fromkeys(text(name) for name in found))
