"""What the pods of a gang and its PodGroup declare together, read by the same code as manifests.

Annotations of Koordinator on pods override the PodGroup. Other values must not contradict each
other; a gang whose parts do stays pending, and the reason names two of them.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from phalanx.core.errors import Invalid
from phalanx.core.spec import durations, quantities
from phalanx.core.spec.job import Match, Pack, PackMode
from phalanx.core.time_units import MINUTE, Micros
from phalanx.kube.objects.gang import KubePodGroup
from phalanx.kube.objects.pod import KubePod
from phalanx.manifest import alibaba_ack, koordinator, kubernetes_podgroup, podgroup
from phalanx.manifest.gang_keys import GangFamily, declaration_of
from phalanx.manifest.problems import ProblemList, Reinterpreted, SourceLocation, Unsupported
from phalanx.manifest.strict_mapping import StrictMapping, whole

#: Set on every pod of a gang whose waiting time has ended; such pods are not placed again.
TIMED_OUT = f"{koordinator.PREFIX}timeout"
#: Label of PodGroups that a scheduler has created itself, with the name of the scheduler.
OUTPUT_LABEL = "phalanx.dev/output"
#: Of Koordinator, from the first held place, where a gang sets none.
WAITING_TIME: Micros = 10 * MINUTE

_ACK_PREFIX = "pod-group.scheduling.sigs.k8s.io/"
#: Beginnings of all keys that declare a gang.
_PREFIXES = (
    *(koordinator.PREFIX, "pod-group.scheduling.sigs.k8s.io"),
    *("scheduling.x-k8s.io/pod-group", "scheduling.k8s.io/group-name"),
)
_TASK = "volcano.sh/task-spec"
#: Keys that name a gang, and all keys that declare one.
_NAMES = (*alibaba_ack.NAMES, f"{koordinator.PREFIX}name", "scheduling.k8s.io/group-name")
_KNOWN = (
    *_NAMES,
    *(f"{_ACK_PREFIX}{key}" for key in ("min-available", "match-policy", "groups")),
)
#: What the user reads for a field that parts of a gang contradict each other about.
_IN_WORDS = {
    "min_available": "the minimum",
    "match": "the match policy",
    "mode": "the mode",
    "group": "the groups",
    "gather_timeout": "the waiting time",
    "pack": "the topology",
}


class GangKey(NamedTuple):
    family: GangFamily
    namespace: str
    name: str

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def job(self) -> str:
        """The key as the planner's id of the gang."""
        return f"{self.family}:{self.full_name}"


class PodDeclaration(NamedTuple):
    """What one pod declares about its gang."""

    key: GangKey
    pod: str
    fields: Mapping[str, object]  #: fields of the native form
    is_koordinator: bool
    is_ack: bool
    problem: str | None = None
    unsupported: str | None = None  #: a key that Phalanx does not know
    notes: tuple[str, ...] = ()  #: what is read differently than it is written


class GroupDeclaration(NamedTuple):
    """What a PodGroup declares."""

    key: GangKey
    fields: Mapping[str, object]
    is_koordinator: bool
    is_ack: bool
    is_gang: bool  #: False: its pods are placed one by one
    is_whole_unit: bool  #: the running pods are preempted together or not at all
    role_minimums: Mapping[str, int]
    uid: str
    created_at: datetime | None
    retries: bool  #: its timeout releases the held places, and the gang is tried again
    phase: str  #: of its status
    problem: str | None = None
    unsupported: str | None = None  #: a field that Phalanx does not honour
    notes: tuple[str, ...] = ()  #: what is read differently than it is written


class GangTerms(msgspec.Struct, frozen=True):
    """What the parts of a gang agree on."""

    match: Match
    minimum: int | None = None  #: None: not known yet
    strict: bool = True
    timeout: Micros | None = None  #: from the first held place
    retries: bool = False  #: after the timeout the gang is tried again
    group: tuple[str, ...] = ()
    pack: Pack | None = None
    role_minimums: dict[str, int] = {}
    queue: str | None = None
    priority_class: str | None = None
    gate: tuple[tuple[str, int], ...] = ()
    is_whole_unit: bool = False
    priority: int | None = None
    problem: str | None = None  #: why the gang must not be placed
    unsupported: str | None = None  #: the same: a part that Phalanx does not honour
    notes: tuple[str, ...] = ()  #: what is read differently than it is written


