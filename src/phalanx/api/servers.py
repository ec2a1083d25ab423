"""The servers of the cluster: the leader and its standbys."""

from typing import Any

from litestar import Request, get

from phalanx.api.auth import USERS
from phalanx.api.services import services_of
from phalanx.wire.servers import LeaderView, ServersView


@get("/servers", opt={"allowed": USERS}, summary="Show the leader and the standbys")
async def servers(request: Request[Any, Any, Any]) -> ServersView:
    """Every server answers, also a standby."""
    leader = await services_of(request).store.leader()
    view = None if leader is None else LeaderView(leader.holder, leader.url, leader.term)
    return ServersView(view, ())


ROUTES = [servers]
