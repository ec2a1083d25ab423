"""Protection of a server without tokens on loopback against other web pages and other hosts.

A browser on this host sends requests to loopback for any page that it shows, and the name of any
page may resolve to loopback. Only the headers tell such a request from one of this host. A valid
token is an exemption, because no page knows one.
"""

import re
from functools import lru_cache

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

from phalanx.api.auth import Authenticator, bearer_of
from phalanx.core.spec.fields import shown
from phalanx.identity.principal import Unauthorised
from phalanx.server.listening import is_loopback
from phalanx.wire.errors import ErrorBody, ErrorInfo

#: A name or an address, and perhaps a port: no user, no path, no list.
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{1,5})?")
_OWN_SITES = (b"same-origin", b"none")
_WATCHED = {
    name.lower().encode(): name
    for name in (
        *("Host", "Origin", "Sec-Fetch-Site"),
        # A proxy adds one of these, and then the request may come from any host.
        *("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP"),
    )
}


class SameOrigin:
    def __init__(self, app: ASGIApp, auth: Authenticator, *names: str) -> None:
        """`names` are the server's host names besides those of loopback."""
        self._app = app
        self._auth = auth
        self._names = frozenset(name.lower() for name in names)
        self._is_own = lru_cache(self._is_own_host)  # called with every request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP:
            problem = self._problem(scope)
            if problem is not None and not await self._has_token(scope):
                await _refuse(send, problem)
                return
        await self._app(scope, receive, send)

    async def _has_token(self, scope: HTTPScope) -> bool:
        try:
            await self._auth.principal(bearer_of(scope), loopback=False)
        except Unauthorised:
            return False
        return True

    def _problem(self, scope: HTTPScope) -> str | None:
        """The header that shows that the request is not from this host, and how to change it."""
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in _WATCHED:
                if name in headers:
                    return f"{_WATCHED[name]} occurs twice; send it once"
                headers[name] = value.lower()
        host = headers.pop(b"host", b"")
        if not self._is_own(host):
            return (
                f"Host is {_shown(host)}, which is not a name of this server; use localhost, set"
                " advertise_url to a URL with this name"
            )
        if headers and _is_link_to_dashboard(scope):
            headers.pop(b"sec-fetch-site", None)
        own = scope["scheme"].encode() + b"://" + host
        return _foreign_page(headers, own) if headers else None

    def _is_own_host(self, host: bytes) -> bool:
        match = _HOST.fullmatch(host.decode("latin-1"))
        if match is None:
            return False
        name = match[1] or match[2]
        is_below_localhost = name.endswith(".localhost") and not name.startswith(".")
        return name in self._names or is_loopback(name) or is_below_localhost


def _is_link_to_dashboard(scope: HTTPScope) -> bool:
    """Whether a browser opens the page of the dashboard in a tab. It has no data, and no other page
    can read it or show it in a frame. A page whose server is gone moves to the next leader so."""
    if scope["method"] != "GET" or scope["path"] != "/":
        return False
    headers = dict(scope["headers"])
    mode, destination = headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")
    return mode == b"navigate" and destination == b"document"


def _foreign_page(headers: dict[bytes, bytes], own_origin: bytes) -> str | None:
    origin, site = headers.pop(b"origin", None), headers.pop(b"sec-fetch-site", b"none")
    if origin is not None and origin != own_origin:
        return f"Origin is {_shown(origin)}, a page of another server; send no Origin"
    if site not in _OWN_SITES:
        return (
            f"Sec-Fetch-Site is {_shown(site)}, so a page of another site sent the request; enter"
            " the address in the browser"
        )
    for name in headers:
        return f"{_WATCHED[name]} shows that a proxy forwarded the request; connect directly"
    return None


def _shown(value: bytes) -> str:
    return shown(value.decode("latin-1")) if value else "missing"


async def _refuse(send: Send, problem: str) -> None:
    message = f"{problem}, or send a valid token"
    body = msgspec.json.encode(ErrorBody(ErrorInfo("foreign_origin", message)))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