#: Terms of a pod without a gang.
ALONE = GangTerms(Match.ONLY_WAITING, 1)


def pod_declaration(pod: KubePod) -> PodDeclaration | None:
    """The declaration of a pod; None if it belongs to no gang."""
    metadata, group = pod.metadata, pod.spec.scheduling_group
    labels = [each for each in metadata.labels.items() if each[0].startswith(_PREFIXES)]
    annotations = [
        each
        for each in metadata.annotations.items()
        if each[0].startswith(_PREFIXES) and each[0] != TIMED_OUT
    ]
    if not labels and not annotations and group is None:
        return None
    name = "" if group is None else group.pod_group_name
    declared = _declaration(metadata.namespace, tuple(labels), tuple(annotations), name)
    if declared is None:
        return None
    pod_name = f"pod {metadata.key}"
    return declared._replace(
        pod=metadata.name,
        problem=declared.problem and pod_name + declared.problem,
        unsupported=declared.unsupported and pod_name + declared.unsupported,
        notes=tuple(pod_name + note for note in declared.notes),
    )


_Items = tuple[tuple[str, str], ...]
#: The parts of a pod that declare its gang.
_LABELS = SourceLocation("", "metadata.labels")
_ANNOTATIONS = SourceLocation("", "metadata.annotations")
_SCHEDULING_GROUP = SourceLocation("", "spec.schedulingGroup")


@lru_cache(maxsize=1 << 14)
def _declaration(
    namespace: str, labels: _Items, annotations: _Items, group: str
) -> PodDeclaration | None:
    """What a pod with these keys declares, computed once for all pods of a gang. The sentences
    begin after the name of the pod."""
    problems = ProblemList(ignore_unsupported=True)
    keys = (
        StrictMapping(dict(labels), _LABELS, problems),
        StrictMapping(dict(annotations), _ANNOTATIONS, problems),
    )
    given = {"podGroupName": group} if group else {}
    declared = declaration_of(*keys, StrictMapping(given, _SCHEDULING_GROUP, problems))
    if declared.gang is None:
        return None
    _report_unread(keys, str(declared.gang.value))
    return PodDeclaration(
        GangKey(declared.family, namespace, str(declared.gang.value)),
        "",
        {field: each.value for field, each in declared.fields.items()},
        declared.is_koordinator,
        any(key.startswith(_ACK_PREFIX) for key, _ in (*labels, *annotations)),
        _first_problem(problems),
        *_unsupported_and_notes(problems),
    )


def _report_unread(mappings: Iterable[StrictMapping], gang: str) -> None:
    """Report keys that declare a gang and were not read: other names of it, or unknown ones."""
    for mapping in mappings:
        for key in mapping.unread():
            if key in _NAMES:
                mapping.note(key, f"is not used: another key names the gang {gang}")
            else:
                near = get_close_matches(key, _KNOWN, n=1)
                cure = f" (did you mean {near[0]}?)" if near else ""
                mapping.unsupported([key], f"is not a key that declares a gang{cure}")


def nameless_gang_key(pod: KubePod) -> str | None:
    """A key of a pod that declares a gang without a name; None if there is none."""
    keys = (*pod.metadata.labels, *pod.metadata.annotations)
    found = next((k for k in keys if k.startswith(_PREFIXES) and k != TIMED_OUT), None)
    return found if found is not None and pod_declaration(pod) is None else None


