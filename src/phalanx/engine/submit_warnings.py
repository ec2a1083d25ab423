"""Warnings about submitted jobs, judged by the current cluster.

A warning refuses nothing, so it may rest on facts that are a few seconds old: expensive facts are
computed once for many jobs.
"""

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from phalanx.core.cluster import Cluster
from phalanx.core.ids import split_task
from phalanx.core.ledger import Account
from phalanx.core.model import Queue
from phalanx.core.queues import at_or_above
from phalanx.core.reasons import NeverFits, NoNodeMatches
from phalanx.core.reclaim import reclaimers
from phalanx.core.spec.job import JobSpec, PreemptionPolicy, Resources
from phalanx.core.time_units import SECOND, Micros
from phalanx.core.warnings import (
    AnyWarning,
    Standing,
    Unfit,
    WillNotStart,
    exceeded_by,
    risks,
    undeclared_endpoints,
    unlikely_requests,
    unpinned_images,
)
from phalanx.engine.turn import Turn
from phalanx.plan.explain.fits_ever import FitsEver

#: How old the facts about queues may be, and how much older for each unfinished job: finding them
#: takes a hundredth of that.
_FACTS_AGE = 1 * SECOND
_FACTS_AGE_PER_JOB: Micros = 25
_CACHE_SIZE = 10_000
#: The planner, not the answer to the submission, says that a job with more roles never fits.
_JUDGED_ROLES = 20


class _QueueFacts(NamedTuple):
    """What the unfinished jobs of the queues use and may do."""

    used: dict[str, Resources]  #: by queue, with what the queues below it use
    #: The highest priority of an unfinished job that may evict others, by queue.
    highest: dict[str, int]


class SubmitWarnings:
    def __init__(self, priority_classes: Mapping[str, int]) -> None:
        self._classes = priority_classes
        self.warns_unpinned = False  #: whether an image without a digest deserves a warning
        #: What a job requests → why it never fits, if so.
        self._verdicts: dict[Hashable, Unfit | None] = {}
        self._fits_ever: FitsEver | None = None
        self._closed: dict[str, str] = {}  #: by worker: why it accepts no tasks, as last judged
        self._cluster: Cluster | None = None
        self._facts = _QueueFacts({}, {})
        self._facts_until: Micros = 0

    def observe(self, turn: Turn) -> None:
        """Judge jobs again when the workers change, or whether they accept tasks."""
        if self._fits_ever is None:
            return
        nodes = turn.cluster.nodes
        changed = {worker for changes in turn.changes for worker in changes.workers}
        touched = {worker for changes in turn.changes for worker in changes.nodes}
        changed |= {
            worker
            for worker in touched
            if worker in nodes and nodes[worker].closed != self._closed.get(worker, "")
        }
        for worker in changed:
            self._fits_ever.update(worker, nodes.get(worker))
            self._closed[worker] = nodes[worker].closed if worker in nodes else ""
        if changed:
            self._verdicts.clear()

    def _forget(self) -> None:
        self._verdicts.clear()
        self._fits_ever = None

    def of(self, turn: Turn, spec: JobSpec) -> tuple[AnyWarning, ...]:
        """The warnings about a job, were it submitted in this turn."""
        cluster = turn.cluster
        if cluster is not self._cluster:
            self._cluster, self._facts_until = cluster, 0
            self._forget()
        # Before the first worker registers no job fits, which deserves no warning.
        fits_anywhere = spec.is_anonymous or not cluster.nodes or len(spec.roles) > _JUDGED_ROLES
        reason: Unfit | None = exceeded_by(spec, cluster.queues)
        if reason is None and not fits_anywhere:
            reason = self._unfit(cluster, spec)
        warnings: list[AnyWarning] = [] if reason is None else [WillNotStart(reason)]
        risk = risks(spec, self._standing(turn, spec))
        unlikely = unlikely_requests(spec, lambda name: _is_offered(cluster, name))
        unpinned = unpinned_images(spec) if self.warns_unpinned else ()
        return (*warnings, *unlikely, *risk, *undeclared_endpoints(spec), *unpinned)

    def _unfit(self, cluster: Cluster, spec: JobSpec) -> Unfit | None:
        """Why the job never fits the cluster; None if it does."""
        if len(self._verdicts) >= _CACHE_SIZE:
            self._forget()
        if self._fits_ever is None:
            self._fits_ever = FitsEver(cluster.nodes)
            self._closed = {name: node.closed for name, node in cluster.nodes.items()}
        gang = self._fits_ever.gang(spec)
        key = (gang.roles, gang.need, gang.pack, gang.gate)
        if key not in self._verdicts:
            reason = self._fits_ever.why_never(gang)
            unfit = reason if isinstance(reason, NeverFits | NoNodeMatches) else None
            self._verdicts[key] = unfit
        return self._verdicts[key]

    def _standing(self, turn: Turn, spec: JobSpec) -> Standing:
        cluster = turn.cluster
        queue = cluster.queues.get(spec.queue) or Queue(spec.queue)
        facts = self._facts_of(turn)
        return Standing(
            now=turn.now,
            classes=self._classes,
            prices=cluster.settings.price,
            long_running=cluster.settings.long_running,
            queue=queue,
            highest=facts.highest.get(spec.queue),
            reclaimers=reclaimers(spec, cluster.queues, facts.used, facts.highest),
            account=cluster.accounts.get(spec.queue) or Account(spec.queue),
        )

    def _facts_of(self, turn: Turn) -> _QueueFacts:
        cluster = turn.cluster
        if turn.now >= self._facts_until:
            self._facts = _QueueFacts(_used(cluster), _highest_priorities(cluster))
            age = _FACTS_AGE + _FACTS_AGE_PER_JOB * len(cluster.gangs)
            self._facts_until = turn.now + age
        return self._facts


def _is_offered(cluster: Cluster, resource: str) -> bool:
    return any(resource in node.worker.resources for node in cluster.nodes.values())


def _highest_priorities(cluster: Cluster) -> dict[str, int]:
    highest: dict[str, int] = {}
    for gang in cluster.gangs.values():
        job = gang.job
        if job.spec.preemption_policy is not PreemptionPolicy.NEVER:
            queue = job.spec.queue
            highest[queue] = max(job.priority, highest.get(queue, job.priority))
    return highest


def _used(cluster: Cluster) -> dict[str, Resources]:
    """The resources that the tasks of each queue, and of the queues below it, occupy."""
    used: dict[str, Resources] = {}
    for node in cluster.nodes.values():
        for (task, _), charge in node.charges.items():
            gang = cluster.gangs.get(split_task(task)[0])
            if gang is None:
                continue
            for queue in at_or_above(cluster.queues, gang.job.spec.queue):
                of_queue = used.setdefault(queue.name, {})
                for name, amount in charge.resources.items():
                    of_queue[name] = of_queue.get(name, 0) + amount
    return used
