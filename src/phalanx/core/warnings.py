"""Warnings about a job that is accepted nevertheless: typed values with one sentence each."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches

import msgspec

from phalanx.core.ledger import DAY, DAYS_KEPT, Account
from phalanx.core.lost_work import money
from phalanx.core.model import PreemptWithin, Queue
from phalanx.core.node import GPU
from phalanx.core.queues import at_or_above, quotas
from phalanx.core.reasons import NeverFits, NoNodeMatches, QueueLimit, QueueQuota
from phalanx.core.reclaim import Reclaimers
from phalanx.core.spec.endpoints import endpoints_in, is_declared
from phalanx.core.spec.job import CheckpointPolicy, JobSpec
from phalanx.core.text import listed
from phalanx.core.time_units import HOUR, Micros

Unfit = NeverFits | NoNodeMatches | QueueLimit | QueueQuota


class WillNotStart(msgspec.Struct, frozen=True, tag=True):
    why: Unfit

    def __str__(self) -> str:
        why = self.why.shortfall if isinstance(self.why, NeverFits) else self.why
        return f"this job will not start: {why}"


class WorkAtStake(msgspec.Struct, frozen=True):
    """The most work that one stop can lose: a job that is declared to run long saves nothing."""

    gpus: float
    hours: float
    cost: float

    def __str__(self) -> str:
        price = f"${self.cost:.2f}" if self.cost else ""
        if not self.gpus:
            return f"{self.hours:g} hours of work" + (f" ({price})" if price else "")
        return f"{self.gpus * self.hours:g} GPU-hours" + (f" ({price})" if price else "")


class PreemptionRisk(msgspec.Struct, frozen=True, tag=True):
    queue: str
    because: str  #: which priority is higher
    preemptions: int  #: in the queue, over the last 7 days
    at_stake: WorkAtStake | None = None  #: set if it declares a long run and no checkpoint

    def __str__(self) -> str:
        risk = f"this job is low-priority; higher-priority jobs may preempt it ({self.because})"
        return risk + _evidence(self.queue, self.preemptions) + _loss(self.at_stake)


class ReclaimRisk(msgspec.Struct, frozen=True, tag=True):
    queue: str
    by: tuple[str, ...]  #: the queues that may reclaim
    because: str
    preemptions: int  #: in the queue, over the last 7 days
    at_stake: WorkAtStake | None = None

    def __str__(self) -> str:
        queues = f"queue{'s' if len(self.by) > 1 else ''} {listed(self.by, _MOST_QUEUES)}"
        risk = f"{queues} may reclaim the capacity of this job: {self.because}"
        return risk + _evidence(self.queue, self.preemptions) + _loss(self.at_stake)


def _evidence(queue: str, count: int) -> str:
    if not count:
        return ""
    times = "1 job" if count == 1 else f"{count} jobs"
    return f"; {times} of queue {queue} evicted in {DAYS_KEPT} days"


def _loss(at_stake: WorkAtStake | None) -> str:
    return "" if at_stake is None else f"; without a checkpoint it loses up to {at_stake}"


class UndeclaredEndpoint(msgspec.Struct, frozen=True, tag=True):
    """A variable has an endpoint of a service that the job does not declare."""

    variables: tuple[str, ...]
    endpoint: str

    def __str__(self) -> str:
        names = listed(self.variables, _MOST_VARIABLES)
        has = "has" if len(self.variables) == 1 else "have"
        return (
            f"{names} {has} the endpoint {self.endpoint}, which is not a declared external service;"
            " add it to external_services"
        )


class UnlikelyRequest(msgspec.Struct, frozen=True, tag=True):
    """A role requests something that was probably meant otherwise."""

    role: str
    resource: str
    meant: str  #: what was probably meant

    def __str__(self) -> str:
        return f"role {self.role} requests {self.resource}; did you mean {self.meant}?"


class BeyondTotal(msgspec.Struct, frozen=True, tag=True):
    members: int
    total: int  #: how many members the gang was said to have in all

    def __str__(self) -> str:
        return (
            f"this gang has {self.members} members, more than its total-number of {self.total}; "
            "all of them are scheduled"
        )


class UnpinnedImage(msgspec.Struct, frozen=True, tag=True):
    image: str

    def __str__(self) -> str:
        return (
            f"image {self.image} is not pinned to a digest, because its registry could not be read;"
            " workers may pull different images under the same tag"
        )


class UncheckedImage(msgspec.Struct, frozen=True, tag=True):
    """A plan does not know whether the image exists and has its signatures."""

    image: str
    why: str

    def __str__(self) -> str:
        return f"image {self.image} was not checked: {self.why}"


AnyWarning = (
    UnpinnedImage
    | UncheckedImage
    | BeyondTotal
    | WillNotStart
    | PreemptionRisk
    | ReclaimRisk
    | UndeclaredEndpoint
    | UnlikelyRequest
)

#: The resources that agents report.
_USUAL_RESOURCES = ("cpu", "gpu", "memory")
#: Less memory was probably written without its unit.
_LEAST_MEMORY = 2**20

#: How many names a warning lists.
_MOST_QUEUES = 3
_MOST_VARIABLES = 5
#: How many warnings of one kind a job has.
_MOST_OF_A_KIND = 5


class Standing(msgspec.Struct, frozen=True):
    """The situation of a job and its queue when the job is submitted."""

    now: Micros
    classes: Mapping[str, int]  #: priority classes by name
    prices: Mapping[str, int]
    long_running: Micros  #: jobs that run longer should save checkpoints
    queue: Queue
    highest: int | None  #: the highest priority of an unfinished job of the queue that may preempt
    reclaimers: Reclaimers | None  #: the queues that may reclaim from the job
    account: Account


def risks(spec: JobSpec, standing: Standing) -> list[AnyWarning]:
    """At most one warning about evictions: which rule allows one, and what it can cost."""
    if not spec.preemptible:
        return []
    preemptions = standing.account.preemptions_since(standing.now // DAY - DAYS_KEPT + 1)
    at_stake = _at_stake(spec, standing)
    if (priority := _higher_priority(spec, standing)) is not None:
        return [PreemptionRisk(spec.queue, priority, preemptions, at_stake)]
    if (by := standing.reclaimers) is not None:
        return [ReclaimRisk(spec.queue, by.queues, by.because, preemptions, at_stake)]
    return []


def _higher_priority(spec: JobSpec, standing: Standing) -> str | None:
    """The priority under which jobs of the same queue may preempt this one."""
    if standing.queue.preempt_within_queue is PreemptWithin.NEVER:
        return None
    above = {name: rank for name, rank in standing.classes.items() if rank > spec.priority}
    if above:
        return f"priority class {max(above, key=lambda name: (above[name], name))}"
    if standing.highest is not None and standing.highest > spec.priority:
        return f"queue {spec.queue} has a job of priority {standing.highest}"
    return None


def unlikely_requests(spec: JobSpec, is_offered: Callable[[str], bool]) -> list[AnyWarning]:
    """Requests of resources that no worker has and that look misspelt, and of a few bytes."""
    warnings: list[AnyWarning] = []
    for role in spec.roles:
        for name, amount in role.resources.items():
            if name == "memory" and amount < _LEAST_MEMORY:
                text = f"{amount} bytes of memory"
                warnings.append(UnlikelyRequest(role.name, text, f"{amount}Gi"))
            elif not is_offered(name) and (meant := usual_resource(name)):
                warnings.append(UnlikelyRequest(role.name, name, meant))
    return warnings[:_MOST_OF_A_KIND]


def usual_resource(name: str) -> str | None:
    """The resource of workers that a misspelt name probably means."""
    if name in _USUAL_RESOURCES:
        return None
    near = get_close_matches(name, _USUAL_RESOURCES, n=1)
    return near[0] if near else None


def undeclared(spec: JobSpec) -> dict[str, tuple[str, ...]]:
    """The endpoints in variables of a job, and in the parameters of an array, that it does not
    declare, each with those variables and parameters."""
    declared = set(spec.external_services.values())
    texts = [pair for role in spec.roles for pair in role.env.items()]
    params = {} if spec.array is None else spec.array.params
    texts += [(name, value) for name, values in params.items() for value in values]
    variables: dict[str, dict[str, None]] = {}
    for name, value in texts:
        for endpoint in endpoints_in(value):
            if not is_declared(endpoint, declared):
                variables.setdefault(endpoint, {})[name] = None
    return {endpoint: tuple(names) for endpoint, names in variables.items()}


def undeclared_endpoints(spec: JobSpec) -> list[AnyWarning]:
    return [
        UndeclaredEndpoint(names, endpoint)
        for endpoint, names in list(undeclared(spec).items())[:_MOST_OF_A_KIND]
    ]


def unpinned_images(spec: JobSpec) -> list[AnyWarning]:
    images = dict.fromkeys(role.image for role in spec.roles if role.image is not None)
    unpinned = [UnpinnedImage(image) for image in images if "@sha256:" not in image]
    return [*unpinned[:_MOST_OF_A_KIND]]


def exceeded_by(spec: JobSpec, queues: Mapping[str, Queue]) -> QueueLimit | QueueQuota | None:
    """The first limit, or quota that a job which is not preemptible must stay within, that the
    job's minimum exceeds by itself: of its queue or of a queue above it."""
    for queue in at_or_above(queues, spec.queue):
        for name, limit in queue.limit.items():
            want = _least(spec, name)
            if want > limit:
                return QueueLimit(queue.name, name, want, limit)
        if queue.non_preemptible_within_quota and not spec.preemptible:
            quota = quotas(queues)[queue.name]
            # Resources that the quota does not name are free for all, as long as it names any.
            for name in quota or spec.requested:
                want = _least(spec, name)
                if want > quota.get(name, 0):
                    return QueueQuota(queue.name, name, want, quota.get(name, 0))
    return None


def _least(spec: JobSpec, resource: str) -> int:
    """The least amount of a resource with which the job can start."""
    asked = [role.resources.get(resource, 0) for role in spec.roles]
    rest = spec.min_available - sum(role.min for role in spec.roles)
    return sum(a * role.min for a, role in zip(asked, spec.roles, strict=True)) + rest * min(asked)


def _at_stake(spec: JobSpec, standing: Standing) -> WorkAtStake | None:
    """What a stop can lose, for a job without checkpoints that declares to run long."""
    limit, needs = spec.time_limit, spec.requested
    if spec.checkpoint is not CheckpointPolicy.NONE:
        return None
    if limit is None or limit <= standing.long_running:
        return None
    cost = money({name: amount * limit for name, amount in needs.items()}, standing.prices)
    return WorkAtStake(needs.get(GPU, 0) / 1000, limit / HOUR, round(cost / 1_000_000, 2))