def _unsupported_and_notes(problems: ProblemList) -> tuple[str | None, tuple[str, ...]]:
    """The first part that is not supported, and the notes, as sentences."""
    unsupported = (
        f"{each.path} {each.message.removesuffix('; it was ignored')}"
        for each in problems.warnings
        if isinstance(each, Unsupported)
    )
    notes = (str(each) for each in problems.warnings if isinstance(each, Reinterpreted))
    return next(unsupported, None), tuple(notes)


def task_of(pod: KubePod) -> str:
    """The task of a Volcano job that a pod belongs to."""
    return pod.metadata.annotations.get(_TASK) or pod.metadata.labels.get(_TASK) or ""


def group_declaration(group: KubePodGroup, family: GangFamily) -> GroupDeclaration:
    """The declaration of a PodGroup that was read from the API of its family."""
    metadata, spec = group.metadata, dict(group.spec)
    problems = ProblemList(ignore_unsupported=True)
    source = SourceLocation(f"PodGroup {metadata.key}")
    role_minimums: dict[str, int] = {}
    if family is GangFamily.NATIVE and spec.get("disruptionMode") == "Pod":
        del spec["disruptionMode"]  # the API server's default, of which the docs say what it means
    if family is GangFamily.VOLCANO:
        role_minimums = _role_minimums(spec, source, problems)
        _note_topology(spec, source, problems)
    known = {
        "name": metadata.name,
        "namespace": metadata.namespace,
        "labels": metadata.labels,
        "annotations": metadata.annotations,
    }
    document = StrictMapping({"metadata": known, "spec": spec}, source, problems)
    if family is GangFamily.NATIVE:
        declared = kubernetes_podgroup.pod_group_of(document, "")
    else:
        is_volcano = family is GangFamily.VOLCANO
        version = podgroup.VOLCANO if is_volcano else podgroup.CURRENT
        declared = podgroup.pod_group_of(document, version)
    document.report_unread()
    keys = (*metadata.labels, *metadata.annotations)
    policy = spec.get("schedulingPolicy")
    unsupported, notes = _unsupported_and_notes(problems)
    return GroupDeclaration(
        GangKey(family, metadata.namespace, metadata.name),
        {field: each.value for field, each in declared.fields.items()},
        declared.is_koordinator,
        any(key.startswith(_ACK_PREFIX) for key in keys),
        is_gang=not isinstance(policy, dict) or policy.get("basic") is None,
        is_whole_unit=family is GangFamily.NATIVE and spec.get("disruptionMode") == "PodGroup",
        role_minimums=role_minimums,
        uid=metadata.uid,
        created_at=metadata.creation_timestamp,
        retries=spec.get("scheduleTimeoutSeconds") is not None,
        phase=group.status.phase,
        problem=_first_problem(problems),
        unsupported=unsupported,
        notes=notes,
    )


def _role_minimums(
    spec: dict[str, Any], source: SourceLocation, problems: ProblemList
) -> dict[str, int]:
    """Volcano's minimums by task, which no file of ours can have."""
    key = "minTaskMember"
    given = StrictMapping(spec.pop(key, None), source.at("spec", key), problems)
    read = {task: given.read(task, whole(0)) for task in given.unread()}
    return {task: minimum for task, minimum in read.items() if minimum}


def _note_topology(spec: dict[str, Any], source: SourceLocation, problems: ProblemList) -> None:
    """A topology that a PodGroup of Volcano prefers is not used, with a note. One that it requires
    stays, and is reported as unsupported."""
    topology = spec.get("networkTopology")
    if isinstance(topology, dict) and topology.get("mode") == "soft":
        del spec["networkTopology"]
        problems.add_note(
            source.at("spec", "networkTopology"),
            "is soft, and not used; prefer a topology with the pod affinity of the pods",
        )


def _first_problem(problems: ProblemList) -> str | None:
    try:
        problems.raise_problems()
    except Invalid as invalid:
        return str(invalid.problems[0])
    return None


