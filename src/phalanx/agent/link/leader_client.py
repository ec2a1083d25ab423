"""Calls to the leading server: follows redirects to it, and finds it again when another one leads.

A call may be sent twice, so it must be one that can be repeated without harm.
"""

import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

from phalanx.agent.link.http_client import FileBody, HttpClient, HttpReply, HttpRequest
from phalanx.wire.errors import error_info

_MAX_REDIRECTS = 3


class Unreachable(Exception):  # noqa: N818
    """No leading server could be reached; the message has the error of each server."""


class CredentialRefused(Unreachable):
    """The leading server refused the worker's token or credential; `is_revoked` is final."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.is_revoked = code == "revoked"
        self.lacks_certificate = code == "certificate_required"


class LeaderClient:
    def __init__(
        self,
        urls: tuple[str, ...],
        bearer: Callable[[], str | None],
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`bearer` returns the worker's credential, and `tls` the context of a connection."""
        self._bearer = bearer
        self._tls = tls
        self._clients = {url.rstrip("/"): HttpClient(url, tls) for url in urls}
        self._leader = next(iter(self._clients))

    @property
    def leader(self) -> str:
        """The URL of the server that answered last."""
        return self._leader

    @property
    def local_address(self) -> str:
        """The address of this machine on the connection to the server, or an empty string."""
        return self._clients[self._leader].local_address

    async def call(  # noqa: PLR0913
        self,
        method: str,
        path: str,
        body: bytes | FileBody = b"",
        *,
        timeout_s: float = 15.0,
        media_type: str = "application/json",
        bearer: str | None = None,
    ) -> HttpReply:
        """The reply of the leading server. Raises Unreachable.

        `bearer` replaces the worker's credential.
        """
        headers = _headers(media_type if body else None, bearer or self._bearer())
        request = HttpRequest(method, path, headers, body, timeout_s)
        errors = []
        for url in [self._leader, *(url for url in self._clients if url != self._leader)]:
            try:
                reply = await self._call(url, request, _MAX_REDIRECTS)
            except ConnectionError as error:
                errors.append(str(error))
                continue
            if reply.status == 401:
                refusal = error_info(reply.body)
                raise CredentialRefused(refusal.message, refusal.code)
            if reply.status < 500 and reply.status != 307:
                return reply
            errors.append(f"{url} answered with status {reply.status}")
        raise Unreachable("; ".join(errors))

    async def _call(self, url: str, request: HttpRequest, redirects: int) -> HttpReply:
        reply = await self._clients[url].call(request)
        if reply.status == 307 and redirects:
            location = urlsplit(reply.headers.get("location", ""))
            if url.startswith("https:") and location.scheme != "https":
                raise ConnectionError(f"{url} redirects to an address without TLS")
            leader = f"{location.scheme}://{location.netloc}"
            if leader not in self._clients:
                self._clients[leader] = HttpClient(leader, self._tls)
            return await self._call(leader, request, redirects - 1)
        if reply.status < 300:
            self._leader = url
        return reply

    def close(self) -> None:
        """Close all connections. The next call opens another."""
        for client in self._clients.values():
            client.close()


def _headers(media_type: str | None, bearer: str | None) -> dict[str, str]:
    headers = {} if media_type is None else {"Content-Type": media_type}
    return headers | {"Authorization": f"Bearer {bearer}"} if bearer else headers
