"""Queues as users see them: what each uses and deserves, and its gangs, in the status of the queue.

A status is written when it has changed, at most once every few seconds, and within the budget of
all writers. Several schedulers may have gangs in one queue: each writes a part of its own, and the
sum of all parts.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import structlog

from phalanx.host.clock import boot_time, wall_clock
from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.errors import ApiStatusError, ApiUnreachableError
from phalanx.kube.api.resources import VOLCANO, Resource
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.model.queue_usage import ClusterQueueUsage, foreign_amounts, queue_usage
from phalanx.kube.model.queues import DEFAULT, queue_problem
from phalanx.kube.objects.gang import KubeQueue
from phalanx.kube.objects.metadata import ObjectCondition
from phalanx.kube.writes.group_status import PENDING
from phalanx.kube.writes.queue_status import (
    changed_fields,
    native_status,
    volcano_status,
    written_parts,
)
from phalanx.kube.writes.write_budget import WriteBudget
from phalanx.manifest.gang_keys import GangFamily

#: Usage is computed this often, and a status written at most as often.
_INTERVAL_S = 5.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class QueueObject(NamedTuple):
    """A queue as it was read, from an API that has a status."""

    queue: KubeQueue
    resource: Resource[KubeQueue]


class QueueWriter:
    """Writes the queues of Phalanx, and those of Volcano that have gangs of this scheduler, which
    serves these names."""

    def __init__(
        self,
        client: ApiClient,
        may_act: Callable[[], bool],
        budget: WriteBudget,
        scheduler_names: Sequence[str],
    ) -> None:
        self.writes = 0
        self._client = client
        self._may_act = may_act
        self._budget = budget
        self._scheduler_names = scheduler_names
        self._computed_s = 0.0
        self._written: set[str] = set()
        #: By uid: the fields to write, which the next report replaces.
        self.due: dict[str, tuple[QueueObject, dict[str, Any]]] = {}
        self._has_work = asyncio.Event()

    def report(self, model: ClusterModel, queues: Iterable[QueueObject]) -> None:
        """Take over what the queues use, if the last look is some time ago."""
        if boot_time() - self._computed_s < _INTERVAL_S:
            return
        self._computed_s = boot_time()
        # A queue of Volcano and one of Phalanx may have the same name: one of them is used.
        used = {each.target.uid for each in model.queues.values() if each.target is not None}
        items = [item for item in queues if item.queue.metadata.uid in used]
        if not items:
            return
        usage, in_use = queue_usage(model, wall_clock()), model.pods.names_in_use()
        has_volcano = any(item.resource.group == VOLCANO for item in items)
        phases, foreign = (_phases(model), foreign_amounts(model)) if has_volcano else ({}, {})
        self.due.clear()
        for item in items:
            metadata = item.queue.metadata
            here = usage[metadata.name]
            if item.resource.group == VOLCANO:
                allocated = Counter(here.used) + foreign[metadata.name]
                status = volcano_status(allocated, phases[metadata.name])
                is_ours = metadata.uid in self._written or here.running or here.pending
            else:
                parts = self._parts(item.queue, here, in_use)
                status, is_ours = _native_status(model, item.queue, parts), True
            changed = changed_fields(status, item.queue.status)
            if changed and is_ours:
                self.due[metadata.uid] = (item, changed)
        if self.due:
            self._has_work.set()

    def _parts(
        self, queue: KubeQueue, here: ClusterQueueUsage, in_use: set[str]
    ) -> dict[str, ClusterQueueUsage]:
        """By scheduler names: what this scheduler counts, and what others have written. A scheduler
        whose names no pod has is gone, and this one may have had fewer or more names before."""
        parts = {
            names: part
            for names, part in written_parts(queue.status).items()
            if (served := {*names.split(",")}) & in_use and served.isdisjoint(self._scheduler_names)
        }
        return parts | ({",".join(self._scheduler_names): here} if any(here) else {})

    async def run(self) -> None:
        """Write what is due, until cancelled."""
        while True:
            await self._has_work.wait()
            if not self.due:
                self._has_work.clear()
                continue
            await self._budget.take()
            if self.due and self._may_act():
                _, (item, status) = self.due.popitem()
                await self._write(item, status)

    async def _write(self, item: QueueObject, status: dict[str, Any]) -> None:
        metadata = item.queue.metadata
        path = item.resource.path("", metadata.name, "status")
        try:
            await self._client.patch(path, {"metadata": {"uid": metadata.uid}, "status": status})
        except (ApiStatusError, ApiUnreachableError) as error:
            is_busy = self._budget.note(error)
            if not is_busy and not (isinstance(error, ApiStatusError) and error.code in (404, 409)):
                log.warning("queue not written", queue=metadata.name, reason=str(error))
        else:
            self.writes += 1
            self._written.add(metadata.uid)


def _native_status(
    model: ClusterModel, queue: KubeQueue, parts: Mapping[str, ClusterQueueUsage]
) -> dict[str, Any]:
    before = msgspec.convert(queue.status.get("conditions") or (), tuple[ObjectCondition, ...])
    problem = queue_problem(queue.metadata.name, model.queues, model.state.queues)
    return native_status(parts, problem, before, datetime.now(UTC))


def _phases(model: ClusterModel) -> defaultdict[str, list[str]]:
    """By queue: the phases of Volcano's PodGroups in it."""
    phases: defaultdict[str, list[str]] = defaultdict(list)
    for key in model.gangs.group_keys():
        item = model.gangs.object_of(key) if key.family is GangFamily.VOLCANO else None
        if item is not None:
            queue = str(item.group.spec.get("queue") or DEFAULT)
            phases[queue].append(item.group.status.phase or PENDING)
    return phases
