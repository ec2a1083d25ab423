"""Gangs of pods as a user wants them, with random sizes and priorities."""

import random
from typing import Any, NamedTuple

from phalanx.kube.objects.pod import KubePod

GPU = "nvidia.com/gpu"
#: The label by which the checker knows the gang of a pod, whatever its dialect.
GANG = "phalanx.test/gang"
PRIORITIES = {"low": 0, "middle": 1_000, "high": 10_000}
_ACK = "pod-group.scheduling.sigs.k8s.io"
_KOORDINATOR = "gang.scheduling.koordinator.sh"


class WantedGang(NamedTuple):
    name: str
    size: int
    gpus: int  #: per pod
    priority: str
    is_koordinator: bool

    @property
    def pods(self) -> list[str]:
        return [f"{self.name}-{number}" for number in range(self.size)]

    def fields(self, namespace: str) -> dict[str, Any]:
        """What its pods have besides a name."""
        labels, annotations = {GANG: self.name}, {}
        if self.is_koordinator:
            annotations = {
                f"{_KOORDINATOR}/name": self.name,
                f"{_KOORDINATOR}/min-available": str(self.size),
                f"{_KOORDINATOR}/match-policy": "waiting-and-running",
            }
        else:
            labels |= {f"{_ACK}/name": self.name, f"{_ACK}/min-available": str(self.size)}
        return {
            "requests": {GPU: str(self.gpus)},
            "labels": labels,
            "annotations": annotations,
            "priorityClassName": f"{namespace}-{self.priority}",
            "terminationGracePeriodSeconds": 5,
        }


def random_gang(number: int, chance: random.Random) -> WantedGang:
    [priority] = chance.choices([*PRIORITIES], weights=(6, 3, 2))
    return WantedGang(
        f"g{number}",
        chance.randint(1, 6),
        chance.choice((1, 1, 2)),
        priority,
        chance.random() < 0.4,
    )


def gang_of(pod: KubePod) -> str:
    return pod.metadata.labels.get(GANG, "")


def gpus_of(pod: KubePod) -> int:
    return sum(int(each.resources.requests.get(GPU, "0")) for each in pod.spec.containers)
