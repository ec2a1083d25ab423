"""Lost compute: what stops have cost each queue, by job and by evictor."""

from collections.abc import Iterable, Mapping
from typing import Any

from litestar import Request, get

from phalanx.api.auth import USERS, Principal, principal_of
from phalanx.api.cost_views import tally_view
from phalanx.api.services import services_of
from phalanx.core.ledger import Account, Tally
from phalanx.engine.turn import Turn
from phalanx.wire.cost import CostView, EvictorCost, JobCost, QueueCost


@get("/cost", opt={"allowed": USERS}, summary="Say what evictions and failures have cost")
async def cost(request: Request[Any, Any, Any]) -> CostView:
    """Whoever is confined to namespaces is not told the names of others; the sums are of all."""
    services, principal = services_of(request), principal_of(request)

    def work(turn: Turn) -> CostView:
        accounts = [account for _, account in sorted(turn.cluster.accounts.items())]
        return _cost(accounts, turn.cluster.settings.price, principal)

    return await services.engine.do(work)


def _cost(accounts: list[Account], price: Mapping[str, int], principal: Principal) -> CostView:
    jobs = [
        JobCost(job, line.name, account.queue, tally_view(line.lost))
        for account in accounts
        for job, line in account.jobs.items()
        if _may_be_named(principal, line.name)
    ]
    evictors = [
        EvictorCost(by, account.queue, tally_view(tally))
        for account in accounts
        for by, tally in account.evictors.items()
        if _may_be_named(principal, by)
    ]
    return CostView(
        price={name: each / 1_000_000 for name, each in price.items()},
        to_eviction=tally_view(_sum(account.eviction for account in accounts)),
        to_failure=tally_view(_sum(account.failure for account in accounts)),
        queues=tuple(
            QueueCost(a.queue, tally_view(a.eviction), tally_view(a.failure)) for a in accounts
        ),
        jobs=tuple(sorted(jobs, key=_dearest_first)),
        evictors=tuple(sorted(evictors, key=_dearest_first)),
    )


def _may_be_named(principal: Principal, name: str) -> bool:
    return principal.may_see(name.partition("/")[0])


def _sum(tallies: Iterable[Tally]) -> Tally:
    return sum(tallies, Tally())


def _dearest_first(line: JobCost | EvictorCost) -> tuple[float, float, str]:
    name = line.name if isinstance(line, JobCost) else line.by
    return -line.lost.cost, -line.lost.gpu_s, name


ROUTES = [cost]
