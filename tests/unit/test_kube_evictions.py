"""Victims of a preemption: a gang is evicted as a whole or not at all, whatever happens between."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.kube_objects import kube_node, kube_pod, kube_pod_group

from phalanx.kube.gangs.gang_translation import PREEMPTED_BY
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.objects.cluster import (
    BudgetSpec,
    BudgetStatus,
    PodDisruptionBudget,
    PriorityClass,
)
from phalanx.kube.objects.metadata import LabelSelector, ObjectMeta
from phalanx.kube.writes.calls import PodReference
from phalanx.kube.writes.evictor import EvictResult
from phalanx.kube.writes.open_calls import OpenCalls
from phalanx.kube.writes.victim_evictions import VictimEvictions
from phalanx.manifest.gang_keys import GangFamily

ACK = "pod-group.scheduling.sigs.k8s.io/"
MARK = {PREEMPTED_BY: "default/urgent"}


class SilentEvents:
    def warn(self, *_: object) -> None:
        pass


class EvictorRecord:
    """What would be sent to the API server."""

    def __init__(self) -> None:
        self.evicted: list[str] = []
        self.messages: set[str] = set()
        self.unmarked: list[str] = []

    async def evict(
        self, pod: PodReference, _: str, message: str, is_needed: Callable[[], bool]
    ) -> EvictResult:
        self.messages.add(message)
        if not is_needed():
            return EvictResult.UNNEEDED
        self.evicted.append(pod.name)
        return EvictResult.EVICTED

    async def annotate(self, pod: PodReference, annotations: Mapping[str, str | None]) -> bool:
        assert annotations[PREEMPTED_BY] is None
        self.unmarked.append(pod.name)
        return True


class Preemption:
    """A running gang of three, and a pending pod for which it is evicted."""

    def __init__(self, *, marked: int) -> None:
        self.model = ClusterModel()
        self.model.put_node(kube_node(gpu=3))
        for number in range(3):
            self.put(number, annotations=MARK if number < marked else {})
        self.model.put_pod(kube_pod("urgent", gpu=1, priority=1000))
        self.record, self._calls = EvictorRecord(), OpenCalls()
        fakes: dict[str, Any] = {"evictor": self.record, "events": SilentEvents()}
        self._evictions = VictimEvictions(
            self.model, calls=self._calls, checkpoint_wait_s=60.0, **fakes
        )

    def put(self, number: int, **fields: Any) -> None:
        labels = {f"{ACK}name": "low", f"{ACK}min-available": "3", "pod": str(number)}
        self.model.put_pod(kube_pod(f"low-{number}", gpu=1, node="n", labels=labels, **fields))

    def limit(self, number: int) -> None:
        """Give one pod a budget, which allows its eviction."""
        spec = BudgetSpec(LabelSelector({"pod": str(number)}))
        metadata = ObjectMeta("budget", "default")
        self.model.put_budget(PodDisruptionBudget(metadata, spec, BudgetStatus(1)))

    async def advance(self) -> tuple[list[str], list[str]]:
        """Take the next steps; the pods that are evicted by now, and those without a mark."""
        self.model.refresh()
        self._evictions.advance()
        for _ in range(3):
            await asyncio.sleep(0)
        return sorted(self.record.evicted), sorted(self.record.unmarked)


async def test_a_gang_that_is_marked_as_a_whole_is_evicted() -> None:
    assert await Preemption(marked=3).advance() == (["low-0", "low-1", "low-2"], [])


async def test_a_gang_of_which_only_a_part_was_marked_is_not_evicted() -> None:
    """The scheduler that marked it died in between; the next plan decides again."""
    assert await Preemption(marked=2).advance() == ([], ["low-0", "low-1"])


async def test_the_rest_of_a_gang_follows_an_eviction_that_the_watch_does_not_show_yet() -> None:
    given = Preemption(marked=3)
    given.limit(0)
    assert await given.advance() == (["low-0"], [])
    given.model.remove_pod("uid-default-urgent")
    assert await given.advance() == (["low-0"], [])
    given.put(0, annotations=MARK, terminating=True)
    assert await given.advance() == (["low-0", "low-1", "low-2"], [])


@pytest.mark.parametrize(
    ("priority", "text"),
    [
        (1, "preempted by higher-priority gang default/urgent"),
        (0, "evicted for gang default/urgent, whose queue reclaims its share"),
    ],
)
async def test_the_text_of_an_eviction_compares_the_priority_of_the_pod_group(
    priority: int, text: str
) -> None:
    given = Preemption(marked=3)
    given.model.put_priority_class(PriorityClass(ObjectMeta("class"), priority))
    group = kube_pod_group("urgent", minMember=1, priorityClassName="class")
    given.model.gangs.put_group(group, GangFamily.VOLCANO)
    keys = {"scheduling.k8s.io/group-name": "urgent"}
    given.model.put_pod(kube_pod("urgent", gpu=1, annotations=keys))
    await given.advance()
    assert given.record.messages == {text}
