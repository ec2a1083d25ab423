"""The conversation with a victim that saves its work before it is evicted.

Pods that carry `phalanx.dev/checkpoint` are first asked with `phalanx.dev/preempt-at`, the time at
which they are evicted at the latest. They answer with `phalanx.dev/checkpointed`, or end.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from phalanx.kube.objects.metadata import time_of
from phalanx.kube.objects.pod import KubePod

CHECKPOINT = "phalanx.dev/checkpoint"
#: Set by the scheduler: when the pod is evicted at the latest.
PREEMPT_AT = "phalanx.dev/preempt-at"
#: Set by the pod: when it saved its work.
CHECKPOINTED = "phalanx.dev/checkpointed"


class CheckpointWish(StrEnum):
    """When the pods of a gang may be evicted."""

    EACH = "each"  #: each pod once it has answered itself
    ALL = "all"  #: all pods once all have answered: they save their work together


def checkpoint_wish(pods: Sequence[KubePod]) -> CheckpointWish | None:
    """What the pods of a gang wish together; None: they are evicted at once."""
    wishes = {pod.metadata.annotations.get(CHECKPOINT) for pod in pods}
    return next(
        (wish for wish in (CheckpointWish.ALL, CheckpointWish.EACH) if wish in wishes), None
    )


def ready_to_stop(pods: Sequence[KubePod], now: datetime) -> list[KubePod]:
    """The pods of a gang that may be evicted now: those that have answered or were not asked, or
    whose time is over."""
    ready = [pod for pod in pods if not _is_awaited(pod, now)]
    if checkpoint_wish(pods) is CheckpointWish.ALL and len(ready) < len(pods):
        return []
    return ready


def _is_awaited(pod: KubePod, now: datetime) -> bool:
    """Whether the pod was asked, and may still answer."""
    deadline = time_of(pod.metadata.annotations.get(PREEMPT_AT))
    return deadline is not None and now < deadline and not has_answered(pod)


def has_answered(pod: KubePod) -> bool:
    """Whether the pod has saved its work since it was asked. The question removes older answers."""
    return CHECKPOINTED in pod.metadata.annotations


def saved_at(pod: KubePod) -> datetime | None:
    """When the pod last saved its work, as far as its answer is a time."""
    return time_of(pod.metadata.annotations.get(CHECKPOINTED))
