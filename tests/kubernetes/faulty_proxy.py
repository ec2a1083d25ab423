"""A proxy in front of the API server that refuses, loses and cuts what a test tells it to."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from phalanx.kube.connection.cluster_connection import ClusterConnection
from phalanx.kube.connection.credentials import ConfiguredCredentials
from tests.kubernetes.control_plane import ApiServer

Matches = Callable[[web.BaseRequest], bool]


class FaultyProxy:
    """Forwards requests as they come. Each fault hits the next requests that match."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._refusals: list[tuple[Matches, web.Response]] = []
        self._losses: list[Matches] = []
        self._holds: list[Matches] = []
        self._watches: set[asyncio.Transport] = set()
        self.url = ""
        self.requests: list[web.BaseRequest] = []

    @property
    def connection(self) -> ClusterConnection:
        return ClusterConnection(self.url, ConfiguredCredentials(token=self._api.token))

    def refuse(self, matches: Matches, response: web.Response) -> None:
        """Answer one request in place of the API server."""
        self._refusals.append((matches, response))

    def lose_answer(self, matches: Matches) -> None:
        """Pass one request on, and close the connection in place of an answer."""
        self._losses.append(matches)

    def hold(self, matches: Matches) -> None:
        """Neither answer nor pass on matching requests, from now on."""
        self._holds.append(matches)

    def cut_watches(self) -> None:
        """Break the connections of all watches, in the middle of whatever they send."""
        for transport in self._watches:
            transport.abort()
        self._watches.clear()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FaultyProxy"]:
        trust = ssl.create_default_context(cafile=str(self._api.ca))
        connector = aiohttp.TCPConnector(ssl=trust, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            self._session = session
            runner = web.ServerRunner(web.Server(self._handle), shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            try:
                yield self
            finally:
                self.cut_watches()
                await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append(request)
        if any(matches(request) for matches in self._holds):
            await asyncio.get_running_loop().create_future()
        for matches, refusal in self._refusals:
            if matches(request):
                self._refusals.remove((matches, refusal))
                return refusal
        async with self._session.request(
            request.method,
            self._api.url + request.path_qs,
            data=await request.read() or None,
            headers={k: v for k, v in request.headers.items() if k.lower() != "host"},
        ) as answer:
            if is_watch(request):
                return await self._stream(request, answer)
            body = await answer.read()
        for matches in self._losses:
            if matches(request):
                self._losses.remove(matches)
                _transport(request).abort()
        kept = ("Content-Type", "Retry-After")
        headers = {name: answer.headers[name] for name in kept if name in answer.headers}
        return web.Response(status=answer.status, body=body, headers=headers)

    async def _stream(
        self, request: web.BaseRequest, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status)
        response.enable_chunked_encoding()
        await response.prepare(request)
        transport = _transport(request)
        self._watches.add(transport)
        try:
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
        except (ConnectionError, aiohttp.ClientError):
            pass
        finally:
            self._watches.discard(transport)
        return response


def is_watch(request: web.BaseRequest) -> bool:
    return "watch" in request.query


def _transport(request: web.BaseRequest) -> asyncio.Transport:
    assert isinstance(request.transport, asyncio.Transport)
    return request.transport
