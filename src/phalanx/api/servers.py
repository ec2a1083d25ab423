"""The servers of the cluster: the leader and its standbys."""

from typing import Any

from litestar import Request, get

from phalanx.api.auth import USERS
from phalanx.api.services import Services, services_of
from phalanx.core.time_units import SECOND
from phalanx.engine.standbys import current_standbys
from phalanx.wire.servers import LeaderView, ServersView, StandbyView


@get("/servers", opt={"allowed": USERS}, summary="Show the leader and the standbys")
async def servers(request: Request[Any, Any, Any]) -> ServersView:
    """Every server answers, also a standby."""
    return await current_servers(services_of(request))


async def current_servers(services: Services) -> ServersView:
    """The leader and the standbys of the store. Raises StoreError."""
    leader = await services.store.leader()
    standbys = await current_standbys(services.store, services.clock())
    view = None if leader is None else LeaderView(leader.holder, leader.url, leader.term)
    return ServersView(
        view,
        tuple(
            StandbyView(each.name, each.url, each.silent and each.silent // SECOND)
            for each in standbys
            if leader is None or each.name != leader.holder
        ),
    )


ROUTES = [servers]
