"""The work lost to stops, by queue, job and evictor."""

from collections.abc import Iterable, Mapping
from typing import Any

from litestar import Request, get

from phalanx.api.auth import USERS, principal_of
from phalanx.api.cost_views import tally_view
from phalanx.api.services import services_of
from phalanx.core.ledger import Account, Tally
from phalanx.engine.turn import Turn
from phalanx.identity.principal import Principal
from phalanx.wire.cost import CostView, EvictorCost, JobCost, QueueCost


@get("/cost", opt={"allowed": USERS}, summary="Show the work lost to evictions and failures")
async def cost(request: Request[Any, Any, Any]) -> CostView:
    """The totals cover all namespaces; jobs that the caller may not see are left out."""
    services, principal = services_of(request), principal_of(request)

    def work(turn: Turn) -> CostView:
        accounts = [account for _, account in sorted(turn.cluster.accounts.items())]
        return _cost(accounts, turn.cluster.settings.price, principal)

    return await services.engine.do(work)


def _cost(accounts: list[Account], price: Mapping[str, int], principal: Principal) -> CostView:
    jobs = [
        JobCost(job, entry.name, account.queue, tally_view(entry.lost))
        for account in accounts
        for job, entry in account.jobs.items()
        if _may_see(principal, entry.name)
    ]
    evictors = [
        EvictorCost(by, account.queue, tally_view(tally))
        for account in accounts
        for by, tally in account.evictors.items()
        if _may_see(principal, by)
    ]
    return CostView(
        price={name: each / 1_000_000 for name, each in price.items()},
        to_eviction=tally_view(_sum(account.eviction for account in accounts)),
        to_failure=tally_view(_sum(account.failure for account in accounts)),
        queues=tuple(
            QueueCost(a.queue, tally_view(a.eviction), tally_view(a.failure)) for a in accounts
        ),
        jobs=tuple(sorted(jobs, key=_most_expensive_first)),
        evictors=tuple(sorted(evictors, key=_most_expensive_first)),
    )


def _may_see(principal: Principal, name: str) -> bool:
    """Whether the caller may see a job by its `namespace/name`."""
    return principal.may_see(name.partition("/")[0])


def _sum(tallies: Iterable[Tally]) -> Tally:
    return sum(tallies, Tally())


def _most_expensive_first(entry: JobCost | EvictorCost) -> tuple[float, float, str]:
    name = entry.name if isinstance(entry, JobCost) else entry.by
    return -entry.lost.cost, -entry.lost.gpu_s, name


ROUTES = [cost]
