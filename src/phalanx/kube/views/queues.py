"""Queues: what each may use, uses and deserves, and how many gangs run and are pending in it."""

from collections import Counter
from collections.abc import Mapping

import msgspec

from phalanx.core.spec.quantities import printed
from phalanx.core.time_units import Micros
from phalanx.kube.gangs.gang import MemberState
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.model.queues import queue_problem
from phalanx.kube.views.gangs import is_own
from phalanx.plan.explain.share_rules import settled_shares
from phalanx.plan.state.nodes import SLOTS, WHOLE, Floats

#: Queues share these in numbers that people do not look for.
_HIDDEN = (SLOTS, WHOLE)


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
    """All queues, by name."""
    running, pending = _gang_counts(model)
    shares = settled_shares(model.state.at(now))
    resources = list(shares.table.rows)

    def amounts(row: Floats) -> dict[str, str]:
        named = zip(resources, row.tolist(), strict=True)
        return _printed({r: int(a) for r, a in named if a >= 1 and r not in _HIDDEN})

    views = [
        KubeQueueView(
            name,
            branch.queue.parent,
            branch.queue.weight,
            _printed(branch.queue.quota),
            _printed(branch.queue.limit),
            amounts(branch.used),
            amounts(branch.deserved),
            running[name],
            pending[name],
            _problem(model, name),
            model.queues[name].notes if name in model.queues else (),
        )
        for name, branch in shares.branches.items()
    ]
    named = model.queues.keys() | running.keys() | pending.keys()
    views += (
        _unusable(model, name, running[name], pending[name])
        for name in named - shares.branches.keys()
    )
    return sorted(views, key=lambda view: view.name)


def _gang_counts(model: ClusterModel) -> tuple[Counter[str], Counter[str]]:
    """By queue: the gangs that run, and those with pending pods."""
    running: Counter[str] = Counter()
    pending: Counter[str] = Counter()
    for gang in model.gangs.gangs.values():
        if is_own(model, gang):
            states = {member.state for member in gang.members.values()}
            queue = model.queue_of(gang).name
            running[queue] += MemberState.BOUND in states
            pending[queue] += MemberState.PENDING in states
    return running, pending


def _printed(amounts: Mapping[str, int]) -> dict[str, str]:
    return {resource: str(printed(resource, amount)) for resource, amount in amounts.items()}


def _problem(model: ClusterModel, name: str) -> str | None:
    return queue_problem(name, model.queues, model.state.queues)


def _unusable(model: ClusterModel, name: str, running: int, pending: int) -> KubeQueueView:
    """A queue that cannot be used, or that gangs name although it does not exist."""
    problem = _problem(model, name)
    return KubeQueueView(name, None, 1, {}, {}, {}, {}, running, pending, problem)
