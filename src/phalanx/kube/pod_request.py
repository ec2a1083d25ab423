"""What a pod requests of its node, computed as kube-scheduler does.

Init containers run one after the other before the containers; those that restart always
(sidecars) run beside them. During a resize the largest of what is requested, allocated and in
effect counts.
"""

from collections.abc import Iterable

from phalanx.kube.amounts import ExactAmounts, added, exact_amounts, largest, requested
from phalanx.kube.objects.pod import (
    ContainerStatus,
    KubeContainer,
    KubePod,
    Quantities,
    ResourceRequirements,
)

_HUGE_PAGES = "hugepages-"


def pod_request(pod: KubePod) -> tuple[tuple[str, int], ...]:
    """The amounts by resource, sorted by its name."""
    spec = pod.spec
    infeasible = _is_resize_infeasible(pod)
    amounts = _container_amounts(pod, infeasible=infeasible)
    if spec.resources is not None:
        amounts |= _pod_amounts(pod, spec.resources, infeasible=infeasible)
    return tuple(sorted(requested(added(amounts, exact_amounts(spec.overhead))).items()))


def _container_amounts(pod: KubePod, *, infeasible: bool) -> ExactAmounts:
    """The containers and sidecars together, or an init container with the sidecars before it, if
    that is more."""
    statuses = {status.name: status for status in pod.status.container_statuses}
    total: ExactAmounts = {}
    for container in pod.spec.containers:
        total = added(total, _effective(container, statuses, infeasible=infeasible))
    statuses = {status.name: status for status in pod.status.init_container_statuses}
    sidecars: ExactAmounts = {}
    starting: ExactAmounts = {}
    for container in pod.spec.init_containers:
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


def _pod_amounts(
    pod: KubePod, resources: ResourceRequirements, *, infeasible: bool
) -> ExactAmounts:
    """What the pod requests as a whole, which replaces what its containers request."""
    wanted, status = resources.requests, pod.status.resources
    given: tuple[Quantities, ...] = (wanted,)
    if status is not None and wanted:
        given = (status.requests, pod.status.allocated_resources)
        given = given if infeasible else (wanted, *given)
    amounts = _largest_of(given)
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
