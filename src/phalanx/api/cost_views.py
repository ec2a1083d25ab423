"""Views of lost work, built from the ledger."""

from phalanx.api.visibility import visible_cause, visible_name
from phalanx.core.ledger import JobLosses, Tally, gpu_seconds
from phalanx.identity.principal import Principal
from phalanx.wire.cost import EvictionView, LostView, TallyView
from phalanx.wire.times import iso_time


def tally_view(tally: Tally) -> TallyView:
    return TallyView(_gpu_s(tally.gpu), _money(tally.cost), tally.count)


def lost_view(lost: JobLosses, principal: Principal) -> LostView:
    total = lost.total
    return LostView(
        gpu_s=_gpu_s(total.gpu),
        cost=_money(total.cost),
        to_eviction=tally_view(lost.eviction),
        to_failure=tally_view(lost.failure),
        evictions=tuple(
            EvictionView(
                iso_time(each.at),
                each.by if each.cause.job is None else visible_name(principal, each.cause.job),
                visible_cause(principal, each.cause),
                _gpu_s(each.gpu),
                _money(each.cost),
            )
            for each in lost.evictions
        ),
    )


def _gpu_s(gpu: int) -> float:
    return round(gpu_seconds(gpu), 3)


def _money(millionths: int) -> float:
    return round(millionths / 1_000_000, 2)
