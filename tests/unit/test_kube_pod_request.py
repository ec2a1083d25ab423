"""What a pod requests of its node, against amounts computed by hand."""

from typing import Any

import pytest
from tests.kube_objects import kube_node, kube_pod

from phalanx.kube.model.node_row import PodOnNode, node_row
from phalanx.kube.model.pod_request import pod_request

GPUS = "nvidia.com/gpu"


def container(name: str = "c", *, sidecar: bool = False, **requests: str) -> dict[str, Any]:
    policy = {"restartPolicy": "Always"} if sidecar else {}
    return {"name": name, "resources": {"requests": requests}, **policy}


def cpu_of(**spec: Any) -> int:
    return dict(pod_request(kube_pod(**spec))).get("cpu", 0)


def test_containers_are_added_and_amounts_round_up_once() -> None:
    pod = kube_pod(containers=[container(cpu="100u", memory="1500m")] * 3)
    assert pod_request(pod) == (("cpu", 1), ("memory", 5))


def test_gpus_are_counted_in_thousandths_and_amounts_of_0_are_left_out() -> None:
    pod = kube_pod(cpu="0", gpu=2)
    assert pod_request(pod) == (("gpu", 2000),)


@pytest.mark.parametrize(
    ("inits", "expected"),
    [
        ([container(cpu="1")], 2000),
        ([container(cpu="3")], 3000),
        ([container(cpu="3"), container(cpu="2")], 3000),
        # A sidecar runs beside the containers, and beside the init containers after it.
        ([container("s", sidecar=True, cpu="1"), container(cpu="3")], 4000),
        ([container(cpu="3"), container("s", sidecar=True, cpu="1")], 3000),
        ([container("s", sidecar=True, cpu="2"), container("t", sidecar=True, cpu="2")], 6000),
    ],
)
def test_init_containers_run_before_the_containers(
    inits: list[dict[str, Any]], expected: int
) -> None:
    assert cpu_of(containers=[container(cpu="2")], initContainers=inits) == expected


def test_the_overhead_is_added_to_containers_and_to_pod_level_resources() -> None:
    spec: dict[str, Any] = {"containers": [container(cpu="2")], "overhead": {"cpu": "250m"}}
    assert cpu_of(**spec) == 2250
    assert cpu_of(**spec, resources={"requests": {"cpu": "3"}}) == 3250


def test_pod_level_resources_replace_only_what_they_name() -> None:
    pod = kube_pod(
        containers=[{"resources": {"requests": {"cpu": "2", "memory": "1Gi", GPUS: "1"}}}],
        resources={"requests": {"cpu": "1", GPUS: "7", "hugepages-2Mi": "4Mi"}},
    )
    assert dict(pod_request(pod)) == {
        "cpu": 1000,
        "memory": 2**30,
        "gpu": 1000,
        "hugepages-2Mi": 4 * 2**20,
    }


@pytest.mark.parametrize(
    ("allocated", "actual", "conditions", "expected"),
    [
        ("1", "1", [], 2000),  # grows
        ("4", "3", [], 4000),  # shrinks, and has not yet
        ("1", "3", [("PodResizePending", "Infeasible")], 3000),
        ("1", "1", [("PodResizePending", "Deferred")], 2000),
    ],
)
def test_during_a_resize_the_largest_amount_counts(
    allocated: str, actual: str, conditions: list[tuple[str, str]], expected: int
) -> None:
    given = {
        "name": "c",
        "allocatedResources": {"cpu": allocated},
        "resources": {"requests": {"cpu": actual}},
    }
    status = {
        "containerStatuses": [given],
        "conditions": [{"type": kind, "status": "True", "reason": why} for kind, why in conditions],
    }
    assert cpu_of(containers=[container(cpu="2")], status=status) == expected


def test_a_node_offers_what_is_allocatable_less_the_pods_that_belong_to_it() -> None:
    node = kube_node(cpu="3999999u", gpu=4, memory="10", pods=10)
    own = PodOnNode((("cpu", 500), ("gpu", 1000)), is_fixed=False, is_own=True)
    others = PodOnNode((("cpu", 250),), is_fixed=False, is_own=False)
    fixed = PodOnNode((("cpu", 1000), ("memory", 4)), is_fixed=True, is_own=False)
    row = node_row(node, [own, others, fixed])
    assert row.resources == {"cpu": 2999, "gpu": 4000, "memory": 6}
    assert row.used == {"cpu": 750, "gpu": 1000}
    assert row.unshared == {"cpu": 250}
    assert (row.slots, row.occupants) == (9, 2)


def test_a_node_without_a_number_of_pods_takes_none() -> None:
    node = kube_node(pods=0)
    assert node_row(node, []).slots == 0


def test_a_cordoned_node_has_a_taint_and_is_not_shared() -> None:
    row = node_row(kube_node(unschedulable=True, cpu=2), [])
    assert [taint.key for taint in row.taints] == ["node.kubernetes.io/unschedulable"]
    assert row.unshared == row.resources
