"""Tasks beyond the minimum: what is left goes to them in the same order, a helping at a time.

The queue that is served worst is given first, and what it was given counts at once.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from phalanx.plan.model import Claim
from phalanx.plan.order import Order
from phalanx.plan.place import Trial

#: What all queues want is given in about so many helpings.
_HELPINGS = 256


def grow(trials: Sequence[Trial], order: Order, give: Callable[[Trial, int], int]) -> None:
    """Give to the trials until nobody wants or finds any more; `give` says how many it placed."""
    by_job = {trial.claim.job: trial for trial in trials}
    wanted = sum(trial.missing for trial in trials)
    several = len({trial.claim.queue for trial in trials}) > 1
    helping = max(1, wanted // _HELPINGS) if several else wanted
    for trial in trials:
        order.add_group((_one_more(trial),))
    while (turn := order.pop()) is not None:
        trial = by_job[turn.last.job]
        if give(trial, helping) == helping and trial.missing:
            order.add_group((_one_more(trial),))


def _one_more(trial: Trial) -> Claim:
    """The gang, as if it needed no more than another task."""
    parts = tuple(replace(part, need=0) for part in trial.claim.parts if trial.lacks(part))
    return replace(trial.claim, parts=parts, need=1, held=())
