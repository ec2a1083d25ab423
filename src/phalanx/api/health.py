"""Whether the server lives, whether it leads, and its numbers."""

from typing import Any

import msgspec
from litestar import Request, Response, get

from phalanx.api.auth import ANYBODY
from phalanx.api.services import services_of
from phalanx.core.errors import Unknown


class Health(msgspec.Struct, frozen=True):
    status: str
    version: str
    leading: bool
    term: int | None


def _health(request: Request[Any, Any, Any]) -> Health:
    services = services_of(request)
    leading = services.engine.is_leading
    return Health("ok", services.info.version, leading, services.engine.term if leading else None)


@get("/health", summary="The server lives")
async def health(request: Request[Any, Any, Any]) -> Health:
    return _health(request)


@get("/healthz", summary="The server lives")
async def healthz(request: Request[Any, Any, Any]) -> Health:
    return _health(request)


@get("/readyz", summary="The server leads")
async def readyz(request: Request[Any, Any, Any]) -> Response[Health]:
    """200 on the leader, 503 elsewhere; never a redirect, which a probe would take for a yes."""
    health = _health(request)
    return Response(health, status_code=200 if health.leading else 503)


@get(
    "/metrics", opt={"allowed": ANYBODY}, media_type="text/plain", summary="Numbers for Prometheus"
)
async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
    measure = services_of(request).metrics
    if measure is None:
        raise Unknown("this server keeps no metrics")
    body, media_type = measure()
    return Response(body, media_type=media_type)


ROUTES = [health, healthz, readyz, metrics]
