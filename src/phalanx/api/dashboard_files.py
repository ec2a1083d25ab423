"""The files of the dashboard over HTTP, with the headers that keep scripts of others out of it."""

from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from litestar import Request, Response, get
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from phalanx.api.auth import identify
from phalanx.api.servers import current_servers
from phalanx.api.services import services_of
from phalanx.dashboard.files import INDEX, PROBE, dashboard_files, dashboard_version
from phalanx.identity.principal import Unauthorised
from phalanx.store.protocol import StoreError

#: Scripts, styles and requests of this server only, and none of them inside the page's HTML.
_POLICY = (
    "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self';"
    " frame-ancestors 'none'"
)
_NOTHING = ["'none'"]
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    # Browsers ask each time whether the page has changed, so an upgrade shows at once.
    "Cache-Control": "no-cache",
}
#: Who asks for the page if no other site can have its window: the user, or the page itself.
_NO_OTHER_SITE = ("none", "same-origin")
_FOR_EVER = "public, max-age=31536000, immutable"


@get("/", media_type="text/html", summary="The dashboard")
async def index(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The page, which loads its files from `/dashboard`."""
    response = _file(request, INDEX)
    # Browsers start another process for a page with this header, which takes about 100 ms.
    if request.headers.get("sec-fetch-site") not in _NO_OTHER_SITE:
        response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
    return response


@get(
    "/dashboard/{version:str}/{file:path}",
    media_type="text/plain",
    summary="A file of the dashboard",
)
async def dashboard_file(
    request: Request[Any, Any, Any], version: FromPath[str], file: FromPath[str]
) -> Response[bytes]:
    """The file of this server's version. Browsers keep it if that is the version that they ask for;
    during an upgrade the page may be from another server."""
    path = file.removeprefix("/")
    response = _file(request, path)
    if version == dashboard_version():
        response.headers["Cache-Control"] = _FOR_EVER
    if path == PROBE:
        response.headers["Content-Security-Policy"] = await _probe_policy(request)
        response.headers["Cache-Control"] = "no-store"
    return response


async def _probe_policy(request: Request[Any, Any, Any]) -> str:
    """The probe may make requests to the servers of the cluster, if its user may know them."""
    services, addresses = services_of(request), set[str]()
    with suppress(Unauthorised, StoreError):
        await identify(services.auth, request.scope)
        servers = await current_servers(services)
        for each in (servers.leader, *servers.standbys):
            if each is not None:
                scheme, host, *_ = urlsplit(each.url)
                addresses.add(f"{scheme}://{host}")
    return f"default-src 'none'; connect-src {' '.join(sorted(addresses) or _NOTHING)}"


def _file(request: Request[Any, Any, Any], path: str) -> Response[bytes]:
    file = dashboard_files().get(path)
    if file is None or not services_of(request).info.has_dashboard:
        raise NotFoundException
    is_compressed = "gzip" in request.headers.get("accept-encoding", "")
    content, etag = file.content, file.etag
    headers = {**_HEADERS, "Vary": "Accept-Encoding"}
    if is_compressed:
        content, etag = file.compressed, f'{etag[:-1]}-gzip"'
        headers["Content-Encoding"] = "gzip"
    headers["ETag"] = etag
    if request.headers.get("if-none-match") == etag:
        return Response(b"", status_code=304, headers=headers, media_type=file.media_type)
    return Response(content, headers=headers, media_type=file.media_type)


ROUTES = [index, dashboard_file]
