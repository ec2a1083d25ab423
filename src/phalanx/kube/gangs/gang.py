"""A gang as the scheduler sees it: its pods, what they and the PodGroup declare, and the places
that it holds. Every pod has a number that it keeps, by which the planner knows it."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from phalanx.core.time_units import SECOND, Micros
from phalanx.kube.gangs.gang_terms import ALONE, TIMED_OUT, GangTerms
from phalanx.kube.objects.metadata import time_of
from phalanx.kube.objects.pod import KubePod
from phalanx.plan.model import TaskRequest


class MemberState(StrEnum):
    PENDING = "pending"  #: may be placed
    BLOCKED = "blocked"  #: gated, or deleted before it was bound
    BOUND = "bound"
    LEAVING = "leaving"  #: bound, and being deleted
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class GangMember(NamedTuple):
    pod: KubePod
    number: int
    request: TaskRequest
    role: str
    node: str  #: where it is bound, or about to be; empty if it is pending
    state: MemberState


def member_state(pod: KubePod, node: str) -> MemberState:
    """The state of a pod that is bound to this node, or will be when its bind has been sent."""
    if pod.status.phase == "Succeeded":
        return MemberState.SUCCEEDED
    if pod.status.phase == "Failed":
        return MemberState.FAILED
    if node:
        return MemberState.LEAVING if pod.is_terminating else MemberState.BOUND
    if pod.is_terminating or pod.spec.scheduling_gates:
        return MemberState.BLOCKED
    return MemberState.PENDING


def has_timed_out(pod: KubePod) -> bool:
    """Whether the waiting time of the pod's gang has ended, so that it is not placed again."""
    return pod.metadata.annotations.get(TIMED_OUT) == "true"


#: The creation time of an object that the API server has not created.
NOT_CREATED = datetime.fromtimestamp(0, UTC)
#: Annotation of pending pods: since when their non-strict gang holds nodes.
HELD_SINCE = "phalanx.dev/held-since"


def held_since(pod: KubePod) -> Micros | None:
    """Since when the pod's gang holds nodes, as an earlier scheduler wrote it."""
    at = time_of(pod.metadata.annotations.get(HELD_SINCE))
    return None if at is None else micros(at)


class KubeGang:
    def __init__(self, job: str, name: str, *, is_alone: bool) -> None:
        self.job = job  #: the planner's id
        self.name = name  #: namespace/name
        self.is_alone = is_alone  #: a pod without a gang
        self.version = 0
        self.terms: GangTerms = ALONE
        #: What is read differently than it is written, or not at all.
        self.notes: tuple[str, ...] = ()
        self.queue = ""  #: the queue it is counted in; empty if there is none that it may use
        self.group_priority: int | None = None  #: of its PodGroup; None: that of its pods
        self.created_at: Micros = 0
        #: By number, in the order of their creation.
        self.members: dict[int, GangMember] = {}
        #: The members of each state, once they have been asked for.
        self._in_state: dict[MemberState, list[GangMember]] | None = None
        self._numbers: dict[str, int] = {}
        self._next = 0
        #: Number of a pending pod → node that is held for it; since when the first one was; and
        #: when the last ones were given up.
        self.held: dict[int, str] = {}
        self.held_since: Micros | None = None
        self._released_at: Micros = 0
        self.not_before: Micros = 0  #: the end of its backoff
        self.refused: tuple[str, ...] = ()  #: nodes whose kubelet has refused a pod of it
        #: Whether it has once had its minimum.
        self.satisfied = False

    def number_of(self, uid: str) -> int:
        """The number of a pod; a new one if it has none."""
        number = self._numbers.get(uid)
        if number is None:
            number = self._numbers[uid] = self._next
            self._next += 1
        return number

    def set_members(self, members: Iterable[GangMember]) -> None:
        self.members = {member.number: member for member in sorted(members, key=_age)}
        self._in_state = None

    def put_alike(self, pod: KubePod) -> None:
        """Take over a new version of a pod that is the same for every plan."""
        member = self.members.get(self._numbers[pod.metadata.uid])
        if member is not None:
            self.members[member.number] = member._replace(pod=pod)
            self._in_state = None

    def uids(self) -> dict[str, int]:
        """The pods and their numbers."""
        return self._numbers

    def forget(self, uid: str) -> None:
        """Remove a pod. Its number is not given to another one."""
        number = self._numbers.pop(uid, None)
        if number is not None:
            self.members.pop(number, None)
            self._in_state = None
            self.held.pop(number, None)

    def of(self, *states: MemberState) -> Sequence[GangMember]:
        """The members in these states, in the order of their creation."""
        if len(states) > 1:
            return [member for member in self.members.values() if member.state in states]
        if self._in_state is None:
            self._in_state = {}
            for member in self.members.values():
                self._in_state.setdefault(member.state, []).append(member)
        return self._in_state.get(states[0], ())

    @property
    def pending(self) -> Sequence[GangMember]:
        return self.of(MemberState.PENDING)

    @property
    def bound(self) -> Sequence[GangMember]:
        return self.of(MemberState.BOUND)

    def release(self, at: Micros) -> None:
        """Give up the held places."""
        self.held, self.held_since, self._released_at = {}, None, at

    def recall_hold(self) -> None:
        """Take over since when places are held from the pods, if an earlier scheduler wrote it."""
        if self.held_since is None and not self.is_alone:
            written = (held_since(member.pod) for member in self.pending)
            since = [at for at in written if at is not None and at > self._released_at]
            self.held_since = min(since, default=None)

    def pods(self) -> Iterator[KubePod]:
        return (member.pod for member in self.members.values())

    @property
    def priority(self) -> int:
        """The priority in its queue: of its PodGroup, or of its least important pod."""
        if self.group_priority is not None:
            return self.group_priority
        return min((pod.spec.priority for pod in self.pods()), default=0)


def _age(member: GangMember) -> tuple[datetime, str]:
    metadata = member.pod.metadata
    return metadata.creation_timestamp or NOT_CREATED, metadata.name


def oldest(members: Iterable[GangMember]) -> Micros:
    """When the first of these members was created."""
    return micros(min(m.pod.metadata.creation_timestamp or NOT_CREATED for m in members))


def micros(at: datetime | None) -> Micros:
    """A time of the API, which has whole seconds; 0 if it is not set."""
    return 0 if at is None else int(at.timestamp() * SECOND)
