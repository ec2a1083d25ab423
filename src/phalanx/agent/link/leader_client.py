"""Calls to the leading server: follows redirects to it, and finds it again when another one leads.

A call may be sent twice, so it must be one that can be repeated without harm.
"""

import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

from phalanx.agent.link.http_client import HttpClient, HttpReply, HttpRequest

_MAX_REDIRECTS = 3


class Unreachable(Exception):  # noqa: N818
    """No leading server could be reached; the message has the error of each server."""


class LeaderClient:
    def __init__(
        self,
        urls: tuple[str, ...],
        token: Callable[[], str | None],
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self._token = token
        self._trust = trust
        self._clients = {url.rstrip("/"): HttpClient(url, trust) for url in urls}
        self._leader = next(iter(self._clients))

    @property
    def leader(self) -> str:
        """The URL of the server that answered last."""
        return self._leader

    @property
    def local_address(self) -> str:
        """The address of this machine on the connection to the server, or an empty string."""
        return self._clients[self._leader].local_address

    async def call(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        timeout_s: float = 15.0,
        media_type: str = "application/json",
    ) -> HttpReply:
        """The reply of the leading server. Raises Unreachable."""
        headers = self._headers(media_type if body else None)
        request = HttpRequest(method, path, headers, body, timeout_s)
        errors = []
        for url in [self._leader, *(url for url in self._clients if url != self._leader)]:
            try:
                reply = await self._call(url, request, _MAX_REDIRECTS)
            except ConnectionError as error:
                errors.append(str(error))
                continue
            if reply.status < 500 and reply.status != 307:
                return reply
            errors.append(f"{url} answered with status {reply.status}")
        raise Unreachable("; ".join(errors))

    def _headers(self, media_type: str | None) -> dict[str, str]:
        headers = {} if media_type is None else {"Content-Type": media_type}
        try:
            token = self._token()
        except OSError as error:
            raise Unreachable(f"cannot read the token: {error}") from None
        return headers | {"Authorization": f"Bearer {token}"} if token else headers

    async def _call(self, url: str, request: HttpRequest, redirects: int) -> HttpReply:
        reply = await self._clients[url].call(request)
        if reply.status == 307 and redirects:
            location = urlsplit(reply.headers.get("location", ""))
            if url.startswith("https:") and location.scheme != "https":
                raise ConnectionError(f"{url} redirects to an address without TLS")
            leader = f"{location.scheme}://{location.netloc}"
            if leader not in self._clients:
                self._clients[leader] = HttpClient(leader, self._trust)
            return await self._call(leader, request, redirects - 1)
        if reply.status < 300:
            self._leader = url
        return reply

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
