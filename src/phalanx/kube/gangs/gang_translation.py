"""A gang of pods as the planner's pending and running gangs.

The match policy decides which members count towards the minimum. Once a gang with the policy
`once-satisfied` has had its minimum, its pods are ordinary pods.
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from phalanx.core.model import Assignment, Nomination
from phalanx.core.reasons import NotSchedulable, Reason, WaitingForMembers
from phalanx.core.spec.job import Match, Pack
from phalanx.core.time_units import Micros
from phalanx.kube.gangs.gang import (
    GangMember,
    KubeGang,
    MemberState,
    has_timed_out,
    micros,
    oldest,
)
from phalanx.kube.model.refused_nodes import is_refusal
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.writes.checkpoints import saved_at
from phalanx.kube.writes.rounds import bound_at, incomplete_rounds
from phalanx.plan.model import (
    NEVER,
    EvictionGuard,
    PendingGang,
    RoleRequest,
    RunningGang,
    RunningTask,
)
from phalanx.plan.state.from_cluster import most_common

#: Pods of this priority and above are never evicted.
CRITICAL = 2_000_000_000
#: Annotation or label of Volcano: `false` for a pod that is never evicted.
_PREEMPTABLE = "volcano.sh/preemptable"
#: More than any priority of a pod: an incomplete round is served first.
_FIRST = 1 << 40

NOT_READY = "GangNotReady"
NOT_SUPPORTED = "NotSupported"
QUEUE_LIMIT = "QueueLimit"

#: Annotation of a victim: the gang for which it is evicted.
PREEMPTED_BY = "phalanx.dev/preempted-by"


def is_victim(pod: KubePod) -> bool:
    """Whether the pod is being evicted for a gang, or will be when it has saved its work."""
    return PREEMPTED_BY in pod.metadata.annotations


def is_protected(pod: KubePod) -> bool:
    """Whether the pod is never evicted: by its priority, or by Volcano's key."""
    metadata = pod.metadata
    given = metadata.annotations.get(_PREEMPTABLE, metadata.labels.get(_PREEMPTABLE))
    return pod.spec.priority >= CRITICAL or given == "false"


def safe_at(pod: KubePod) -> Micros:
    """The time before which the pod's work is not lost: its start, or its last checkpoint."""
    started = micros(bound_at(pod) or pod.metadata.creation_timestamp)
    return max(started, micros(saved_at(pod)))


class GangPlan(NamedTuple):
    """What the planner reads about a gang besides its members and terms."""

    queue: str = "default"
    priority: int | None = None  #: of the PodGroup's class; None: the lowest of its pods
    obstacle: Reason | None = None  #: why no pod of it may be placed
    group: tuple[str, ...] = ()  #: names of gangs that start with it and have not started
    pack: Pack | None = None
    domains: Mapping[str, str] = {}  #: node → its domain, for a gang that is packed
    unevictable: frozenset[int] = frozenset()  #: numbers of pods that no budget lets go
    is_evictable: bool = True
    guards: Mapping[int, EvictionGuard] = {}  #: number of a pod → its budget
    victims: tuple[str, ...] = ()  #: tasks of others that are being evicted for it


def is_satisfied(gang: KubeGang) -> bool:
    """Whether the gang has had its minimum, as far as its pods show."""
    if gang.satisfied or gang.terms.minimum is None:
        return gang.satisfied
    bound = gang.bound
    done = gang.of(MemberState.SUCCEEDED)
    if len(bound) + len(done) >= gang.terms.minimum:
        return True
    ended = [m for m in gang.of(MemberState.FAILED) if not is_refusal(m.pod)]
    unfinished = {pod.metadata.uid for pod in half_bound(gang)}
    return any(m.pod.metadata.uid not in unfinished for m in (*bound, *done, *ended))


def pending_gangs(gang: KubeGang, given: GangPlan) -> list[PendingGang]:
    """The pending pods of a gang: together, or one by one once they are ordinary pods."""
    pending = gang.pending
    if not pending:
        return []
    satisfied = is_satisfied(gang)
    if satisfied and gang.terms.match is Match.ONCE_SATISFIED:
        return [_ordinary(gang, member, given) for member in pending]
    return [_together(gang, pending, given, satisfied=satisfied)]


def _ordinary(gang: KubeGang, member: GangMember, given: GangPlan) -> PendingGang:
    """A pod that is placed by itself."""
    role = RoleRequest(member.role, member.request, (member.number,), 1)
    return PendingGang(
        job=single_job(gang, member.number),
        name=member.pod.metadata.key,
        version=gang.version,
        queue=given.queue,
        priority=member.pod.spec.priority if given.priority is None else given.priority,
        created_at=gang.created_at,
        size=1,
        roles=(role,),
        need=1,
        since=micros(member.pod.metadata.creation_timestamp),
        ineligible=_own_obstacle((member,), given),
        is_repair=True,
        evicts_from=_evicts_from((member,)),
        preemptible=not is_protected(member.pod),
        nomination=_nomination((member,), given),
    )


