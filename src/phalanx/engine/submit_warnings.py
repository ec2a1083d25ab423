"""What a job that comes in may expect, from the cluster as it is. Advice refuses nothing, so it
may be a moment old: what costs much to find out is found out once for many jobs."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from phalanx.core.cluster import Cluster
from phalanx.core.ids import split_task
from phalanx.core.interning import shared_spec
from phalanx.core.ledger import Account
from phalanx.core.model import Queue
from phalanx.core.reasons import NeverFits, NoNodeMatches
from phalanx.core.spec.job import JobSpec, Resources, Role
from phalanx.core.warnings import (
    AnyWarning,
    Standing,
    Unfit,
    WillNotStart,
    above_limit,
    risks,
)
from phalanx.engine.turn import Turn
from phalanx.plan.explain.fits_ever import FitsEver

#: How old the usage of queues may be.
_USAGE_S = 1.0
_ANSWERS_KEPT = 1000


class _Found(NamedTuple):
    roles: tuple[Role, ...]  #: held, so that nothing else takes their place in memory
    why: Unfit | None


class SubmitWarnings:
    def __init__(self, priority_classes: Mapping[str, int]) -> None:
        self._classes = priority_classes
        #: What was found of roles, which equal jobs share, with each minimum.
        self._found: dict[tuple[int, int], _Found] = {}
        self._fitting: FitsEver | None = None
        self._cluster: Cluster | None = None
        self._usage: dict[str, Resources] = {}
        self._counted_at = float("-inf")

    def observe(self, turn: Turn) -> None:
        """Whether a job fits changes with the workers."""
        if any(changes.workers for changes in turn.changes):
            self._forget()

    def _forget(self) -> None:
        self._found.clear()
        self._fitting = None

    def on(self, turn: Turn, spec: JobSpec) -> tuple[AnyWarning, ...]:
        cluster = turn.cluster
        if cluster is not self._cluster:
            self._cluster, self._counted_at = cluster, float("-inf")
            self._forget()
        spec = shared_spec(spec)
        # Where there is no worker yet, nothing fits, and nobody need be told.
        is_moot = spec.is_anonymous or not cluster.nodes
        why: Unfit | None = above_limit(spec, cluster.queues)
        if why is None and not is_moot:
            why = self._unfit(cluster, spec)
        found: list[AnyWarning] = [] if why is None else [WillNotStart(why)]
        return (*found, *risks(spec, self._standing(turn, spec)))

    def _unfit(self, cluster: Cluster, spec: JobSpec) -> Unfit | None:
        question = (id(spec.roles), spec.min_available)
        found = self._found.get(question)
        if found is None:
            if len(self._found) >= _ANSWERS_KEPT:
                self._found.clear()
            if self._fitting is None:
                self._fitting = FitsEver(cluster.nodes)
            why = self._fitting.why_never(spec)
            unfit = why if isinstance(why, NeverFits | NoNodeMatches) else None
            found = self._found[question] = _Found(spec.roles, unfit)
        return found.why

    def _standing(self, turn: Turn, spec: JobSpec) -> Standing:
        cluster = turn.cluster
        queue = cluster.queues.get(spec.queue) or Queue(spec.queue)
        return Standing(
            now=turn.now,
            classes=self._classes,
            prices=cluster.settings.price,
            queue=queue,
            is_alone=len(cluster.queues) == 1,
            usage=self._usage_of(cluster, spec.queue) if queue.quota else {},
            account=cluster.accounts.get(spec.queue) or Account(spec.queue),
        )

    def _usage_of(self, cluster: Cluster, queue: str) -> Resources:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._counted_at >= _USAGE_S:
            self._usage, self._counted_at = _usage(cluster), now_s
        return self._usage.get(queue, {})


def _usage(cluster: Cluster) -> dict[str, Resources]:
    """What the tasks of each queue occupy."""
    used: dict[str, Resources] = {}
    for node in cluster.nodes.values():
        for (task, _), charge in node.charges.items():
            gang = cluster.gangs.get(split_task(task)[0])
            if gang is None:
                continue
            of_queue = used.setdefault(gang.job.spec.queue, {})
            for name, amount in charge.resources.items():
                of_queue[name] = of_queue.get(name, 0) + amount
    return used
