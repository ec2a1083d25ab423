"""Pods that belong together, put together: one gang is one job, whatever order they come in.

A file may have a part of a gang, which waits for the rest. Pods with equal templates are the
replicas of one role; a pod that names no gang is a job of its own.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from phalanx.core.errors import Invalid
from phalanx.core.model import GangMembers
from phalanx.core.spec import quantities
from phalanx.core.spec.job import Match
from phalanx.manifest import ack, koordinator
from phalanx.manifest.draft import Draft, RoleDraft, Said
from phalanx.manifest.pod import Pod
from phalanx.manifest.podgroup import PodGroup
from phalanx.manifest.problems import ProblemList, SourceLocation

_ORDINAL = re.compile(r"-[0-9]+$")
#: Volcano's way to name a PodGroup.
_VOLCANO_GROUP = "scheduling.k8s.io/group-name"
#: Members of a gang have these in common.
_SHARED = ("priority", "priority_class", "preemption_policy")
#: Whose word counts more where parts of a gang differ: what a dialect has for those who say
#: nothing, labels and PodGroups, Koordinator's annotations on pods.
_BY_DIALECT, _BY_WORDS, _BY_ANNOTATION = range(3)


class PodMember(NamedTuple):
    """A pod, or a Job with several."""

    pod: Pod
    replicas: int = 1
    job: Mapping[str, Said] = MappingProxyType({})  #: fields of the job that it sets itself

    @property
    def name(self) -> str:
        return self.pod.metadata.name or "task"

    @property
    def home(self) -> str:
        return self.pod.metadata.home

    @property
    def where(self) -> SourceLocation:
        return self.pod.metadata.where


class GangDeclaration(NamedTuple):
    """What one member says about its gang."""

    gang: Said | None
    terms: dict[str, Said]
    is_koordinator: bool


def claim_of(pod: Pod) -> GangDeclaration:
    """Koordinator's annotations come over labels."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    by_annotation = koordinator.gang_of(annotations)
    gang = by_annotation or ack.gang_of(labels) or ack.gang_of(annotations)
    if gang is None and (name := annotations.read(_VOLCANO_GROUP, str)) is not None:
        gang = Said(name, annotations.where.at(_VOLCANO_GROUP))
    terms = ack.terms_of(labels) | ack.terms_of(annotations) | koordinator.terms_of(annotations)
    return GangDeclaration(gang, terms, is_koordinator=by_annotation is not None)


