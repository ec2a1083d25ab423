"""The status of a queue in which several schedulers have gangs."""

from typing import Any

import msgspec
from tests.kube_objects import kube_node, kube_pod, kube_pod_group

from phalanx.kube.api.resources import VOLCANO, queues
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.objects.gang import KubeQueue
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.writes.queue_writer import QueueObject, QueueWriter
from phalanx.kube.writes.write_budget import WriteBudget
from phalanx.manifest.gang_keys import GangFamily

LABELS = {"phalanx.dev/queue": "vision"}


class QueueApi:
    """An API server with one queue."""

    def __init__(self, group: str = "phalanx.dev", version: str = "v1alpha1") -> None:
        self.status: dict[str, Any] = {}
        self._resource = queues(group, version)

    @property
    def item(self) -> QueueObject:
        stored = {"metadata": {"name": "vision", "uid": "u"}, "status": self.status}
        return QueueObject(msgspec.convert(stored, KubeQueue), self._resource)

    def report(self, names: tuple[str, ...], *pods: KubePod) -> bool:
        """Let a scheduler with these names report once; whether it writes."""
        model = ClusterModel(names)
        model.put_node(kube_node("n", gpu=8))
        is_volcano = self._resource.group == VOLCANO
        model.put_queue(self.item.queue, is_volcano=is_volcano)
        if is_volcano:
            group = kube_pod_group("both", minMember=1, queue="vision")
            model.gangs.put_group(group, GangFamily.VOLCANO)
        for pod in pods:
            model.put_pod(pod)
        model.refresh()
        client: Any = None
        writer = QueueWriter(client, lambda: True, WriteBudget(), names)
        writer.report(model, [self.item])
        for _, patch in writer.due.values():
            self.status = merged(self.status, patch)
        return bool(writer.due)


def merged(stored: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """What a merge patch makes of an object."""
    result = dict(stored)
    for field, value in patch.items():
        if value is None:
            result.pop(field, None)
        elif isinstance(value, dict) and isinstance(result.get(field), dict):
            result[field] = merged(result[field], value)
        else:
            result[field] = value
    return result


def running(scheduler: str, gpu: int) -> KubePod:
    return kube_pod(f"{scheduler}-run", scheduler=scheduler, gpu=gpu, node="n", labels=LABELS)


def pending(scheduler: str) -> KubePod:
    return kube_pod(f"{scheduler}-pend", scheduler=scheduler, gpu=16, labels=LABELS)


def test_two_schedulers_write_a_part_each_and_the_sum_of_both() -> None:
    api = QueueApi()
    pods = (running("phalanx", 2), pending("phalanx"), running("other", 3))
    api.report(("phalanx",), *pods)
    api.report(("other", "volcano"), *pods)
    own = {"running": 1, "pending": 1, "used": {"nvidia.com/gpu": "2"}}
    assert api.status["schedulers"]["phalanx"].items() >= own.items()
    assert api.status["schedulers"]["other,volcano"]["used"] == {"nvidia.com/gpu": "3"}
    total = {"running": 2, "pending": 1, "used": {"nvidia.com/gpu": "5"}}
    assert api.status.items() >= total.items()
    assert not api.report(("phalanx",), *pods)
    assert not api.report(("other", "volcano"), *pods)


def test_the_part_of_a_scheduler_that_has_no_pods_is_removed() -> None:
    api = QueueApi()
    api.report(("other",), running("other", 3))
    api.report(("phalanx",), running("phalanx", 2))
    assert (*api.status["schedulers"],) == ("phalanx",)
    assert (api.status["running"], api.status["used"]) == (1, {"nvidia.com/gpu": "2"})
    # The scheduler serves a second name now.
    api.report(("volcano", "phalanx"), running("phalanx", 2))
    assert (*api.status["schedulers"],) == ("volcano,phalanx",)
    api.report(("volcano", "phalanx"))
    assert (api.status["running"], api.status["schedulers"], api.status["used"]) == (0, {}, {})


def test_a_part_that_cannot_be_read_is_removed() -> None:
    api = QueueApi()
    api.report(("phalanx",), running("phalanx", 2))
    api.status["schedulers"]["other"] = {"running": "many"}
    api.report(("phalanx",), running("phalanx", 2), running("other", 3))
    assert (*api.status["schedulers"],) == ("phalanx",)


def test_all_schedulers_write_the_same_for_a_queue_of_volcano() -> None:
    """Its status has no place for parts."""
    api = QueueApi(VOLCANO, "v1beta1")
    member: dict[str, Any] = {
        "annotations": {"scheduling.k8s.io/group-name": "both"},
        "gpu": 2,
        "node": "n",
    }
    pods = [kube_pod(name, scheduler=name, **member) for name in ("phalanx", "other")]
    api.report(("phalanx",), *pods)
    assert api.status["allocated"] == {"nvidia.com/gpu": "4"}
    assert not api.report(("other",), *pods)