def single_job(gang: KubeGang, number: int) -> str:
    """The planner's id of a pod that is placed by itself although it belongs to a gang."""
    return f"{gang.job}#{number}"


def _together(
    gang: KubeGang, pending: Sequence[GangMember], given: GangPlan, *, satisfied: bool
) -> PendingGang:
    terms = gang.terms
    bound, done = gang.bound, gang.of(MemberState.SUCCEEDED)
    is_half_bound = bool(half_bound(gang))
    counted = bound if is_half_bound else _counted(terms.match, bound, done)
    minimum = terms.minimum or 1
    is_complete = satisfied and not is_half_bound and len(bound) + len(done) >= minimum
    need = 1 if is_complete else max(1, minimum - len(counted))
    roles = _roles(gang, pending, bound, None if is_complete else counted)
    obstacle = _own_obstacle(pending, given)
    if obstacle is None and not is_complete:
        obstacle = _too_few(gang, pending, counted, roles, need)
    pack = terms.pack or given.pack
    priorities = [member.pod.spec.priority for member in pending]
    priority = min(priorities) if given.priority is None else given.priority
    gathered = tuple(Assignment(number, node) for number, node in sorted(gang.held.items()))
    expires = None
    if not is_complete and gang.held_since is not None and terms.timeout is not None:
        expires = gang.held_since + terms.timeout
    return PendingGang(
        job=gang.job,
        name=gang.name,
        version=gang.version,
        queue=given.queue,
        priority=_FIRST + priority if is_half_bound else priority,
        created_at=gang.created_at,
        size=len(pending) + len(bound),
        roles=roles,
        need=0 if is_complete and bound else need,
        since=_eligible_since(pending, need),
        not_before=gang.not_before,
        ineligible=obstacle,
        is_repair=bool(bound),
        above_minimum=max(0, len(bound) + len(done) - minimum),
        strict=terms.strict,
        gate=() if bound else terms.gate,
        group=() if satisfied else given.group,
        pack=pack,
        domain=None if pack is None else _domain(bound, given.domains),
        evicts_from=None if is_half_bound else _evicts_from(pending),
        preemptible=not any(is_protected(member.pod) for member in pending),
        expires_at=expires,
        gathered=gathered,
        nomination=_nomination(pending, given),
    )


def half_bound(gang: KubeGang) -> list[KubePod]:
    """The bound pods of rounds of the gang that stopped half way."""
    bound = [] if gang.is_alone else gang.bound
    pending = gang.pending if bound else []
    if not pending:
        return []
    rounds = incomplete_rounds([m.pod for m in bound], [m.pod for m in pending])
    return [pod for pods in rounds.values() for pod in pods]


def _counted(
    match: Match, bound: Sequence[GangMember], done: Sequence[GangMember]
) -> Sequence[GangMember]:
    """The members that count towards the minimum besides the pending ones."""
    counted: list[GangMember] = []
    if match in (Match.WAITING_AND_RUNNING, Match.WAITING_RUNNING_SUCCEED):
        counted += bound
    if match is Match.WAITING_RUNNING_SUCCEED:
        counted += done
    return counted


def _roles(
    gang: KubeGang,
    pending: Sequence[GangMember],
    bound: Sequence[GangMember],
    counted: Sequence[GangMember] | None,
) -> tuple[RoleRequest, ...]:
    """Pods with equal requests and tasks are the tasks of one role. `counted` are the members that
    count towards the minimums already; None where no minimum applies."""
    by_request: dict[str, dict[object, list[GangMember]]] = {}
    for member in pending:
        by_request.setdefault(member.role, {}).setdefault(member.request, []).append(member)
    minimums = gang.terms.role_minimums
    counted_of = Counter(member.role for member in counted or ())
    placed_of = Counter(member.role for member in bound)
    roles = []
    for name, groups in by_request.items():
        minimum = minimums.get(name, 0)
        rest = 0 if counted is None else max(0, minimum - counted_of[name])
        for n, members in enumerate(groups.values(), 1):
            need = rest if n == len(groups) else min(rest, len(members))
            rest -= need
            role = name if n == 1 else f"{name}/{n}"
            counts = (minimum, placed_of[name]) if n == 1 else (0, 0)
            numbers = tuple(member.number for member in members)
            roles.append(RoleRequest(role, members[0].request, numbers, need, *counts))
    return tuple(roles)


def _own_obstacle(pending: Sequence[GangMember], given: GangPlan) -> Reason | None:
    if given.obstacle is not None:
        return given.obstacle
    for member in pending:
        if has_timed_out(member.pod):
            return NotSchedulable(
                NOT_READY,
                "the gang's waiting time has ended; remove the annotation"
                " gang.scheduling.koordinator.sh/timeout to place it again",
            )
    return None


