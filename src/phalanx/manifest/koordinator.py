"""The gang annotations of Koordinator, on pods and on PodGroups.

A gang follows Koordinator, with its defaults, if one of its pods or its PodGroup has any of these
annotations. Values that Koordinator corrects by itself, such as an unknown mode, are corrected here
in the same way, with a warning.
"""

import json

from phalanx.core.errors import Invalid
from phalanx.core.spec import durations
from phalanx.core.spec.fields import refusal, shown, text
from phalanx.core.spec.job import Match
from phalanx.manifest.alibaba_ack import read_groups
from phalanx.manifest.draft import LocatedValue
from phalanx.manifest.problems import SourceLocation
from phalanx.manifest.read_options import ReadOptions
from phalanx.manifest.strict_mapping import StrictMapping, choice, whole, word

PREFIX = "gang.scheduling.koordinator.sh/"

_MODES = {"Strict": "strict", "NonStrict": "non-strict"}
_MATCHES = ("once-satisfied", "only-waiting", "waiting-and-running")
_GATHER = {"MustGather": "require", "PreferGather": "prefer"}


def is_used(annotations: StrictMapping) -> bool:
    """Whether there is any annotation of Koordinator. Ask before they are read."""
    return any(key.startswith(PREFIX) for key in annotations.unread())


def defaults(options: ReadOptions, location: SourceLocation) -> dict[str, LocatedValue]:
    """The fields of the native form that a gang of Koordinator has by default."""
    waiting_time = durations.printed(options.waiting_time)
    return {
        "match": LocatedValue(Match.ONCE_SATISFIED.value, location),
        "gather_timeout": LocatedValue(waiting_time, location),
    }


def gang_of(annotations: StrictMapping) -> LocatedValue | None:
    """The name of the gang that a pod belongs to."""
    name = annotations.read(f"{PREFIX}name", word)
    return None if name is None else LocatedValue(name, annotations.location.at(f"{PREFIX}name"))


def total_of(annotations: StrictMapping) -> LocatedValue | None:
    """How many members the gang has in all. Read it before the fields."""
    key = f"{PREFIX}total-number"
    given = annotations.read(key, word)
    if given is None:
        return None
    if given.isascii() and given.isdecimal() and len(given) < 10:
        return LocatedValue(int(given), annotations.location.at(key))
    annotations.problems.add_note(
        annotations.location.at(key), f"is {shown(given)}, read as the minimum"
    )
    return None


def fields_of(annotations: StrictMapping) -> dict[str, LocatedValue]:
    """The fields of the native form that the annotations set."""
    fields: dict[str, LocatedValue] = {}

    def put(field: str, key: str, value: object) -> None:
        if value is not None:
            fields[field] = LocatedValue(value, annotations.location.at(PREFIX + key))

    put("min_available", "min-available", annotations.read(f"{PREFIX}min-available", whole(1)))
    put("mode", "mode", _mode(annotations))
    put("gather_timeout", "waiting-time", _waiting_time(annotations))
    match = annotations.read(f"{PREFIX}match-policy", choice({word: word for word in _MATCHES}))
    put("match", "match-policy", match)
    for key in ("groups", "gang-groups"):
        group = read_groups(annotations, PREFIX + key)
        if group is not None:
            fields["group"] = group
    put("pack", "network-topology-spec", _pack(annotations))
    if annotations.read(f"{PREFIX}timeout", word) == "true":
        annotations.problem(
            "is true, because the gang has timed out; remove the annotation to submit it again",
            f"{PREFIX}timeout",
        )
    for key in annotations.unread():
        if key.startswith(PREFIX) and key != f"{PREFIX}name":
            annotations.unsupported([key], "is not a known annotation of Koordinator")
    return fields


def _mode(annotations: StrictMapping) -> str | None:
    key = f"{PREFIX}mode"
    given = annotations.read(key, word)
    if given is not None and given not in _MODES:
        annotations.problems.add_note(
            annotations.location.at(key), f"is {shown(given)}, read as Strict"
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
    annotations.problems.add_note(
        annotations.location.at(key), f"is {shown(given)}, read as the default of the server"
    )
    return None


def _pack(annotations: StrictMapping) -> dict[str, str] | None:
    key = f"{PREFIX}network-topology-spec"
    strategies = annotations.read(key, _gather_strategies)
    if not strategies:
        return None
    chosen = next((each for each in strategies if each["mode"] == "require"), strategies[0])
    if len(strategies) > 1:
        annotations.problems.add_unsupported(
            annotations.location.at(key),
            f"has {len(strategies)} layers, but a gang is packed by one label: {chosen['by']}",
        )
    return chosen


def _gather_strategies(value: object) -> list[dict[str, str]]:
    form = '{"gatherStrategy": [{"layer": "rack", "strategy": "MustGather"}]}'
    try:
        document = json.loads(text(value))
        return [
            {"by": each["layer"], "mode": _GATHER[each["strategy"]]}
            for each in document["gatherStrategy"]
        ]
    except (ValueError, TypeError, KeyError):
        raise refusal(f"is {shown(value)}; write JSON like {form}") from None
