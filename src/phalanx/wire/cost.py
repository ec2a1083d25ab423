"""Views of lost work: GPU-seconds, and money in the currency of the prices."""

import msgspec


class TallyView(msgspec.Struct, frozen=True):
    gpu_s: float
    cost: float
    count: int  #: the number of stops


class EvictionView(msgspec.Struct, frozen=True):
    at: str
    by: str  #: the preemptor (namespace/name), or the operator
    why: str
    gpu_s: float
    cost: float


class LostView(msgspec.Struct, frozen=True):
    """The work that a job has lost. The sums cover all stops; `evictions` lists the latest."""

    gpu_s: float
    cost: float
    to_eviction: TallyView
    to_failure: TallyView
    evictions: tuple[EvictionView, ...]


class QueueCost(msgspec.Struct, frozen=True):
    queue: str
    to_eviction: TallyView
    to_failure: TallyView


class JobCost(msgspec.Struct, frozen=True):
    job: str
    name: str  #: namespace/name
    queue: str
    lost: TallyView


class EvictorCost(msgspec.Struct, frozen=True):
    by: str
    queue: str  #: the queue of the victims
    lost: TallyView


class CostView(msgspec.Struct, frozen=True):
    """Lost work since the database was created, with the most expensive jobs and evictors."""

    price: dict[str, float]  #: per hour, now; lost work is priced when it is lost
    to_eviction: TallyView
    to_failure: TallyView
    queues: tuple[QueueCost, ...]
    jobs: tuple[JobCost, ...]
    evictors: tuple[EvictorCost, ...]
