"""The cookie of a session, and the pages that may send it.

Browsers send the cookie with every request to this host. `SameSite` keeps pages of other sites
from using it; a page on another port of this host is of the same site, and only the headers of the
request tell it from ours.
"""

from http.cookies import CookieError, SimpleCookie

from litestar.datastructures import Cookie
from litestar.types import Scope

from phalanx.identity.principal import Forbidden

NAME = "phalanx_session"
_READS = ("GET", "HEAD")


def session_of(scope: Scope) -> str | None:
    """The secret of the session that a request belongs to; None without one."""
    for name, value in scope["headers"]:
        if name == b"cookie" and NAME.encode() in value:
            try:
                cookies = SimpleCookie(value.decode("latin-1"))
            except CookieError:
                return None
            return cookies[NAME].value if NAME in cookies else None
    return None


def check_own_page(scope: Scope, *, is_cookie_used: bool = True) -> None:
    """Raise Forbidden for a request that a page of another server has sent.

    A request that changes something with a cookie must show that it is from a page of this server.
    Browsers leave out `Sec-Fetch-Site` on plain HTTP, and `Origin` when they only read.
    """
    headers = dict(scope["headers"])
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if site is not None:
        is_own = site in (b"same-origin", b"none")
    elif origin is not None:
        own = scope["scheme"].encode() + b"://" + headers.get(b"host", b"")
        is_own = origin.lower() == own.lower()
    else:
        is_own = scope.get("method") in _READS or not is_cookie_used
    if not is_own:
        raise Forbidden(
            "the cookie of a session is for pages of this server only; send a token as"
            " `Authorization: Bearer TOKEN` instead"
        )


def cookie_of(scope: Scope, secret: str, max_age_s: int) -> Cookie:
    """The cookie to set; an age of 0 removes it."""
    return Cookie(
        key=NAME,
        value=secret,
        max_age=max_age_s,
        path="/",
        secure=scope["scheme"] == "https",
        httponly=True,
        samesite="strict",
    )
