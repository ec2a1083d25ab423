"""The rules that must hold for the objects of the API server, whatever happens to schedulers.

The checker follows a watch of its own. It knows what users created and deleted, and nothing of what
the scheduler thinks.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from chaos.kubernetes.gangs import WantedGang, gang_of, gpus_of
from phalanx.kube.api.reflector import Change
from phalanx.kube.gangs.gang_translation import PREEMPTED_BY
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.writes.rounds import round_of


class RuleViolation(NamedTuple):
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


class SeenRound:
    """A round of binds as far as it has been seen."""

    def __init__(self, gang: str, binds: int, at_s: float) -> None:
        self.gang = gang
        self.binds = binds
        self.began_s = at_s
        self.uids: set[str] = set()
        #: A member of the gang was lost since, with its node or refused by its kubelet: the round
        #: need not be completed.
        self.is_disturbed = False
        #: When the scheduler first evicted a pod of the round: all others must follow.
        self.evicted_s: float | None = None
        self.is_reported = False  #: as a violation

    @property
    def is_complete(self) -> bool:
        return len(self.uids) >= self.binds


class SeenEviction(NamedTuple):
    pod: str
    node: str
    gpus: int
    preemptor: str  #: name of the gang
    at: int  #: number of binds and evictions before it


class ApiHistory:
    """Everything that has happened to the pods of a namespace."""

    def __init__(self, capacity: Mapping[str, int], partial_s: float) -> None:
        """`capacity` has the GPUs of every node that may exist. A gang may be bound in part for
        `partial_s`."""
        self.violations: list[RuleViolation] = []
        self.pods: dict[str, KubePod] = {}
        self.evictions: list[SeenEviction] = []
        self.binds = 0
        self.deleted: set[str] = set()  #: gangs that users have deleted
        self._capacity = capacity
        self._partial_s = partial_s
        self._nodes: dict[str, str] = {}  #: uid → node, of every pod that was ever bound
        self._rounds: dict[str, SeenRound] = {}
        #: Gang → number of binds and evictions when its last pod was bound.
        self._bound_at: dict[str, int] = {}

    @property
    def steps(self) -> int:
        """Binds and evictions so far."""
        return self.binds + len(self.evictions)

    @property
    def rounds(self) -> int:
        return len(self._rounds)

    def take(self, changes: Iterable[Change[KubePod]], now_s: float) -> None:
        """Follow a batch of changes, and check it as a whole."""
        for before, after in changes:
            if after is None and before is not None:
                self._removed(before, now_s)
            elif after is not None:
                self._put(after, now_s)
        self._check_capacity()

    def _put(self, pod: KubePod, now_s: float) -> None:
        uid, node = pod.metadata.uid, pod.spec.node_name
        before = self.pods.get(uid)
        self.pods[uid] = pod
        if node and uid not in self._nodes:
            self._nodes[uid] = node
            self.binds += 1
            self._bound_at[gang_of(pod)] = self.steps
            self._note_round(pod, now_s)
        elif node != self._nodes.get(uid, node):
            text = f"{pod.metadata.name} was bound to {self._nodes[uid]}, then to {node}"
            self._violate("bound-once", text)
        was_terminating = before is not None and before.is_terminating
        if pod.is_terminating and not was_terminating:
            self._note_eviction(pod)

    def _note_round(self, pod: KubePod, now_s: float) -> None:
        carried = round_of(pod)
        if carried is None:
            self._violate("rounds", f"{pod.metadata.name} was bound without a round")
            return
        gang = gang_of(pod)
        seen = self._rounds.setdefault(carried.id, SeenRound(gang, carried.binds, now_s))
        seen.uids.add(pod.metadata.uid)
        if seen.gang != gang or len(seen.uids) > seen.binds:
            self._violate("rounds", f"round {carried} of {seen.gang} has a pod too many")

    def _note_eviction(self, pod: KubePod) -> None:
        preemptor = pod.metadata.annotations.get(PREEMPTED_BY)
        if preemptor is not None and gang_of(pod) not in self.deleted and pod.spec.node_name:
            name = preemptor.rpartition("/")[2]
            place = (pod.spec.node_name, gpus_of(pod))
            self.evictions.append(SeenEviction(pod.metadata.name, *place, name, self.steps))

    def _removed(self, pod: KubePod, now_s: float) -> None:
        known = self.pods.pop(pod.metadata.uid, None)
        if known is not None and not known.is_terminating and known.spec.node_name:
            # Deleted without grace between two events.
            self._note_eviction(pod)
        for each in self._rounds.values():
            if each.gang != gang_of(pod):
                continue
            if not _is_evicted(pod):
                each.is_disturbed = True
            elif pod.metadata.uid in each.uids and each.evicted_s is None:
                each.evicted_s = now_s

    def _check_capacity(self) -> None:
        used = self._used()
        for node, gpus in used.items():
            if gpus > self._capacity.get(node, gpus):
                text = f"{gpus} of {self._capacity[node]} GPUs of {node} are in use"
                self._violate("capacity", text)

    def _used(self) -> Counter[str]:
        used: Counter[str] = Counter()
        for pod in self.pods.values():
            if pod.spec.node_name and not pod.is_finished:
                used[pod.spec.node_name] += gpus_of(pod)
        return used

    def check_partial(self, now_s: float) -> None:
        """Check that no gang is bound in part for too long, because its binds stopped half way or
        because only a part of it was evicted."""
        for number, each in self._rounds.items():
            live = [uid for uid in each.uids if uid in self.pods]
            staying = [uid for uid in live if not self.pods[uid].is_terminating]
            if each.evicted_s is not None and staying:
                self._check_since(each.evicted_s, now_s, number, each, "after one was evicted")
            elif self._is_partial(each) and live and staying == live:
                self._check_since(each.began_s, now_s, number, each, "after its first bind")

    def _check_since(
        self, since_s: float, now_s: float, number: str, seen: SeenRound, when: str
    ) -> None:
        if now_s - since_s > self._partial_s and not seen.is_reported:
            seen.is_reported = True
            live = len(seen.uids & self.pods.keys())
            text = f"round {number} of {seen.gang}: {live} of {seen.binds} pods are bound"
            self._violate("whole-gangs", f"{text} {now_s - since_s:.0f} s {when}")

    def partial_rounds(self) -> int:
        """How many rounds are incomplete now."""
        return sum(
            self._is_partial(each) and bool(each.uids & self.pods.keys())
            for each in self._rounds.values()
        )

    def _is_partial(self, seen: SeenRound) -> bool:
        """Whether a round stopped half way, and no later one has bound the rest of the gang."""
        bound = (bool(p.spec.node_name) and gang_of(p) == seen.gang for p in self.pods.values())
        return not (seen.is_complete or seen.is_disturbed) and sum(bound) < seen.binds

    # The end

    def unsettled(self, wanted: Iterable[WantedGang], nodes: Iterable[str]) -> list[RuleViolation]:
        """What is missing to a state in which nothing has to happen any more."""
        by_gang: dict[str, list[KubePod]] = {}
        for pod in self.pods.values():
            by_gang.setdefault(gang_of(pod), []).append(pod)
        missing = []
        pending = []
        for gang in wanted:
            pods = by_gang.pop(gang.name, [])
            if len(pods) != gang.size or any(pod.is_terminating for pod in pods):
                missing.append(RuleViolation("settled", f"{gang.name} has {len(pods)} pods"))
                continue
            bound = sum(bool(pod.spec.node_name) for pod in pods)
            live = [*self._live_rounds(gang.name)]
            has_lost = any(each.is_disturbed and each.evicted_s is None for each in live)
            if 0 < bound < gang.size and not has_lost:
                text = f"{gang.name} has {bound} of {gang.size} pods bound: {_reason(pods)}"
                missing.append(RuleViolation("whole-gangs", text))
            elif not bound or (bound < gang.size and gang.is_koordinator):
                # What a gang of ACK has lost is not placed by itself: only pending pods count.
                created = min(str(pod.metadata.creation_timestamp) for pod in pods)
                rest = gang._replace(size=gang.size - bound)
                pending.append((-pods[0].spec.priority, created, gang.name, rest))
        missing += [RuleViolation("settled", f"{name} was deleted") for name in by_gang]
        if pending and self._fits(min(pending)[-1], nodes):
            missing.append(RuleViolation("settled", f"{min(pending)[2]} is pending, and fits"))
        return missing

    def _live_rounds(self, gang: str) -> Iterator[SeenRound]:
        """The rounds of a gang of which a pod exists."""
        for each in self._rounds.values():
            if each.gang == gang and each.uids & self.pods.keys():
                yield each

    def _fits(self, gang: WantedGang, nodes: Iterable[str]) -> bool:
        used = self._used()
        free = (self._capacity[node] - used[node] for node in nodes)
        return sum(max(0, each) // gang.gpus for each in free) >= gang.size

    def unused_evictions(self) -> list[RuleViolation]:
        """Victims whose capacity nothing has used: the preemptor is still pending, and it is
        free."""
        used = self._used()
        unused = []
        for each in self.evictions:
            is_used = self._bound_at.get(each.preemptor, -1) > each.at
            is_taken = self._capacity[each.node] - used[each.node] < each.gpus
            if not (is_used or is_taken or each.preemptor in self.deleted):
                text = f"{each.pod} left {each.node} for {each.preemptor}, which is pending"
                unused.append(RuleViolation("evictions-are-used", text))
        return unused

    def _violate(self, rule: str, text: str) -> None:
        violation = RuleViolation(rule, text)
        if violation not in self.violations:
            self.violations.append(violation)


def _is_evicted(pod: KubePod) -> bool:
    """Whether a scheduler has evicted the pod: the API server notes it with the eviction."""
    conditions = pod.status.conditions
    return any(each.type == "DisruptionTarget" and each.status == "True" for each in conditions)


def _reason(pods: Iterable[KubePod]) -> str:
    """Why a pod of a gang is pending, as its condition says."""
    conditions = (each for pod in pods for each in pod.status.conditions)
    reasons = (each.message for each in conditions if each.status == "False" and each.message)
    return next(reasons, "no reason is shown")
