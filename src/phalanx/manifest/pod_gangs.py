"""Pods and PodGroups, grouped into gangs: every gang is one job. Their order does not matter.

A gang can be incomplete, because its other members come later. A pod without a gang is a job of
its own. Nothing here depends on where the objects come from.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from phalanx.core.model import GangMembers
from phalanx.manifest import koordinator
from phalanx.manifest.draft import JobDraft, LocatedValue
from phalanx.manifest.gang_draft import EQUAL_FIELDS, put_members
from phalanx.manifest.gang_keys import GangDeclaration
from phalanx.manifest.pod import Pod
from phalanx.manifest.pod_member import PodMember, declaration_of
from phalanx.manifest.podgroup import PodGroup
from phalanx.manifest.problems import ProblemList, SourceLocation
from phalanx.manifest.read_options import ReadOptions

#: Which source of a field wins where parts of a gang differ, the strongest last: the default of a
#: dialect, a label or a PodGroup, an annotation of Koordinator.
_DEFAULT, _LABEL, _ANNOTATION = range(3)

_Key = tuple[str, str]  #: (namespace, name of the gang)


class _DeclaredMember(NamedTuple):
    member: PodMember
    declaration: GangDeclaration


class IncompleteGang(NamedTuple):
    """A gang that has fewer members than it needs to start, or whose minimum is not known."""

    namespace: str
    name: str
    location: SourceLocation  #: where its name, or else its minimum, was read
    members: int  #: the tasks that are there; 0 for a PodGroup without pods
    minimum: int | None


class PodGangs:
    """Collects pods and PodGroups until all have been read, then returns their jobs."""

    def __init__(self, problems: ProblemList, options: ReadOptions) -> None:
        self._problems = problems
        self._options = options
        self._alone: list[PodMember] = []
        self._gangs: dict[_Key, list[_DeclaredMember]] = {}
        self._groups: dict[_Key, PodGroup] = {}
        self._pods: dict[_Key, SourceLocation] = {}
        #: Filled by `drafts`.
        self.incomplete: list[IncompleteGang] = []

    def add(self, member: PodMember) -> None:
        key = (member.namespace, member.name)
        if member.pod.metadata.name is None:
            self._problems.add(member.location.at("name"), "is missing; write the pod's name")
        elif key in self._pods and member.replicas == 1:
            self._problems.add(
                member.location.at("name"),
                f"is {member.name}, as in {self._pods[key].source}; choose another name",
            )
        self._pods.setdefault(key, member.location)
        declaration = declaration_of(member.pod)
        if declaration.gang is None:
            self._alone.append(member)
        else:
            gang = (member.namespace, str(declaration.gang.value))
            self._gangs.setdefault(gang, []).append(_DeclaredMember(member, declaration))

    def add_group(self, group: PodGroup) -> None:
        key = (group.metadata.namespace, group.metadata.name or "")
        if key in self._groups:
            self._problems.add(
                group.metadata.location.at("name"),
                f"is {key[1]}, as in {self._groups[key].metadata.location.source}; remove one of"
                " the two PodGroups",
            )
        self._groups.setdefault(key, group)

    def drafts(self) -> Iterator[JobDraft]:
        """One job for each gang, each PodGroup without pods, and each pod without a gang."""
        for key, members in self._gangs.items():
            yield self._gang(key, members)
        for key, group in self._groups.items():
            if key not in self._gangs and group.metadata.name is not None:
                yield self._group_without_pods(key, group)
        for member in self._alone:
            yield self._single(member)

    def _single(self, member: PodMember) -> JobDraft:
        draft = JobDraft(member.location)
        member.pod.metadata.name_job(draft)
        put_members(draft, [member], self._problems)
        if member.replicas > 1:
            draft.put("min_available", 1, member.location)
        return draft

    def _gang(self, key: _Key, members: Sequence[_DeclaredMember]) -> JobDraft:
        first, declaration = members[0]
        location = first.location if declaration.gang is None else declaration.gang.location
        draft = JobDraft(location)
        draft.put("name", key[1], location)
        draft.put("namespace", key[0], first.location.at("namespace"))
        group = self._groups.get(key)
        is_koordinator = any(each.declaration.is_koordinator for each in members)
        if is_koordinator or (group is not None and group.is_koordinator):
            draft.put_all(koordinator.defaults(self._options, location))
        weights = dict.fromkeys(draft.fields, _DEFAULT)
        group_fields = {} if group is None else group.fields
        draft.put_all(_without_minimum(group_fields))
        weights |= dict.fromkeys(group_fields, _LABEL)
        fields = self._agreed_fields(key[1], members, group_fields)
        draft.put_all(_without_minimum(fields))
        weights |= dict.fromkeys(fields, _ANNOTATION if is_koordinator else _LABEL)
        minimum = fields.get("min_available") or group_fields.get("min_available")
        before = set(draft.fields)
        put_members(draft, [member for member, _ in members], self._problems)
        self._refuse_turns(draft)
        weights |= dict.fromkeys(draft.fields.keys() - before, _LABEL)
        draft.part = GangMembers(
            needed=_number(minimum),
            names=tuple(member.name for member, _ in members),
            weights=_field_weights(weights),
            shared=_equal_fields(first.pod),
            total=self._total([each.declaration.total for each in members], group, minimum),
        )
        self._put_minimum(draft, key, minimum, first)
        return draft

    def _group_without_pods(self, key: _Key, group: PodGroup) -> JobDraft:
        """A PodGroup whose pods were read before, or come later."""
        metadata = group.metadata
        draft = JobDraft(metadata.location.at("name"))
        metadata.name_job(draft)
        if group.is_koordinator:
            draft.put_all(koordinator.defaults(self._options, draft.location))
        weights = dict.fromkeys(draft.fields, _DEFAULT) | dict.fromkeys(group.fields, _LABEL)
        draft.put_all(_without_minimum(group.fields))
        minimum = _number(group.fields.get("min_available"))
        total = self._total([], group, group.fields.get("min_available"))
        draft.part = GangMembers(needed=minimum, weights=_field_weights(weights), total=total)
        self.incomplete.append(IncompleteGang(*key, draft.location, 0, minimum))
        return draft

    def _refuse_turns(self, draft: JobDraft) -> None:
        """Refuse a Job whose pods take turns: those of a gang run at the same time."""
        if draft.fields.pop("max_running", None) is not None:
            self._problems.add(
                draft.origin("max_running"),
                "is less than completions, but the pods of a gang run at the same time; write the"
                " same number for both, or remove the gang",
            )

    def _total(
        self,
        declared: Sequence[LocatedValue | None],
        group: PodGroup | None,
        minimum: LocatedValue | None,
    ) -> int | None:
        """How many members the gang has in all. A total below the minimum is the minimum."""
        of_group = None if group is None else group.total
        given = next((total for total in declared if total is not None), of_group)
        total, least = _number(given), _number(minimum) or 1
        if given is None or total is None or total >= least:
            return total
        self._problems.add_note(given.location, f"is {total}, read as the minimum of {least}")
        return least

    def _agreed_fields(
        self,
        gang: str,
        members: Sequence[_DeclaredMember],
        group_fields: Mapping[str, LocatedValue],
    ) -> dict[str, LocatedValue]:
        """The fields that members declare. All must agree, and labels with the PodGroup too."""
        fields: dict[str, LocatedValue] = {}
        for _, declaration in members:
            for field, value in declaration.fields.items():
                other = fields.setdefault(field, value)
                if not declaration.is_koordinator:
                    other = group_fields.get(field, other)
                if other.value != value.value:
                    self._problems.add(
                        value.location,
                        f"is {value.value}, but {other.location} is {other.value}; use the same"
                        f" value everywhere in the gang {gang}",
                    )
        return fields

    def _put_minimum(
        self, draft: JobDraft, key: _Key, minimum: LocatedValue | None, first: PodMember
    ) -> None:
        number = _number(minimum)
        if minimum is None or number is None:
            self._report_no_minimum(draft, key)
        elif number <= draft.size:
            draft.put_minimum(number, minimum.location)
        elif (stray := self._member_elsewhere(key)) is not None:
            self._problems.add(
                stray.location.at("namespace"),
                f"is {stray.namespace} for {stray.name}, but {first.namespace} for {first.name};"
                " use one namespace for all members of a gang",
            )
        else:
            self.incomplete.append(IncompleteGang(*key, minimum.location, draft.size, number))

    def _report_no_minimum(self, draft: JobDraft, key: _Key) -> None:
        if key in self._groups:
            return  # the problem with its minimum has been reported
        namespace, name = key
        elsewhere = next((space for space, group in self._groups if group == name), None)
        if elsewhere is None:
            self.incomplete.append(IncompleteGang(*key, draft.location, draft.size, None))
        else:
            self._problems.add(
                draft.location,
                f"is {name}, a PodGroup of namespace {elsewhere}, but the pod is in namespace"
                f" {namespace}; use one namespace for both",
            )

    def _member_elsewhere(self, key: _Key) -> PodMember | None:
        """A member of a gang with the same name in another namespace."""
        for (namespace, name), members in self._gangs.items():
            if name == key[1] and namespace != key[0]:
                return members[0].member
        return None


def _number(minimum: LocatedValue | None) -> int | None:
    return minimum.value if minimum is not None and isinstance(minimum.value, int) else None


def _without_minimum(fields: Mapping[str, LocatedValue]) -> dict[str, LocatedValue]:
    """The minimum is set later, when the members have been counted."""
    return {field: value for field, value in fields.items() if field != "min_available"}


def _field_weights(weights: Mapping[str, int]) -> dict[str, int]:
    """The weights without the gang's name. A priority class sets the priority."""
    fields = {field: n for field, n in weights.items() if field not in ("name", "namespace")}
    if "priority_class" in fields:
        fields["priority"] = fields["priority_class"]
    return fields


def _equal_fields(pod: Pod) -> dict[str, str]:
    return {field: str(pod.job[field].value) for field in EQUAL_FIELDS if field in pod.job}
