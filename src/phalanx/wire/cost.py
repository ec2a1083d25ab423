"""What stops have cost, as it is shown: GPU-seconds, and money in the unit that prices are in."""

import msgspec


class TallyView(msgspec.Struct, frozen=True):
    gpu_s: float
    cost: float
    count: int  #: of stops


class EvictionView(msgspec.Struct, frozen=True):
    at: str
    by: str  #: the job it gave way to (namespace/name), or the operator
    gpu_s: float
    cost: float


class LostView(msgspec.Struct, frozen=True):
    """What a job has lost. The sums are exact; only the last evictions are named."""

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
    queue: str  #: whose jobs gave way
    lost: TallyView


class CostView(msgspec.Struct, frozen=True):
    """Since the store was made. Of jobs and evictors, those that cost each queue most."""

    price: dict[str, float]  #: an hour of one; what was lost was priced when it was lost
    to_eviction: TallyView
    to_failure: TallyView
    queues: tuple[QueueCost, ...]
    jobs: tuple[JobCost, ...]
    evictors: tuple[EvictorCost, ...]