def gang_terms(
    key: GangKey, pods: Iterable[PodDeclaration], group: GroupDeclaration | None
) -> GangTerms:
    """What pods and the PodGroup of a gang agree on, or the problem that keeps it pending."""
    # By name, so that the same pods have the same problem in whatever order they arrived.
    declared = sorted(pods, key=lambda each: each.pod)
    is_koordinator = any(each.is_koordinator for each in declared)
    is_ack = any(each.is_ack for each in declared)
    if group is not None:
        is_koordinator |= group.is_koordinator
        is_ack |= group.is_ack
    match = _default_match(key.family, is_koordinator=is_koordinator, is_ack=is_ack)
    fields, problem = _agreed(declared, group, is_koordinator=is_koordinator)
    if problem is not None:
        return GangTerms(match, problem=problem)
    parts = [*declared, *(() if group is None else (group,))]
    unsupported = next((each.unsupported for each in parts if each.unsupported), None)
    if unsupported is not None:
        return GangTerms(match, unsupported=unsupported)
    if fields.get("min_available") is None:
        return GangTerms(match, problem=f"PodGroup {key.full_name} does not exist")
    try:
        given = fields.get("gather_timeout", fields.get("schedule_timeout"))
        timeout = WAITING_TIME if is_koordinator else None
        timeout = timeout if given is None else durations.duration(given)
        is_of_pods = any("gather_timeout" in each.fields for each in declared)
        retries = group is not None and group.retries and not is_of_pods
        # The pods of a gang are alike: the notes about the first one are enough.
        notes = (*(declared[0].notes if declared else ()), *(group.notes if group else ()))
        terms = _terms(match, fields, timeout, group)
        return msgspec.structs.replace(terms, retries=retries, notes=notes)
    except Invalid as invalid:
        return GangTerms(match, problem=str(invalid.problems[0]))


def _default_match(family: GangFamily, *, is_koordinator: bool, is_ack: bool) -> Match:
    if family is GangFamily.VOLCANO:
        return Match.WAITING_RUNNING_SUCCEED
    if family is GangFamily.POD_GROUP and is_koordinator:
        return Match.ONCE_SATISFIED
    if family is GangFamily.POD_GROUP and is_ack:
        return Match.ONLY_WAITING
    return Match.WAITING_AND_RUNNING


def _agreed(
    pods: Iterable[PodDeclaration], group: GroupDeclaration | None, *, is_koordinator: bool
) -> tuple[dict[str, object], str | None]:
    """The fields of all parts together; and the first problem."""
    if group is not None and group.problem is not None:
        return {}, group.problem
    of_group = {} if group is None else dict(group.fields)
    fields: dict[str, object] = {}
    by: dict[str, str] = {}
    for pod in pods:
        if pod.problem is not None:
            return {}, pod.problem
        for field, value in pod.fields.items():
            name = f"pod {pod.pod}"
            if not is_koordinator and field in of_group and group is not None:
                other, source = of_group[field], f"PodGroup {group.key.name}"
            else:
                other, source = fields.setdefault(field, value), by.setdefault(field, name)
            if other != value:
                what = _IN_WORDS.get(field, field)
                return {}, (
                    f"{what} is {_shown(value)} on {name}, but {_shown(other)} on {source}:"
                    " all parts of a gang must agree"
                )
    return of_group | fields, None


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _terms(
    match: Match, fields: Mapping[str, Any], timeout: Micros | None, group: GroupDeclaration | None
) -> GangTerms:
    pack = fields.get("pack")
    resources = quantities.allowance(fields.get("min_resources") or {})
    return GangTerms(
        match=Match(fields.get("match", match)),
        minimum=int(fields["min_available"]),
        strict=fields.get("mode", "strict") == "strict",
        timeout=timeout,
        group=tuple(fields.get("group", ())),
        pack=None if pack is None else Pack(pack["by"], PackMode(pack.get("mode", "require"))),
        role_minimums={} if group is None else dict(group.role_minimums),
        queue=fields.get("queue"),
        priority_class=fields.get("priority_class"),
        priority=fields.get("priority"),
        gate=tuple(sorted(resources.items())),
        is_whole_unit=group is not None and group.is_whole_unit,
    )
