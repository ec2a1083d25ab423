"""Views of the cluster as a whole: now, and over the last day. GPUs are numbers of GPUs."""

from typing import Any

import msgspec

from phalanx.wire.cost import TallyView


class PendingJobView(msgspec.Struct, frozen=True, omit_defaults=True):
    job: str
    name: str  #: namespace/name
    queue: str
    size: int
    priority: int
    since: str
    resources: dict[str, Any]  #: of one task of its first role
    reason: dict[str, Any] | None = None
    starts_at: str | None = None  #: the reserved start time


class OverviewView(msgspec.Struct, frozen=True):
    """The sums cover all namespaces; `first_pending` has jobs that the caller may see."""

    at: str
    gpus: float  #: of the workers that are not lost
    used_gpus: float
    mean_used_share: float | None  #: over the last day; null before the first sample
    running: int  #: gangs
    running_tasks: int
    pending: int
    oldest_pending_at: str | None
    ended: dict[str, int]  #: jobs that ended in the last day, by phase
    evicted: TallyView  #: work lost in the last day
    failed: TallyView
    workers: dict[str, int]  #: by status
    closed_workers: tuple[str, ...]  #: some of those that are lost, leaving or cordoned
    first_pending: tuple[PendingJobView, ...]


class UsagePoint(msgspec.Struct, frozen=True):
    at: str
    gpus: float
    used_gpus: float
    running: float
    pending: float


class UsageView(msgspec.Struct, frozen=True):
    step_s: int  #: each point is the mean of so many seconds
    points: tuple[UsagePoint, ...]


class MapJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job on the map. Only its queue and phase are known if the caller may not see it."""

    queue: str
    phase: str
    id: str | None = None
    name: str | None = None  #: namespace/name
    since: str | None = None  #: when its attempt was reserved


class MapTask(msgspec.Struct, frozen=True):
    job: int  #: its position in `jobs`
    task: int
    devices: tuple[int, ...]


class MapWorker(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    status: str
    gpus: int
    resources: dict[str, Any]
    free: dict[str, Any]
    labels: dict[str, str]
    tasks: tuple[MapTask, ...]
    cordoned: str | None = None
    lost_at: str | None = None


class MapView(msgspec.Struct, frozen=True):
    workers: tuple[MapWorker, ...]
    jobs: tuple[MapJob, ...]
    #: The fewest GPUs that a task of a pending gang requests; a worker with fewer free GPUs has
    #: none of use to them. Null if no pending gang requests GPUs.
    smallest_request: float | None
