"""Rounds of binds. Kubernetes cannot bind a gang in one step, so every bind names its round: how
many pods are bound in it, and how many members of the gang were pending then. A scheduler that
starts in between can tell a gang that is half bound from one that has lost members."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from phalanx.kube.objects.pod import KubePod

#: The annotation of a bind, which the API server copies to the pod in the same write.
ROUND = "phalanx.dev/round"
_FORM = re.compile(r"(?P<id>[a-z0-9]{1,63})/(?P<binds>[1-9][0-9]{0,5})/(?P<pending>[0-9]{1,6})")


class BindRound(NamedTuple):
    id: str
    binds: int  #: pods that are bound in it
    pending: int  #: members of the gang that were pending when it began

    def __str__(self) -> str:
        return f"{self.id}/{self.binds}/{self.pending}"


def round_of(pod: KubePod) -> BindRound | None:
    """The round in which a pod was bound; None if it carries none that can be read."""
    match = _FORM.fullmatch(pod.metadata.annotations.get(ROUND, ""))
    if match is None:
        return None
    return BindRound(match["id"], int(match["binds"]), int(match["pending"]))


def incomplete_rounds(
    bound: Iterable[KubePod], pending: Sequence[KubePod]
) -> dict[str, list[KubePod]]:
    """The bound pods of each round of a gang that stopped half way, by the id of the round.

    A round is incomplete if fewer pods carry it than were to be bound, and all members that were
    pending when it began are still there: those that carry it, and the pending ones that are not
    younger than its first bind. In doubt it is complete: a gang that has lost members is left to
    its controller.
    """
    by_round: dict[BindRound, list[KubePod]] = {}
    for pod in bound:
        carried = round_of(pod)
        if carried is not None:
            by_round.setdefault(carried, []).append(pod)
    incomplete = {}
    for each, pods in by_round.items():
        began = min((at for pod in pods if (at := bound_at(pod)) is not None), default=None)
        if began is None or len(pods) >= each.binds:
            continue
        older = sum(_created(pod) is not None and _created(pod) <= began for pod in pending)
        if len(pods) + older == each.pending:
            incomplete[each.id] = pods
    return incomplete


def bound_at(pod: KubePod) -> datetime | None:
    """When a pod was bound, as far as its conditions say."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "True":
            return condition.last_transition_time
    return pod.status.start_time


def is_foreign_bind(before: KubePod | None, after: KubePod) -> bool:
    """Whether another scheduler has bound a pod that was pending: it carries no round."""
    was_pending = before is not None and not before.spec.node_name
    return was_pending and bool(after.spec.node_name) and ROUND not in after.metadata.annotations


def _created(pod: KubePod) -> datetime:
    created = pod.metadata.creation_timestamp
    if created is None:
        raise AssertionError(f"bug: pod {pod.metadata.key} has no creation time")
    return created