class PodGangs:
    """The pods and PodGroups of a file, until all of it has been read."""

    def __init__(self, findings: ProblemList, *, whole_gangs: bool = False) -> None:
        """With `whole_gangs` a part of a gang is refused."""
        self._findings = findings
        self._whole_gangs = whole_gangs
        self._alone: list[PodMember] = []
        self._gangs: dict[tuple[str, str], list[tuple[PodMember, GangDeclaration]]] = {}
        self._groups: dict[tuple[str, str], PodGroup] = {}
        self._pods: dict[tuple[str, str], SourceLocation] = {}

    def add(self, member: PodMember) -> None:
        key = (member.home, member.name)
        if member.pod.metadata.name is None:
            self._findings.wrong(member.where.at("name"), "is missing; write the pod's name")
        elif key in self._pods and member.replicas == 1:
            first = self._pods[key].document
            self._findings.wrong(
                member.where.at("name"), f"is {member.name}, as in document {first}; choose another"
            )
        self._pods.setdefault(key, member.where)
        claim = claim_of(member.pod)
        if claim.gang is None:
            self._alone.append(member)
        else:
            gang = (member.home, str(claim.gang.value))
            self._gangs.setdefault(gang, []).append((member, claim))

    def add_group(self, group: PodGroup) -> None:
        key = (group.metadata.home, group.metadata.name or "")
        if key in self._groups:
            first = self._groups[key].metadata.where.document
            self._findings.wrong(
                group.metadata.where.at("name"),
                f"is {key[1]}, the PodGroup of document {first}; keep one of them",
            )
        self._groups.setdefault(key, group)

    def drafts(self) -> Iterator[Draft]:
        for key, members in self._gangs.items():
            yield self._gang(key, members)
        for key, group in self._groups.items():
            if key not in self._gangs and group.metadata.name is not None:
                yield self._without_pods(key, group)
        for member in self._alone:
            yield self._single(member)

    def _single(self, member: PodMember) -> Draft:
        draft = Draft(member.where)
        member.pod.metadata.name_job(draft)
        self._put_members(draft, [member])
        if member.replicas > 1:
            draft.put("min_available", 1, member.where)
        return draft

    def _gang(
        self, key: tuple[str, str], members: list[tuple[PodMember, GangDeclaration]]
    ) -> Draft:
        first, claim = members[0]
        group = self._groups.get(key)
        where = claim.gang.where if claim.gang is not None else first.where
        draft = Draft(where)
        draft.put("name", key[1], where)
        draft.put("namespace", key[0], first.where.at("namespace"))
        put_koordinator(draft, claim)
        said = dict.fromkeys(draft.fields, _BY_DIALECT)
        if group is not None:
            draft.put_all(_but_minimum(group.terms))
            said |= dict.fromkeys(group.terms, _BY_WORDS)
        terms = self._agreed(key[1], members, group)
        draft.put_all(_but_minimum(terms))
        said |= dict.fromkeys(terms, _BY_ANNOTATION if claim.is_koordinator else _BY_WORDS)
        least = terms.get("min_available") or (group.terms.get("min_available") if group else None)
        before = set(draft.fields)
        self._put_members(draft, [member for member, _ in members])
        said |= dict.fromkeys(draft.fields.keys() - before, _BY_WORDS)
        draft.part = GangMembers(
            needed=_number(least),
            names=tuple(member.name for member, _ in members),
            weights=_weighed(said),
            shared=_in_common(first.pod),
        )
        self._put_minimum(draft, least, first)
        self._take_resources(draft, group)
        return draft

    def _without_pods(self, key: tuple[str, str], group: PodGroup) -> Draft:
        """A PodGroup whose pods are elsewhere: they have come, or are to come."""
        metadata = group.metadata
        draft = Draft(metadata.where.at("name"))
        metadata.name_job(draft)
        draft.put_all(_but_minimum(group.terms))
        least = group.terms.get("min_available")
        draft.part = GangMembers(
            needed=_number(least), weights=_weighed(dict.fromkeys(group.terms, _BY_WORDS))
        )
        if self._whole_gangs:
            self._findings.wrong(
                draft.where,
                f"is {key[1]}, and no pod of namespace {key[0]} in this file belongs to it; add its"
                f" pods, with the label {ack.NAMES[0]}: {key[1]}",
            )
        self._take_resources(draft, group)
        return draft

    def _take_resources(self, draft: Draft, group: PodGroup | None) -> None:
        """The gate on the sum is looked at when the gang has its minimum."""
        part = draft.part
        if group is None or group.least is None or part is None or part.needed is None:
            return
        if draft.size >= part.needed:
            self._check_resources(draft, group, part.needed)
        elif not self._findings.ignore_unsupported:
            draft.part = replace(part, min_resources=group.least[0])

    def _agreed(
        self, gang: str, members: list[tuple[PodMember, GangDeclaration]], group: PodGroup | None
    ) -> dict[str, Said]:
        """What the members say, where they say the same. Labels may not gainsay a PodGroup."""
        terms: dict[str, Said] = {}
        for _, claim in members:
            for field, said in claim.terms.items():
                other = terms.setdefault(field, said)
                if group is not None and not claim.is_koordinator and field in group.terms:
                    other = group.terms[field]
                if other.value != said.value:
                    self._findings.wrong(
                        said.where,
                        f"is {said.value}, and {other.where} is {other.value}; all that is said of"
                        f" the gang {gang} must be the same",
                    )
        return terms

    def _put_minimum(self, draft: Draft, least: Said | None, first: PodMember) -> None:
        name = str(draft.fields["name"])
        number = _number(least)
        if least is None or number is None:
            self._miss_group(draft, name, first.home)
        elif number <= draft.size:
            draft.put_minimum(number, least.where)
        elif (astray := self._astray(name, first.home)) is not None:
            self._findings.wrong(
                astray.where.at("namespace"),
                f"is {astray.home} for {astray.name}, and {first.home} for {first.name}; members of"
                " a gang are in one namespace",
            )
        elif self._whole_gangs:
            self._findings.wrong(
                least.where,
                f"is {number}, and {draft.size} of its members are in this file; put all of them in"
                " one file: only what is submitted waits for the rest",
            )

    def _miss_group(self, draft: Draft, name: str, home: str) -> None:
        if (home, name) in self._groups:
            return  # what is wrong with its minimum has been told
        elsewhere = next((space for space, group in self._groups if group == name), None)
        if elsewhere is not None:
            self._findings.wrong(
                draft.where,
                f"is {name}, a PodGroup of namespace {elsewhere}, and this pod is in {home}; put"
                " both in one namespace",
            )
        elif self._whole_gangs:
            self._findings.wrong(
                draft.where,
                f"is {name}, and there is no such PodGroup in this file; put it and all of its pods"
                " in one file, or write min-available beside it",
            )

    def _astray(self, gang: str, home: str) -> PodMember | None:
        """A member of a gang of this name in another namespace."""
        for (space, name), members in self._gangs.items():
            if name == gang and space != home:
                return members[0][0]
        return None

    def _put_members(self, draft: Draft, members: list[PodMember]) -> None:
        put_shared(draft, [(member.name, member.pod) for member in members], self._findings)
        draft.put("restart", "task", draft.where)
        draft.put_all(self._restart(members))
        for member in members:
            draft.put_all(member.job)
        for member in members:
            equal = next((r for r in draft.roles.values() if _same(r, member.pod.role)), None)
            if equal is None:
                role = member.pod.role
                draft.roles[role_name(member.name, draft.roles)] = role
                role.put("replicas", member.replicas, role.where)
            else:
                equal.fields["replicas"] = equal.replicas + member.replicas

    def _restart(self, members: list[PodMember]) -> dict[str, Said]:
        policies = [member.pod.restart for member in members if member.pod.restart is not None]
        for policy in policies:
            if policy.value == "Always":
                self._findings.read_as(
                    policy.where, "is Always, read as OnFailure: a task that ends well is done"
                )
        never = [policy for policy in policies if policy.value == "Never"]
        if not never:
            return {}
        if len(never) < len(members):
            self._findings.unsupported(
                never[0].where, "is Never for a part of the gang, and a job has one policy"
            )
            return {}
        return {"restart": Said("never", never[0].where)}

    def _check_resources(self, draft: Draft, group: PodGroup, least: int) -> None:
        """The gate on the sum is kept if the fewest members that may start ask for as much."""
        wanted, where = group.least or ({}, draft.where)
        for name, amount in wanted.items():
            asked = sorted(share for role in draft.roles.values() for share in _shares(role, name))
            if sum(asked[:least]) < amount:
                self._findings.unsupported(
                    where.at(name),
                    f"is {quantities.printed(name, amount)}, more than {least} of its pods request,"
                    " and is no gate of its own: let the pods request it",
                )


