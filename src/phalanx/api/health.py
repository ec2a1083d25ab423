"""Health, readiness and metrics."""

from typing import Any

import msgspec
from litestar import Request, Response, get

from phalanx.api.auth import USERS
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


@get("/health", summary="Liveness")
async def health(request: Request[Any, Any, Any]) -> Health:
    return _health(request)


@get("/healthz", summary="Liveness")
async def healthz(request: Request[Any, Any, Any]) -> Health:
    return _health(request)


@get("/readyz", summary="Readiness")
async def readyz(request: Request[Any, Any, Any]) -> Response[Health]:
    """200 on the leader, 503 on a standby: probes would count a redirect as success."""
    health = _health(request)
    return Response(health, status_code=200 if health.leading else 503)


@get("/metrics", opt={"allowed": USERS}, media_type="text/plain", summary="Metrics for Prometheus")
async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
    collect = services_of(request).metrics
    if collect is None:
        raise Unknown("this server has no metrics")
    body, media_type = collect()
    return Response(body, media_type=media_type)


ROUTES = [health, healthz, readyz, metrics]
