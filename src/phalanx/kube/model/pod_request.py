"""What a pod requests of its node, computed as kube-scheduler does.

Init containers run one after the other before the containers; those that restart always
(sidecars) run beside them. During a resize the largest of what is requested, allocated and in
effect counts.
"""

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from phalanx.kube.model.amounts import ExactAmounts, added, exact_amounts, largest, requested
from phalanx.kube.objects.pod import (
    ContainerStatus,
    KubeContainer,
    KubePod,
    Quantities,
    ResourceRequirements,
)

_HUGE_PAGES = "hugepages-"


class _Given(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parts of a pod from which its request follows."""

    containers: tuple[KubeContainer, ...]
    init_containers: tuple[KubeContainer, ...]
    resources: ResourceRequirements | None
    overhead: Quantities
    container_statuses: tuple[ContainerStatus, ...]
    init_container_statuses: tuple[ContainerStatus, ...]
    given_resources: ResourceRequirements | None
    allocated_resources: Quantities
    is_resize_infeasible: bool


_decoder = msgspec.msgpack.Decoder(_Given)


def pod_request(pod: KubePod) -> tuple[tuple[str, int], ...]:
    """The amounts by resource, sorted by its name."""
    spec, status = pod.spec, pod.status
    given = _Given(
        spec.containers,
        spec.init_containers,
        spec.resources,
        spec.overhead,
        status.container_statuses,
        status.init_container_statuses,
        status.resources,
        status.allocated_resources,
        _is_resize_infeasible(pod),
    )
    return _request(msgspec.msgpack.encode(given))


def has_same_request(pod: KubePod, later: KubePod) -> bool:
    """Whether two versions of a pod with the same spec have the same request."""
    before, after = pod.status, later.status
    is_same = (
        before.container_statuses == after.container_statuses
        and before.init_container_statuses == after.init_container_statuses
        and before.resources == after.resources
        and before.allocated_resources == after.allocated_resources
        and _is_resize_infeasible(pod) == _is_resize_infeasible(later)
    )
    return is_same or pod_request(pod) == pod_request(later)


@lru_cache(maxsize=1 << 12)
def _request(encoded: bytes) -> tuple[tuple[str, int], ...]:
    """The request, computed once for all pods that are equal in it."""
    given = _decoder.decode(encoded)
    amounts = _container_amounts(given)
    if given.resources is not None:
        amounts |= _pod_amounts(given, given.resources)
    return tuple(sorted(requested(added(amounts, exact_amounts(given.overhead))).items()))


def _container_amounts(given: _Given) -> ExactAmounts:
    """The containers and sidecars together, or an init container with the sidecars before it, if
    that is more."""
    infeasible = given.is_resize_infeasible
    statuses = {status.name: status for status in given.container_statuses}
    total: ExactAmounts = {}
    for container in given.containers:
        total = added(total, _effective(container, statuses, infeasible=infeasible))
    statuses = {status.name: status for status in given.init_container_statuses}
    sidecars: ExactAmounts = {}
    starting: ExactAmounts = {}
    for container in given.init_containers:
        if is_sidecar(container):
            amounts = _effective(container, statuses, infeasible=infeasible)
            total, sidecars = added(total, amounts), added(sidecars, amounts)
            starting = largest(starting, sidecars)
        else:
            amounts = exact_amounts(container.resources.requests)
            starting = largest(starting, added(amounts, sidecars))
    return largest(total, starting)


def is_sidecar(container: KubeContainer) -> bool:
    """Whether an init container runs beside the containers."""
    return container.restart_policy == "Always"


def _effective(
    container: KubeContainer, statuses: dict[str, ContainerStatus], *, infeasible: bool
) -> ExactAmounts:
    """What a container requests, or more if it was given more."""
    wanted = container.resources.requests
    status = statuses.get(container.name)
    if status is None or status.resources is None:
        return exact_amounts(wanted)
    given = (status.resources.requests, status.allocated_resources)
    return _largest_of(given if infeasible else (wanted, *given))


def _pod_amounts(given: _Given, resources: ResourceRequirements) -> ExactAmounts:
    """What the pod requests as a whole, which replaces what its containers request."""
    wanted, status = resources.requests, given.given_resources
    counted: tuple[Quantities, ...] = (wanted,)
    if status is not None and wanted:
        counted = (status.requests, given.allocated_resources)
        counted = counted if given.is_resize_infeasible else (wanted, *counted)
    amounts = _largest_of(counted)
    return {name: each for name, each in amounts.items() if _may_be_of_pod(name)}


def _largest_of(given: Iterable[Quantities]) -> ExactAmounts:
    return largest(*map(exact_amounts, given))


def _may_be_of_pod(resource: str) -> bool:
    """Whether a pod as a whole can request the resource."""
    return resource in ("cpu", "memory") or resource.startswith(_HUGE_PAGES)


def _is_resize_infeasible(pod: KubePod) -> bool:
    return any(
        each.type == "PodResizePending" and each.reason == "Infeasible"
        for each in pod.status.conditions
    )
