"""What a scheduler shows to Prometheus about the cluster that it knows."""

from typing import Any

from prometheus_client import CollectorRegistry
from tests.kube_objects import kube_node, kube_pod

from phalanx.kube.api.client import ApiClient
from phalanx.kube.connection.cluster_connection import ClusterConnection
from phalanx.kube.connection.credentials import ConfiguredCredentials
from phalanx.kube.metrics import SchedulerMetrics
from phalanx.kube.scheduler import KubeScheduler, SchedulerSettings
from phalanx.kube.writes.rounds import ROUND

BOUND = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T10:00:00Z"}
GANG = {
    "pod-group.scheduling.sigs.k8s.io/name": "g",
    "pod-group.scheduling.sigs.k8s.io/min-available": "3",
}


def test_gangs_incomplete_rounds_and_overcommitted_nodes_are_counted() -> None:
    client = ApiClient(ClusterConnection("http://127.0.0.1:1", ConfiguredCredentials()))
    scheduler = KubeScheduler(client, SchedulerSettings(), lambda: True)
    registry = CollectorRegistry()
    registry.register(SchedulerMetrics(scheduler, lambda: True))
    model = scheduler.model
    for name in ("n0", "n1"):
        model.put_node(kube_node(name, gpu=2))
    for number in range(2):
        bound: dict[str, Any] = {"annotations": {ROUND: "r/3/3"}, "status": {"conditions": [BOUND]}}
        model.put_pod(kube_pod(f"g{number}", gpu=1, node="n0", labels=GANG, **bound))
    model.put_pod(kube_pod("g2", gpu=1, labels=GANG))
    model.put_pod(kube_pod("foreign", gpu=1, node="n0", scheduler="other"))
    model.put_pod(kube_pod("alone", gpu=1, node="n1"))
    model.refresh()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"phalanx_kube_{name}", labels)

    assert value("gangs", queue="default", state="partial") == 1
    assert value("gangs", queue="default", state="bound") == 1
    assert value("gangs", queue="default", state="pending") == 0
    assert value("incomplete_rounds") == 1
    assert value("overcommitted_nodes") == 1
    model.remove_pod("uid-default-foreign")
    model.remove_pod("uid-default-g2")
    model.refresh()
    assert value("incomplete_rounds") == 0
    assert value("overcommitted_nodes") == 0
