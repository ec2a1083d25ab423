"""Protection of a server without tokens on loopback against requests from other web pages.

A browser on this host can reach loopback for any page that it shows. No page knows a token, so a
request with a token passes; any other must not come from a page of another origin.
"""

from urllib.parse import urlsplit

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from phalanx.server.listening import is_loopback
from phalanx.wire.errors import ErrorBody, ErrorInfo

_REFUSAL = msgspec.json.encode(
    ErrorBody(
        ErrorInfo(
            "foreign_origin",
            "the request comes from a web page of another origin, or names another host;"
            " send a token with it",
        )
    )
)


class SameOrigin:
    def __init__(self, app: ASGIApp, *hosts: str) -> None:
        """`hosts` are the server's names besides those of loopback."""
        self._app = app
        self._hosts = set(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP and self._is_foreign(dict(scope["headers"])):
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSAL, "more_body": False})
            return
        await self._app(scope, receive, send)

    def _is_foreign(self, headers: dict[bytes, bytes]) -> bool:
        if b"authorization" in headers:
            return False
        host = headers.get(b"host", b"").decode("latin-1")
        # Another site's name may resolve to loopback.
        if host and not self._is_own(host):
            return True
        origin = headers.get(b"origin")
        if origin is not None and urlsplit(origin.decode("latin-1")).netloc != host:
            return True
        # Following a link is harmless; a form or a script of another site is not.
        site, mode = headers.get(b"sec-fetch-site"), headers.get(b"sec-fetch-mode")
        return site == b"cross-site" and mode != b"navigate"

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name.endswith(".localhost") or name in self._hosts
