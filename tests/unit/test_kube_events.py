"""Events about what the scheduler does not do: each is written once."""

from typing import Any

import msgspec
from tests.kube_objects import kube_node, kube_pod

from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.objects.gang import KubeQueue
from phalanx.kube.objects.metadata import ObjectReference
from phalanx.kube.writes.open_calls import OpenCalls
from phalanx.kube.writes.rounds import ROUND
from phalanx.kube.writes.rounds_expiry import RoundsExpiry
from phalanx.kube.writes.unused_fields import UnusedFieldEvents

ACK = "pod-group.scheduling.sigs.k8s.io/"


class EventRecord:
    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def warn(self, target: ObjectReference, reason: str, message: str) -> None:
        self.events.append((target.name, reason, message))


def test_a_pod_that_no_controller_replaces_stays_bound_in_part_with_an_event() -> None:
    model = ClusterModel()
    model.put_node(kube_node("n0"))
    labels = {f"{ACK}name": "g", f"{ACK}min-available": "2"}
    at = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T10:00:00Z"}
    status = {"conditions": [at]}
    bound = kube_pod("w0", node="n0", labels=labels, annotations={ROUND: "r/2/2"}, status=status)
    model.put_pod(bound)
    model.put_pod(kube_pod("w1", labels=labels, cpu=100))
    model.refresh()
    record = EventRecord()
    fakes: dict[str, Any] = {"evictor": None, "events": record}
    expiry = RoundsExpiry(model, calls=OpenCalls(), timeout_s=60.0, **fakes)
    for _ in range(2):
        expiry.check()
    kept = "not evicted, because no controller would replace the pod"
    message = f"gang default/g was bound in part for 60 s; {kept}"
    assert record.events == [("w0", "GangTimedOut", message)]


def test_a_queue_that_cannot_be_used_has_an_event() -> None:
    model = ClusterModel()
    given = {"metadata": {"name": "vision", "uid": "u"}, "spec": {"parent": "missing"}}
    model.put_queue(msgspec.convert(given, KubeQueue), is_volcano=False)
    record: Any = EventRecord()
    events = UnusedFieldEvents(record, lambda: True)
    for _ in range(2):
        events.report(model)
    message = "cannot be used: its parent missing does not exist"
    assert record.events == [("vision", "NotUsable", message)]
