"""Which queues may reclaim the capacity of a job, by the settings of the queues.

What each queue will deserve by then is not known. These are the queues that the rules of
`plan/preemption/reclaim.py` do not exclude.
"""

from collections.abc import Mapping

import msgspec

from phalanx.core.model import Queue, ReclaimFrom
from phalanx.core.queues import at_or_above, quotas, sides
from phalanx.core.reasons import unit_in_words
from phalanx.core.spec.job import JobSpec, Resources


class Reclaimers(msgspec.Struct, frozen=True):
    queues: tuple[str, ...]
    because: str  #: the quota that does not protect the job


def reclaimers(
    spec: JobSpec,
    queues: Mapping[str, Queue],
    used: Mapping[str, Resources],
    highest: Mapping[str, int],
) -> Reclaimers | None:
    """The queues that may reclaim what a job uses; None if there are none.

    `used` is what each queue and the queues below it use; `highest` is, by queue, the highest
    priority of an unfinished job that may evict others. Two queues are compared below their lowest
    common ancestor: every queue on the side of the job must exceed its quota with the job, and
    every queue on the other side must have a share, by its weight or its quota.
    """
    needs = {name: amount for name, amount in spec.requested.items() if amount}
    granted = quotas(queues)
    exceeded = {
        queue.name: resource
        for queue in at_or_above(queues, spec.queue)
        if queue.reclaimable
        and (resource := _exceeded(granted[queue.name], used.get(queue.name, {}), needs))
    }
    #: By queue that may reclaim: the names of the queues on the side of the job.
    open_to: dict[str, list[str]] = {}
    for queue in queues.values():
        if spec.queue in exceeded and _reclaims_from(queue, spec, highest):
            side, job_side = sides(queues, queue.name, spec.queue)
            names = [each.name for each in job_side]
            has_share = all(_has_share(each, granted[each.name], needs) for each in side)
            if side and names and has_share and exceeded.keys() >= set(names):
                open_to[queue.name] = names
    if not open_to:
        return None
    common = min(open_to.values(), key=len)
    bound = next((name for name in common if exceeded[name] in granted[name]), spec.queue)
    because = _in_words(bound, granted[bound], exceeded[bound])
    return Reclaimers(tuple(sorted(open_to)), because)


def _exceeded(quota: Resources, used: Resources, needs: Resources) -> str | None:
    """A resource of which a queue with this quota would use more, if it also used `needs`.
    Resources that the quota does not name count only if it names none of them."""
    named = [name for name in needs if name in quota]
    amounts = ((name, used.get(name, 0) + needs[name]) for name in named or needs)
    return next((name for name, amount in amounts if amount > quota.get(name, 0)), None)


def _in_words(queue: str, quota: Resources, resource: str) -> str:
    if resource in quota:
        return f"queue {queue} would exceed its {unit_in_words(resource)} quota"
    unit = f"{unit_in_words(resource)} " if quota else ""
    return f"queue {queue} has no {unit}quota"


def _has_share(queue: Queue, quota: Resources, needs: Resources) -> bool:
    """Whether a queue can deserve any of the resources that a job needs."""
    return queue.weight > 0 or any(quota.get(name) for name in needs)


def _reclaims_from(queue: Queue, spec: JobSpec, highest: Mapping[str, int]) -> bool:
    """Whether a queue has a quota or unfinished jobs, and reclaims from jobs of this priority."""
    priority = highest.get(queue.name)
    match queue.reclaim_from_siblings:
        case ReclaimFrom.NEVER:
            return False
        case ReclaimFrom.LOWER_PRIORITY:
            return priority is not None and priority > spec.priority
        case ReclaimFrom.ANY:
            return bool(queue.quota) or priority is not None
