"""Koordinator's annotations, on pods and on PodGroups.

What it reads leniently (an unknown mode, a waiting time that is none) is read so here, and told.
"""

import json

from phalanx.core.errors import Invalid
from phalanx.core.spec import durations
from phalanx.core.spec.fields import refusal, shown, text
from phalanx.manifest.ack import read_groups
from phalanx.manifest.draft import Said
from phalanx.manifest.strict_mapping import StrictMapping, choice, whole, word

PREFIX = "gang.scheduling.koordinator.sh/"

#: How long a gang waits that does not say so.
WAITING_TIME = "600s"

_MODES = {"Strict": "strict", "NonStrict": "non-strict"}
_MATCHES = ("once-satisfied", "only-waiting", "waiting-and-running")
_GATHER = {"MustGather": "require", "PreferGather": "prefer"}


def gang_of(annotations: StrictMapping) -> Said | None:
    """The gang that a pod says it belongs to."""
    name = annotations.read(f"{PREFIX}name", word)
    return None if name is None else Said(name, annotations.where.at(f"{PREFIX}name"))


def terms_of(annotations: StrictMapping) -> dict[str, Said]:
    """What they say about the gang, as fields of the native form."""
    said: dict[str, Said] = {}

    def put(field: str, key: str, value: object) -> None:
        if value is not None:
            said[field] = Said(value, annotations.where.at(PREFIX + key))

    least = annotations.read(f"{PREFIX}min-available", whole(1))
    put("min_available", "min-available", least)
    put("mode", "mode", _mode(annotations))
    put("schedule_timeout", "waiting-time", _waiting_time(annotations))
    match = annotations.read(f"{PREFIX}match-policy", choice({word: word for word in _MATCHES}))
    put("match", "match-policy", match)
    for key in ("groups", "gang-groups"):
        group = read_groups(annotations, PREFIX + key)
        if group is not None:
            said["group"] = group
    put("pack", "network-topology-spec", _pack(annotations))
    _check_total(annotations, least)
    if annotations.read(f"{PREFIX}timeout", word) == "true":
        annotations.wrong(
            "is true: the gang has given up; remove the annotation to submit it anew",
            f"{PREFIX}timeout",
        )
    for key in annotations.rest():
        if key.startswith(PREFIX) and key != f"{PREFIX}name":
            annotations.unsupported([key], "is not a key of Koordinator's gangs")
    return said


def _mode(annotations: StrictMapping) -> str | None:
    key = f"{PREFIX}mode"
    given = annotations.read(key, word)
    if given is not None and given not in _MODES:
        annotations.findings.read_as(
            annotations.where.at(key), f"is {shown(given)}, read as Strict"
        )
    return None if given is None else _MODES.get(given, "strict")


def _waiting_time(annotations: StrictMapping) -> str | None:
    key = f"{PREFIX}waiting-time"
    given = annotations.read(key, word)
    if given is None:
        return None
    try:
        if durations.duration(given) > 0:
            return given
    except Invalid:
        pass
    annotations.findings.read_as(
        annotations.where.at(key), f"is {shown(given)}, read as {WAITING_TIME}"
    )
    return WAITING_TIME


def _check_total(annotations: StrictMapping, least: int | None) -> None:
    """It only says how many pods there will be; we count them."""
    key = f"{PREFIX}total-number"
    given = annotations.read(key, word)
    if given is not None and not (given.isdecimal() and int(given) >= (least or 1)):
        annotations.findings.read_as(
            annotations.where.at(key), f"is {shown(given)}, read as the minimum"
        )


def _pack(annotations: StrictMapping) -> dict[str, str] | None:
    key = f"{PREFIX}network-topology-spec"
    strategies = annotations.read(key, _gather_strategies)
    if not strategies:
        return None
    chosen = next((one for one in strategies if one["mode"] == "require"), strategies[0])
    if len(strategies) > 1:
        annotations.findings.unsupported(
            annotations.where.at(key),
            f"has {len(strategies)} layers, and a gang is packed by one: {chosen['by']}",
        )
    return chosen


def _gather_strategies(value: object) -> list[dict[str, str]]:
    form = '{"gatherStrategy": [{"layer": "rack", "strategy": "MustGather"}]}'
    try:
        document = json.loads(text(value))
        return [
            {"by": one["layer"], "mode": _GATHER[one["strategy"]]}
            for one in document["gatherStrategy"]
        ]
    except (ValueError, TypeError, KeyError):
        raise refusal(f"is {shown(value)}; write JSON like {form}") from None