def _too_few(
    gang: KubeGang,
    pending: Sequence[GangMember],
    counted: Sequence[GangMember],
    roles: Sequence[RoleRequest],
    need: int,
) -> Reason | None:
    """The reason of a gang with too few pending members."""
    present = {member.role for member in (*pending, *counted)}
    minimums = gang.terms.role_minimums.items()
    missing = sum(minimum for role, minimum in minimums if role not in present)
    needed = max(need, sum(role.need for role in roles) + missing)
    have_enough = all(role.need <= len(role.tasks) for role in roles) and not missing
    if have_enough and len(pending) >= needed:
        return None
    others = len(gang.bound) + len(gang.of(MemberState.SUCCEEDED)) - len(counted)
    return WaitingForMembers(len(pending), needed, max(0, others))


def _eligible_since(pending: Sequence[GangMember], need: int) -> Micros:
    """When enough of the pending members existed."""
    created = sorted(micros(member.pod.metadata.creation_timestamp) for member in pending)
    return created[min(need, len(created)) - 1]


def _domain(bound: Sequence[GangMember], domains: Mapping[str, str]) -> str | None:
    return most_common(domains.get(member.node) for member in bound)


def _evicts_from(pending: Sequence[GangMember]) -> Micros | None:
    never = any(member.pod.spec.preemption_policy == "Never" for member in pending)
    return None if never else 0


def _nomination(pending: Sequence[GangMember], given: GangPlan) -> Nomination | None:
    """The nodes that are kept for the gang while its victims leave."""
    nominated = tuple(
        Assignment(member.number, node)
        for member in pending
        if (node := member.pod.status.nominated_node_name)
    )
    return Nomination(nominated, 0, NEVER, given.victims) if nominated else None


# Running


def running_gang(gang: KubeGang, given: GangPlan, numbers: Container[int]) -> RunningGang | None:
    """The pods of a gang that occupy nodes, if there are any among these numbers."""
    members = [m for m in gang.of(MemberState.BOUND, MemberState.LEAVING) if m.number in numbers]
    if not members:
        return None
    tasks = tuple(_running_task(member, given) for member in members)
    started = min(task.safe_at for task in tasks)
    is_leaving = any(task.stopping for task in tasks)
    return RunningGang(
        job=gang.job,
        name=gang.name,
        version=gang.version,
        queue=given.queue,
        priority=max(bound_priority(member.pod, given.priority) for member in members),
        created_at=gang.created_at,
        started_at=started,
        tasks=tasks,
        min_available=_kept(gang, len(tasks)),
        role_min=tuple(sorted(gang.terms.role_minimums.items())),
        preemptible=all(task.preemptible for task in tasks),
        evictable=given.is_evictable and not is_leaving,
        guarded=bool(given.guards),
        waited=max(0, started - oldest(members)),
        evicted=any(is_victim(member.pod) for member in members),
    )


def _kept(gang: KubeGang, tasks: int) -> int:
    """The number of running pods below which the gang is only evicted as a whole."""
    return tasks if gang.terms.is_whole_unit else _running_minimum(gang)


def _running_minimum(gang: KubeGang) -> int:
    """The number of running pods that the gang needs."""
    terms = gang.terms
    if terms.match is Match.ONCE_SATISFIED and is_satisfied(gang):
        return 0
    return max(0, (terms.minimum or 0) - len(gang.of(MemberState.SUCCEEDED)))


def keeps_minimum(gang: KubeGang, staying: Sequence[GangMember]) -> bool:
    """Whether these of its bound pods are as many as the gang needs."""
    roles = Counter(member.role for member in staying)
    minimums = gang.terms.role_minimums.items()
    has_roles = all(roles[role] >= minimum for role, minimum in minimums)
    return has_roles and len(staying) >= _running_minimum(gang)


def bound_priority(pod: KubePod, of_group: int | None) -> int:
    """The priority with which a bound pod is compared to a preemptor: not less than that of its
    PodGroup, or it would be evicted for a gang that it evicts once it is pending again."""
    return pod.spec.priority if of_group is None else max(pod.spec.priority, of_group)


def _running_task(member: GangMember, given: GangPlan) -> RunningTask:
    pod = member.pod
    return RunningTask(
        index=member.number,
        role=member.role,
        node=member.node,
        resources=member.request.resources,
        stopping=member.state is MemberState.LEAVING or is_victim(pod),
        safe_at=safe_at(pod),
        preemptible=not is_protected(pod) and member.number not in given.unevictable,
        priority=bound_priority(pod, given.priority),
        traits=member.request.traits,
        guard=given.guards.get(member.number),
    )
