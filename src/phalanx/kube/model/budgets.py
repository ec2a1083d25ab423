"""PodDisruptionBudgets: which pods may be evicted. A set of victims that the budgets do not allow
as a whole is not evicted at all."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from phalanx.kube.objects.cluster import PodDisruptionBudget
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.rules.selectors import LabelQuery, query_of
from phalanx.plan.model import EvictionGuard


class _Budget(NamedTuple):
    key: str
    query: LabelQuery
    allowed: int


class DisruptionBudgets:
    """All budgets of the cluster, by namespace."""

    def __init__(self, budgets: Iterable[PodDisruptionBudget] = ()) -> None:
        self._by_namespace: dict[str, list[_Budget]] = {}
        for budget in budgets:
            if budget.spec.selector is not None:
                row = _Budget(
                    budget.metadata.key,
                    query_of(budget.spec.selector),
                    budget.status.disruptions_allowed,
                )
                self._by_namespace.setdefault(budget.metadata.namespace, []).append(row)

    def may_concern(self, pod: KubePod) -> bool:
        """Whether the pod's namespace has budgets."""
        return pod.metadata.namespace in self._by_namespace

    def of(self, pod: KubePod) -> list[str]:
        """The budgets that a pod counts towards."""
        return [budget.key for budget in self._of(pod)]

    def _of(self, pod: KubePod) -> list[_Budget]:
        budgets = self._by_namespace.get(pod.metadata.namespace, ())
        return [each for each in budgets if each.query.matches(pod.metadata.labels)]

    def guard_of(self, pod: KubePod) -> EvictionGuard | None:
        """The budget that limits how many pods are evicted together with this one."""
        return next((EvictionGuard(each.key, each.allowed) for each in self._of(pod)), None)

    def may_ever_go(self, pod: KubePod) -> bool:
        """Whether the pod alone may be evicted now. The API server refuses to evict a pod with two
        budgets."""
        budgets = self._of(pod)
        return not budgets or (len(budgets) == 1 and budgets[0].allowed > 0)

    def allow(self, pods: Iterable[KubePod]) -> bool:
        """Whether all of these pods may be evicted together."""
        left: Counter[str] = Counter()
        used: Counter[str] = Counter()
        for pod in pods:
            budgets = self._of(pod)
            if len(budgets) > 1:
                return False
            for budget in budgets:
                left[budget.key] = budget.allowed
                used[budget.key] += 1
        return all(used[key] <= left[key] for key in used)
