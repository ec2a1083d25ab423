"""Queues: what each may use, uses and deserves, and how many gangs run and are pending in it."""

from collections.abc import Mapping

import msgspec

from phalanx.core.spec.quantities import printed
from phalanx.core.time_units import Micros
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.model.queue_usage import ClusterQueueUsage, queue_usage
from phalanx.kube.model.queues import queue_problem


class KubeQueueView(msgspec.Struct, frozen=True):
    name: str
    parent: str | None
    weight: int
    quota: dict[str, str]
    limit: dict[str, str]
    used: dict[str, str]
    deserved: dict[str, str]  #: its fair share now
    running: int  #: gangs
    pending: int
    problem: str | None = None  #: why the queue cannot be used
    notes: tuple[str, ...] = ()  #: fields of it that have no effect


def queue_views(model: ClusterModel, now: Micros) -> list[KubeQueueView]:
    """All queues, by name, and those that gangs name although they do not exist."""
    return [_view(model, name, usage) for name, usage in sorted(queue_usage(model, now).items())]


def _view(model: ClusterModel, name: str, usage: ClusterQueueUsage) -> KubeQueueView:
    queue = model.state.queues.get(name)
    return KubeQueueView(
        name,
        None if queue is None else queue.parent,
        1 if queue is None else queue.weight,
        {} if queue is None else _printed(queue.quota),
        {} if queue is None else _printed(queue.limit),
        _printed(usage.used),
        _printed(usage.deserved),
        usage.running,
        usage.pending,
        queue_problem(name, model.queues, model.state.queues),
        model.queues[name].notes if name in model.queues else (),
    )


def _printed(amounts: Mapping[str, int]) -> dict[str, str]:
    return {resource: str(printed(resource, amount)) for resource, amount in amounts.items()}
