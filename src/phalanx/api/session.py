"""The session of a browser: sign in with a token, and sign out."""

from contextlib import suppress
from typing import Any

import msgspec
from litestar import Request, Response, delete, post
from litestar.openapi.spec import Schema

from phalanx.api import request_body
from phalanx.api.audit import record_of
from phalanx.api.auth import identify
from phalanx.api.json_body import JsonBody
from phalanx.api.services import services_of
from phalanx.api.session_cookie import check_own_page, cookie_of, session_of
from phalanx.api.whoami import identity_of
from phalanx.core.time_units import SECOND
from phalanx.identity.principal import Unauthorised
from phalanx.wire.identity import Identity

_LIMIT_BYTES = 4096


class SignIn(msgspec.Struct, frozen=True):
    token: str


_SIGN_IN = JsonBody(SignIn)
_BODY = request_body.documented(
    {"token": Schema(type="string")},  # type: ignore[arg-type]
    {"token": "phx_Zx8…"},
    required=("token",),
)


@post(
    "/session",
    operation_class=_BODY,
    opt={"action": "sign in"},
    status_code=200,
    summary="Sign a browser in",
)
async def sign_in(request: Request[Any, Any, Any]) -> Response[Identity]:
    """Exchange a token for a cookie, which pages of this server cannot read and other sites cannot
    use. The session has the rights of the token, and ends with it or after seven days."""
    services, scope = services_of(request), request.scope
    check_own_page(scope, is_cookie_used=False)
    token = _SIGN_IN.decode(await request_body.raw(request, _LIMIT_BYTES)).token
    principal = await services.sessions.check(token)
    scope["state"]["principal"] = principal
    now = services.clock()
    audit = record_of(request, now, target=principal.name)
    session = await services.sessions.begin(token, audit)
    age_s = max(1, (session.expires_at - now) // SECOND)
    return Response(
        identity_of(principal, has_session=True), cookies=[cookie_of(scope, session.secret, age_s)]
    )


@delete("/session", opt={"action": "sign out"}, status_code=200, summary="Sign a browser out")
async def sign_out(request: Request[Any, Any, Any]) -> Response[dict[str, str]]:
    """End the session of the cookie, and remove the cookie."""
    services, scope = services_of(request), request.scope
    check_own_page(scope)
    secret = session_of(scope)
    if secret is not None:
        with suppress(Unauthorised):  # it has ended already
            principal = await identify(services.auth, scope)
            audit = record_of(request, services.clock(), target=principal.name)
            await services.sessions.end(secret, audit)
    return Response({}, cookies=[cookie_of(scope, "", 0)])


ROUTES = [sign_in, sign_out]