def put_shared(draft: Draft, pods: Sequence[tuple[str, Pod]], findings: ProblemList) -> None:
    """Fields of the job that pods set. Its priority is that of all; its times are the longest."""
    for field in _SHARED:
        name, first = pods[0]
        mine = first.job.get(field)
        for other, pod in pods[1:]:
            theirs = pod.job.get(field)
            if (mine and mine.value) != (theirs and theirs.value):
                findings.wrong(
                    theirs.where if theirs else pod.role.where,
                    f"gives {other} {_named(field, theirs)}, and {name} has {_named(field, mine)};"
                    " members of a gang have the same",
                )
                break
        if mine is not None:
            draft.put(field, mine.value, mine.where)
    for field in ("grace", "time_limit"):
        said = [pod.job[field] for _, pod in pods if field in pod.job]
        if said:
            longest = max(said, key=lambda one: int(str(one.value)))
            draft.put(field, longest.value, longest.where)


def _number(least: Said | None) -> int | None:
    return least.value if least is not None and isinstance(least.value, int) else None


def _but_minimum(terms: Mapping[str, Said]) -> dict[str, Said]:
    """A minimum is only put once the members are counted."""
    return {field: one for field, one in terms.items() if field != "min_available"}


def _weighed(said: dict[str, int]) -> dict[str, int]:
    """A class is a priority."""
    found = {field: weight for field, weight in said.items() if field not in ("name", "namespace")}
    if "priority_class" in found:
        found["priority"] = found["priority_class"]
    return found


def _in_common(pod: Pod) -> dict[str, str]:
    return {field: str(pod.job[field].value) for field in _SHARED if field in pod.job}


def put_koordinator(draft: Draft, claim: GangDeclaration) -> None:
    """What Koordinator has for a gang that says nothing else."""
    if claim.gang is not None and claim.is_koordinator:
        draft.put("match", Match.ONCE_SATISFIED.value, claim.gang.where)
        draft.put("schedule_timeout", koordinator.WAITING_TIME, claim.gang.where)


def role_name(pod: str, taken: Iterable[str]) -> str:
    """`worker` for `worker-0`, as long as that name is free."""
    stem = _ORDINAL.sub("", pod).replace(".", "-")[:63].strip("-") or "task"
    whole = pod.replace(".", "-")[:63].strip("-")
    known = {*taken, "all"}
    numbered = (f"task-{n}" for n in count())
    return next(name for name in chain((stem, whole), numbered) if name not in known)


def check_groups(drafts: list[Draft], findings: ProblemList) -> None:
    """Jobs that name each other as a group name the same group."""
    by_name = {draft.member: draft for draft in drafts}
    for draft in drafts:
        own = _group(draft)
        for name in own:
            other = by_name.get(name)
            if other is None or other is draft:
                continue
            theirs = _group(other)
            if theirs and theirs | {name} != own | {draft.member}:
                findings.wrong(
                    draft.origin("group"),
                    f"names {name}, which names another group: {', '.join(sorted(theirs))}; groups"
                    " that lead from one to the next, or in a circle, are written as one list on"
                    " each of them",
                )
                break


def _group(draft: Draft) -> set[str]:
    names = draft.fields.get("group")
    return set(names) if isinstance(names, list) else set()


def _same(one: RoleDraft, other: RoleDraft) -> bool:
    return {k: v for k, v in one.fields.items() if k != "replicas"} == other.fields


def _named(field: str, said: Said | None) -> str:
    return f"no {field}" if said is None else f"{field} {said.value}"


def _shares(role: RoleDraft, name: str) -> list[int]:
    """How much of a resource each task of the role asks for."""
    try:
        amounts = quantities.resources(role.fields.get("resources", {}))
    except Invalid:
        return []  # the core says what is wrong with them
    return [amounts.get(name, 0)] * role.replicas
