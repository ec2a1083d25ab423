"""The job of a gang, assembled from its pods: shared fields, roles, restart policy.

Pods with equal templates are the replicas of one role.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import chain, count

from phalanx.core.spec.references import has_ordinal
from phalanx.manifest.draft import JobDraft, LocatedValue, RoleDraft
from phalanx.manifest.pod import Pod
from phalanx.manifest.pod_member import PodMember
from phalanx.manifest.problems import ProblemList

_ORDINAL = re.compile(r"-[0-9]+$")
#: Fields that all members of a gang must set to the same value.
EQUAL_FIELDS = ("priority", "priority_class", "preemption_policy")


def put_members(draft: JobDraft, members: Sequence[PodMember], problems: ProblemList) -> None:
    """Set the roles of the job, and the fields that its pods determine."""
    put_pod_fields(draft, [(member.name, member.pod) for member in members], problems)
    draft.put("restart", "task", draft.location)
    _put_restart(draft, members, problems)
    for member in members:
        draft.put_all(member.job)
    for member in members:
        equal = next((r for r in draft.roles.values() if _may_join(r, member.pod.role)), None)
        if equal is None:
            role = member.pod.role
            draft.roles[role_name(member.name, draft.roles)] = role
            role.put("replicas", member.replicas, role.location)
        else:
            equal.fields["replicas"] = equal.replicas + member.replicas


def put_pod_fields(draft: JobDraft, pods: Sequence[tuple[str, Pod]], problems: ProblemList) -> None:
    """Set the fields of the job that pods have: one priority for all, and the longest times."""
    for field in EQUAL_FIELDS:
        name, first = pods[0]
        mine = first.job.get(field)
        for other, pod in pods[1:]:
            theirs = pod.job.get(field)
            if (mine and mine.value) != (theirs and theirs.value):
                problems.add(
                    theirs.location if theirs else pod.role.location,
                    f"gives {other} {_described(field, theirs)}, but {name} has"
                    f" {_described(field, mine)}; use the same value in all members of a gang",
                )
                break
        if mine is not None:
            draft.put(field, mine.value, mine.location)
    for field in ("grace", "time_limit"):
        given = [pod.job[field] for _, pod in pods if field in pod.job]
        if given:
            longest = max(given, key=lambda each: int(str(each.value)))
            draft.put(field, longest.value, longest.location)


def role_name(pod: str, taken: Iterable[str]) -> str:
    """A free name for the role of a pod: `worker` for the pod `worker-0` if possible."""
    stem = _ORDINAL.sub("", pod).replace(".", "-")[:63].strip("-") or "task"
    whole = pod.replace(".", "-")[:63].strip("-")
    unavailable = {*taken, "all"}
    numbered = (f"task-{n}" for n in count())
    return next(name for name in chain((stem, whole), numbered) if name not in unavailable)


def _put_restart(draft: JobDraft, members: Sequence[PodMember], problems: ProblemList) -> None:
    policies = [member.pod.restart for member in members if member.pod.restart is not None]
    for policy in policies:
        if policy.value == "Always":
            problems.add_note(
                policy.location,
                "is Always, read as OnFailure: a task that exits with code 0 is done",
            )
    never = [policy for policy in policies if policy.value == "Never"]
    if not never:
        return
    if len(never) < len(members):
        problems.add_unsupported(
            never[0].location,
            "is Never for some pods of the gang, but a job has one restart policy",
        )
    else:
        draft.put("restart", "never", never[0].location)


def _may_join(role: RoleDraft, other: RoleDraft) -> bool:
    """Whether the other pods are equal. Tasks that know their number are counted by themselves."""
    env = other.fields.get("env")
    if isinstance(env, dict) and has_ordinal(map(str, env.values())):
        return False
    return {k: v for k, v in role.fields.items() if k != "replicas"} == other.fields


def _described(field: str, value: LocatedValue | None) -> str:
    return f"no {field}" if value is None else f"{field} {value.value}"
