"""The servers that a worker knows: it asks the one that leads, and finds it again when it has not.

Whatever is asked here does no harm when it is asked twice.
"""

from collections.abc import Callable
from urllib.parse import urlsplit

from phalanx.agent.link.http_client import HttpClient, HttpReply, HttpRequest

_MOST_HOPS = 3


class Unreachable(Exception):  # noqa: N818
    """No server that leads can be reached; the message says what each of them said."""


class LeaderClient:
    def __init__(self, urls: tuple[str, ...], token: Callable[[], str | None]) -> None:
        self._token = token
        self._known = {url.rstrip("/"): HttpClient(url) for url in urls}
        self._first = next(iter(self._known))

    @property
    def leader(self) -> str:
        """The one that answered last."""
        return self._first

    @property
    def local_address(self) -> str:
        """Our own address, as seen from the way to the server."""
        return self._known[self._first].local

    async def call(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        seconds: float = 15.0,
        media: str = "application/json",
    ) -> HttpReply:
        """The answer of the server that leads. Raises Unreachable."""
        request = HttpRequest(method, path, self._headers(media if body else None), body, seconds)
        said = []
        for url in [self._first, *(url for url in self._known if url != self._first)]:
            try:
                answer = await self._ask(url, request, _MOST_HOPS)
            except ConnectionError as error:
                said.append(str(error))
                continue
            if answer.status < 500 and answer.status != 307:
                return answer
            said.append(f"{url} answered {answer.status}")
        raise Unreachable("; ".join(said))

    def _headers(self, media: str | None) -> dict[str, str]:
        headers = {} if media is None else {"Content-Type": media}
        try:
            token = self._token()
        except OSError as error:
            raise Unreachable(f"the token cannot be read: {error}") from None
        return headers | {"Authorization": f"Bearer {token}"} if token else headers

    async def _ask(self, url: str, request: HttpRequest, hops: int) -> HttpReply:
        answer = await self._known[url].call(request)
        if answer.status == 307 and hops:
            there = urlsplit(answer.headers.get("location", ""))
            leader = f"{there.scheme}://{there.netloc}"
            self._known.setdefault(leader, HttpClient(leader))
            return await self._ask(leader, request, hops - 1)
        if answer.status < 300:
            self._first = url
        return answer

    def close(self) -> None:
        for server in self._known.values():
            server.close()
